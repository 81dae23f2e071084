"""Server optimizers: two steps of each worked by hand, and properties for any delta."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgefl.base.errors import ConfigError
from edgefl.learning.algorithms.server_optimizer import OPTIMIZERS, check_optimizer, step_optimizer


def make_weights(*values):
    return {"w": np.array(values, np.float32)}


def run_optimizer(name, hyper, deltas, start=0.0):
    weights = make_weights(start)
    slots = {}
    for delta in deltas:
        weights, slots = step_optimizer(name, hyper, weights, make_weights(delta), slots)
    return float(weights["w"][0]), slots


def test_optimizer_none_adds_the_mean_delta():
    assert run_optimizer("none", {}, [2.0, 3.0], start=1.0)[0] == 6.0
    assert run_optimizer("none", {"learning_rate": 0.5}, [2.0], start=1.0)[0] == 2.0


def test_momentum_by_hand():
    """m is 2, then .5 * 2 + 3 = 4, so w is 0 + 2 + 4."""
    end, slots = run_optimizer("momentum", {"beta1": 0.5}, [2.0, 3.0])
    assert end == 6.0
    assert slots["momentum/w"][0] == 4.0


def test_adam_by_hand():
    """beta1 is .5, beta2 is .75 and eta is .1.

    Step 1: m' = 2, v' = 4, w = .1. Step 2: m = 2, m' = 2.666667, v = 3, v' = 6.857143, w = .1 + .101835.
    """
    hyper = {"learning_rate": 0.1, "beta1": 0.5, "beta2": 0.75, "epsilon": 1e-12}
    assert run_optimizer("adam", hyper, [2.0])[0] == pytest.approx(0.1)
    end, slots = run_optimizer("adam", hyper, [2.0, 3.0])
    assert slots["momentum/w"][0] == pytest.approx(2.0)
    assert slots["velocity/w"][0] == pytest.approx(3.0)
    assert float(slots["step"]) == 2
    assert end == pytest.approx(0.1 + 0.1 * (8 / 3) / np.sqrt(48 / 7), abs=1e-7)


def test_yogi_by_hand():
    """v goes from 0 to 1 as in Adam.

    Then v < d^2 = 9, so v + .25 * 9 = 3.25, where Adam has 3. With d = .5, v > d^2, so v is 1 - .0625.
    """
    hyper = {"learning_rate": 0.1, "beta1": 0.5, "beta2": 0.75}
    assert run_optimizer("yogi", hyper, [2.0, 3.0])[1]["velocity/w"][0] == pytest.approx(3.25)
    assert run_optimizer("yogi", hyper, [2.0, 0.5])[1]["velocity/w"][0] == pytest.approx(0.9375)


def test_adam_takes_the_same_steps_as_keras():
    keras = pytest.importorskip("keras")
    deltas = np.random.default_rng(3).normal(size=(5, 4)).astype(np.float32)
    variable = keras.Variable(np.zeros(4, np.float32))
    optimizer = keras.optimizers.Adam(0.01, epsilon=1e-8)
    weights = {"w": np.zeros(4, np.float32)}
    slots = {}
    for delta in deltas:
        optimizer.apply([-delta], [variable])
        weights, slots = step_optimizer("adam", {"learning_rate": 0.01}, weights, {"w": delta}, slots)
    np.testing.assert_allclose(weights["w"], variable.numpy(), atol=1e-6)


def test_statistics_are_averaged_not_optimized():
    weights = {"bn/moving_variance": np.array([1.0], np.float32), "bn/gamma": np.array([1.0], np.float32)}
    delta = {name: np.array([-0.001], np.float32) for name in weights}
    new, slots = step_optimizer("adam", {"learning_rate": 2.0}, weights, delta, {})
    assert new["bn/moving_variance"][0] == pytest.approx(0.999)
    assert new["bn/gamma"][0] == pytest.approx(-1.0, abs=1e-4)
    assert set(slots) == {"momentum/bn/gamma", "velocity/bn/gamma", "step"}


@settings(max_examples=30, deadline=None)
@given(
    name=st.sampled_from(OPTIMIZERS),
    deltas=st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=5),
)
def test_step_is_finite_and_pure_and_keeps_weights_without_delta(name, deltas):
    weights = {"w": np.array([1.0, 1.0], np.float32)}
    slots = {}
    for value in deltas:
        slots_before = {key: array.copy() for key, array in slots.items()}
        delta = {"w": np.array([value, 0.0], np.float32)}
        new, after = step_optimizer(name, {}, weights, delta, slots)
        assert all(np.array_equal(slots[key], slots_before[key]) for key in slots)
        assert new["w"].dtype == np.float32
        assert np.isfinite(new["w"]).all()
        assert all(array.dtype == np.float32 for array in after.values())
        weights = new
        slots = after
    assert weights["w"][1] == 1.0


@pytest.mark.parametrize(
    ("name", "hyper", "message"),
    [
        ("adan", {}, "did you mean 'adam'"),
        ("adam", {"beta_1": 0.9}, "did you mean 'beta1'"),
        ("adam", {"beta2": 1.0}, "below 1"),
        ("adam", {"epsilon": 0.0}, "above 0"),
    ],
)
def test_invalid_optimizer_setting_is_an_error(name, hyper, message):
    with pytest.raises(ConfigError, match=message):
        check_optimizer(name, hyper)


def test_learning_rate_of_zero_means_the_default():
    assert check_optimizer("adam", {"learning_rate": 0.0})["learning_rate"] == 0.001
    assert check_optimizer("none", {})["learning_rate"] == 1.0

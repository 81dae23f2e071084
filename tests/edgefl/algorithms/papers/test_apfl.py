"""APFL: a step of both models and a step of alpha by hand, and the range of alpha."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgefl.algorithms import make_algorithm
from edgefl.algorithms.names import with_prefix
from edgefl.algorithms.papers.apfl import PERSONAL_MODEL_PREFIX, interpolate_models
from edgefl.errors import ConfigError
from edgefl.learner.litert import LiteRTLearner
from edgefl.rng import derive_rng
from edgefl.types import ClientState


def train_client(one_sample, state, **options):
    return one_sample.train(one_sample.make_algorithm("apfl", **options), state, one_sample.start)


def test_a_step_of_both_models_by_hand(one_sample):
    """With alpha .5 and v = w, the copy moves by .5 and v by alpha times that. Each loss is log 2."""
    update, state = train_client(one_sample, ClientState())
    np.testing.assert_allclose(update.deltas["global"]["head/bias"], [0.5, -0.5], atol=1e-6)
    np.testing.assert_allclose(state.arrays["head/bias"], [0.25, -0.25], atol=1e-6)
    assert state.scalars["alpha"] == 0.5
    assert update.metrics["loss"] == pytest.approx(np.log(2), abs=1e-6)


@pytest.mark.parametrize(("rate", "expected"), [(0.1, 0.5537883), (1.0, 1.0), (0.0, 0.5)])
def test_step_of_alpha_by_hand(one_sample, rate, expected):
    """The bias of v is (1, -1) and the bias of w is 0, so the mixture's p is .731059.

    Then <v - w, gradient> = -.537883, and alpha 1.0379 is cut to 1.
    """
    personal = {**one_sample.start, "head/bias": np.array([1.0, -1.0], np.float32)}
    _, state = train_client(one_sample, ClientState(personal, {"alpha": 0.5}), alpha_learning_rate=rate)
    assert state.scalars["alpha"] == pytest.approx(expected, abs=1e-6)


def test_alpha_is_constant_when_not_adaptive(one_sample):
    personal = {**one_sample.start, "head/bias": np.array([1.0, -1.0], np.float32)}
    _, state = train_client(one_sample, ClientState(personal, {"alpha": 0.25}), adaptive=False)
    assert state.scalars["alpha"] == 0.25


def test_the_mixture_mixes_weights_but_not_statistics():
    model = {
        "w": np.array([0.0], np.float32),
        "bn/moving_mean": np.array([8.0], np.float32),
        "frozen": np.array([3.0], np.float32),
    }
    personal = {"w": np.array([4.0], np.float32), "bn/moving_mean": np.array([2.0], np.float32)}
    mixed = interpolate_models(model, personal, 0.25)
    assert {name: float(array[0]) for name, array in mixed.items()} == {
        "w": 1.0,
        "bn/moving_mean": 2.0,
        "frozen": 3.0,
    }


def test_personalization_trains_once_more_and_interpolates(one_sample):
    """v and w are as after one step, so the result is .5 * .25 + .5 * .5."""
    mixture, state = one_sample.personalize(
        one_sample.make_algorithm("apfl"), ClientState(), {"global": one_sample.start}
    )
    np.testing.assert_allclose(mixture.weights["head/bias"], [0.375, -0.375], atol=1e-6)
    np.testing.assert_array_equal(mixture.peers["federated"].weights["head/bias"], [0, 0])
    assert mixture.diagnostics == {"alpha": 0.5} == state.scalars


@settings(max_examples=25, deadline=None)
@given(bias=st.floats(-50, 50, width=32), alpha=st.floats(0, 1), rate=st.floats(0, 10))
def test_alpha_stays_between_zero_and_one(one_sample, bias, alpha, rate):
    personal = {**one_sample.start, "head/bias": np.array([bias, -bias], np.float32)}
    _, state = train_client(one_sample, ClientState(personal, {"alpha": alpha}), alpha_learning_rate=rate)
    assert 0 <= state.scalars["alpha"] <= 1


def test_personal_model_and_alpha_stay_on_the_device(one_sample):
    """Another v or alpha changes nothing in the update, except for the loss, a mean of both models."""
    updates = []
    for value, alpha in ((0.0, 0.5), (3.0, 0.25)):
        personal = {**one_sample.start, "head/bias": np.array([value, -value], np.float32)}
        update, _ = train_client(one_sample, ClientState(personal, {"alpha": alpha}))
        assert set(update.deltas) == {"global"} and set(update.deltas["global"]) == set(one_sample.start)
        assert update.metrics.keys() == {"loss"}
        updates.append(update)
    for name, delta in updates[0].deltas["global"].items():
        np.testing.assert_array_equal(delta, updates[1].deltas["global"][name])


def test_compiled_steps_are_those_of_numpy(tiny_config, digits):
    """One step on a batch in the compiled plan. With output kernels of zero, the logits are the biases.

    w moves by the gradient of its own loss alone, and v by alpha times the gradient of the mixture's loss.
    """
    from edgefl.algorithms.plans import build_plan

    options = {"epochs": 1, "learning_rate": 0.1, "momentum": 0.0, "batch_size": 8}
    plan, initial = build_plan(replace(tiny_config, algorithm="apfl", options=options))
    learner = LiteRTLearner(plan)
    x, y = digits[0][:8], np.array([0, 0, 0, 1, 1, 2, 2, 2])
    rng = np.random.default_rng(1)
    w, v = rng.normal(size=(2, 10)).astype(np.float32)
    alpha = np.float32(0.3)
    kernel = np.zeros((16, 10), np.float32)
    common = {**initial, **with_prefix(PERSONAL_MODEL_PREFIX, initial), "alpha": alpha}
    weights = {
        **common,
        "fc2/kernel": kernel,
        f"{PERSONAL_MODEL_PREFIX}/fc2/kernel": kernel,
        "fc2/bias": w,
        f"{PERSONAL_MODEL_PREFIX}/fc2/bias": v,
    }
    shares = np.bincount(y, minlength=10) / 8
    p, mixed = softmax(w), softmax(alpha * v + (1 - alpha) * w)
    both, loss = learner.fit("train_both", weights, {"x": x}, y, epochs=1, rng=derive_rng(1, 1))
    np.testing.assert_allclose(both["fc2/bias"], w + 0.1 * (shares - p), atol=1e-5)
    np.testing.assert_allclose(
        both[f"{PERSONAL_MODEL_PREFIX}/fc2/bias"], v + 0.1 * alpha * (shares - mixed), atol=1e-5
    )
    assert loss == pytest.approx(-float((shares[:3] * np.log(p * mixed)[:3]).sum()), abs=1e-4)
    trained, _ = learner.fit(
        "train_alpha", weights, {"x": x}, y, epochs=1, rng=derive_rng(1, 1), hyper={"learning_rate": 0.1}
    )
    assert float(trained["alpha"]) == pytest.approx(0.3 - 0.1 * float((v - w) @ (mixed - shares)), abs=1e-5)


def softmax(logits):
    p = np.exp(logits - logits.max())
    return p / p.sum()


def test_an_alpha_above_one_is_an_error():
    with pytest.raises(ConfigError, match="from 0 to 1"):
        make_algorithm("apfl", None, {"alpha": 1.5})

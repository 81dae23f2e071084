"""Class shares inferred from an update: four samples by hand, a step of the numpy learner, random shares."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.audit.labels import (
    OutputLayer,
    correlation,
    count_shares,
    infer_shares_from_direction,
    infer_shares_from_step,
    read_labels,
    total_variation,
)
from edgefl.rng import derive_rng
from tests.support.numpy_learner.softmax import SoftmaxLearner, softmax_spec

KERNEL = np.array([[1, 0, -1, 0], [0, 2, 0, 0], [1, 1, 1, -1], [0, 0, 0, 1]], np.float32)
LAYER = OutputLayer("out/kernel", "out/bias", "fc/bias", KERNEL)


def test_four_samples_by_hand():
    """Labels 0, 0, 0, 1 of four classes, p = 1/4.

    The gradient is (-.5, 0, .25, .25). A step of .1 changes the bias by (.05, 0, -.025, -.025).
    """
    delta = [0.05, 0.0, -0.025, -0.025]
    np.testing.assert_allclose(infer_shares_from_step(delta, 0.1), [0.75, 0.25, 0, 0], atol=1e-12)
    np.testing.assert_allclose(infer_shares_from_direction(delta), [0.75, 0.25, 0, 0], atol=1e-12)
    np.testing.assert_allclose(
        infer_shares_from_direction([3 * d for d in delta]), [0.75, 0.25, 0, 0], atol=1e-12
    )
    np.testing.assert_array_equal(count_shares(np.array([0, 0, 0, 1]), 4), [0.75, 0.25, 0, 0])


def test_distance_and_correlation_by_hand():
    assert total_variation([0.75, 0.25, 0, 0], [0.25] * 4) == 0.5
    assert total_variation([1, 0], [0, 1]) == 1.0
    assert correlation([0.5, 0.3, 0.2], [0.2, 0.3, 0.5]) == pytest.approx(-13 / 14)
    assert correlation([0.5, 0.3, 0.2], [1.0, 0.6, 0.4]) == pytest.approx(1.0)
    assert np.isnan(correlation([0.5, 0.5], [0.1, 0.9]))


def test_a_step_of_softmax_regression_from_zero_tells_all():
    """A model of zeros gives each class 1/3 for any sample, so that equation 15 is exact."""
    learner = SoftmaxLearner(softmax_spec("fedavg", inputs=4, features=2, classes=3, batch_size=50))
    rng = np.random.default_rng(1)
    x = rng.normal(size=(50, 4)).astype(np.float32)
    y = rng.choice(3, 50, p=[0.7, 0.2, 0.1])
    zeros = {
        "trunk/kernel": np.ones((4, 2), np.float32),
        "head/kernel": np.zeros((2, 3), np.float32),
        "head/bias": np.zeros(3, np.float32),
    }
    moved, _ = learner.fit(
        "train", zeros, {"x": x}, y, epochs=1, rng=derive_rng(1, 1), hyper={"learning_rate": 0.2}
    )
    np.testing.assert_allclose(infer_shares_from_step(moved["head/bias"], 0.2), count_shares(y, 3), atol=1e-6)


def layer_deltas(shares):
    """Return the deltas of one step of size 1, for samples with features of 1 and active hidden units."""
    away = np.asarray(shares, np.float32) - np.float32(0.25)
    return {"out/bias": away, "out/kernel": np.tile(away, (4, 1)), "fc/bias": KERNEL @ away}


@pytest.mark.parametrize(
    ("withheld", "source"), [([], "bias"), (["out/bias"], "kernel"), (["out/bias", "out/kernel"], "hidden")]
)
def test_each_of_three_places_tells(withheld, source):
    shares = [0.5, 0.3, 0.2, 0.0]
    found = layer_deltas(shares)
    zeroed = {name: np.zeros_like(array) if name in withheld else array for name, array in found.items()}
    absent = {name: array for name, array in found.items() if name not in withheld}
    for delta in (zeroed, absent):
        reading = read_labels(delta, LAYER)
        assert reading.source == source
        np.testing.assert_allclose(reading.shares, shares, atol=1e-6)


def test_what_is_all_withheld_tells_nothing():
    reading = read_labels(
        {name: np.zeros_like(array) for name, array in layer_deltas([1, 0, 0, 0]).items()}, LAYER
    )
    assert reading.source == "nothing"
    np.testing.assert_array_equal(reading.shares, [0.25] * 4)


@given(
    counts=st.lists(st.integers(0, 50), min_size=2, max_size=12).filter(any),
    rate=st.floats(1e-3, 1.0),
    scale=st.floats(1e-3, 10.0),
)
def test_any_shares_come_back(counts, rate, scale):
    truth = np.array(counts) / sum(counts)
    away = truth - 1 / len(truth)
    np.testing.assert_allclose(infer_shares_from_step(rate * away, rate), truth, atol=1e-9)
    found = infer_shares_from_direction(scale * away)
    assert found.sum() == pytest.approx(1)
    assert found.min() >= 0
    if 0 in counts:
        np.testing.assert_allclose(found, truth, atol=1e-6)
    else:
        assert np.array_equal(np.argsort(found, kind="stable"), np.argsort(away, kind="stable"))

"""Class shares inferred from an update: four samples by hand, a step of the numpy learner, random shares."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.base.rng import derive_rng
from edgefl.watch.audit.labels import (
    OutputLayer,
    correlation,
    count_shares,
    infer_shares_from_direction,
    infer_shares_from_step,
    read_labels,
    total_variation,
)
from tests.support.numpy_learner.softmax import SoftmaxLearner, softmax_spec

KERNEL = np.array([[1, 0, -1, 0], [0, 2, 0, 0], [1, 1, 1, -1], [0, 0, 0, 1]], np.float32)
LAYER = OutputLayer(kernel="out/kernel", bias="out/bias", hidden="fc/bias", sent=KERNEL)


def test_shares_of_four_samples_by_hand():
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


def test_first_step_of_softmax_regression_reveals_exact_shares():
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
    trained, _ = learner.fit(
        "train", zeros, {"x": x}, y, epochs=1, rng=derive_rng(1, 1), hyper={"learning_rate": 0.2}
    )
    np.testing.assert_allclose(
        infer_shares_from_step(trained["head/bias"], 0.2), count_shares(y, 3), atol=1e-6
    )


def make_layer_deltas(shares):
    """Return the deltas of one step of size 1, for samples with features of 1 and active hidden units."""
    deviation = np.asarray(shares, np.float32) - np.float32(0.25)
    return {"out/bias": deviation, "out/kernel": np.tile(deviation, (4, 1)), "fc/bias": KERNEL @ deviation}


@pytest.mark.parametrize(
    ("withheld", "source"), [([], "bias"), (["out/bias"], "kernel"), (["out/bias", "out/kernel"], "hidden")]
)
def test_shares_are_read_from_bias_kernel_or_hidden_layer(withheld, source):
    shares = [0.5, 0.3, 0.2, 0.0]
    deltas = make_layer_deltas(shares)
    zeroed = {name: np.zeros_like(array) if name in withheld else array for name, array in deltas.items()}
    absent = {name: array for name, array in deltas.items() if name not in withheld}
    for delta in (zeroed, absent):
        reading = read_labels(delta, LAYER)
        assert reading.source == source
        np.testing.assert_allclose(reading.shares, shares, atol=1e-6)


def test_update_with_all_layers_withheld_reveals_nothing():
    reading = read_labels(
        {name: np.zeros_like(array) for name, array in make_layer_deltas([1, 0, 0, 0]).items()}, LAYER
    )
    assert reading.source == "nothing"
    np.testing.assert_array_equal(reading.shares, [0.25] * 4)


@given(
    counts=st.lists(st.integers(0, 50), min_size=2, max_size=12).filter(any),
    rate=st.floats(1e-3, 1.0),
    scale=st.floats(1e-3, 10.0),
)
def test_shares_are_recovered_from_step_and_direction(counts, rate, scale):
    truth = np.array(counts) / sum(counts)
    deviation = truth - 1 / len(truth)
    np.testing.assert_allclose(infer_shares_from_step(rate * deviation, rate), truth, atol=1e-9)
    inferred = infer_shares_from_direction(scale * deviation)
    assert inferred.sum() == pytest.approx(1)
    assert inferred.min() >= 0
    if 0 in counts:
        np.testing.assert_allclose(inferred, truth, atol=1e-6)
    else:
        assert np.array_equal(np.argsort(inferred, kind="stable"), np.argsort(deviation, kind="stable"))

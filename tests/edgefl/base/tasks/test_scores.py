"""Losses and scores by hand, against scikit-learn, and against the losses of the plan."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from edgefl.base.tasks.scores import (
    measure_alarms,
    measure_auc,
    measure_explained_share,
    measure_r2,
    measure_sample_losses,
    rank_among,
)

OUTPUTS = np.array([[1.0, 2.0], [0.0, -3.0]])
TARGETS = np.array([[0.0, 2.5], [0.0, 1.0]], np.float32)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("mse", [(1 + 0.25) / 2, 16 / 2]),
        ("mae", [(1 + 0.5) / 2, 4 / 2]),
        ("huber", [(0.5 + 0.125) / 2, (4 - 0.5) / 2]),
    ],
)
def test_losses_are_means_over_outputs(loss: str, expected: list[float]) -> None:
    np.testing.assert_allclose(measure_sample_losses(loss, OUTPUTS, TARGETS), expected)


def test_unknown_loss_is_refused() -> None:
    with pytest.raises(ValueError, match="no loss 'hinge', expected mse, mae or huber"):
        measure_sample_losses("hinge", OUTPUTS, TARGETS)


def test_area_under_the_curve_by_hand() -> None:
    """Positive scores 3 and 2 against 1 and 2: three pairs are right, and one is a tie."""
    scores = np.array([3.0, 2.0, 1.0, 2.0])
    assert measure_auc(scores, np.array([True, True, False, False])) == 3.5 / 4
    assert math.isnan(measure_auc(scores, np.ones(4, bool)))
    assert math.isnan(measure_auc(np.array([1.0, np.nan]), np.array([True, False])))


@given(arrays(np.float64, 12, elements=st.integers(0, 5).map(float)), st.integers(1, 4094))
def test_area_under_the_curve_equals_scikit_learn(scores: np.ndarray, bits: int) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    positive = np.array([bits >> i & 1 for i in range(12)], bool)
    assert measure_auc(scores, positive) == pytest.approx(metrics.roc_auc_score(positive, scores))


def test_ranks_count_ties_half() -> None:
    assert rank_among(np.array([0.0, 1.0, 2.0, 9.0]), np.array([2.0, 1.0])).tolist() == [0, 0.25, 0.75, 1]


def test_explained_variance_by_hand_and_as_scikit_learn() -> None:
    targets = np.array([[1.0], [2.0], [3.0]])
    assert measure_r2(targets, targets) == 1
    assert measure_r2(np.full((3, 1), 2.0), targets) == 0
    assert measure_r2(np.array([[1.0], [2.0], [4.0]]), targets) == 0.5
    assert math.isnan(measure_r2(targets, np.ones((3, 1))))
    assert math.isnan(measure_r2(targets[:0], targets[:0]))
    assert math.isnan(measure_explained_share(targets, np.ones((3, 1)))), "nothing varies"
    assert measure_explained_share(np.full((3, 1), 9.0), targets) == 0
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(1)
    outputs, expected = rng.normal(size=(2, 50, 3))
    pooled = metrics.r2_score(expected, outputs, multioutput="variance_weighted")
    assert measure_r2(outputs, expected) == pytest.approx(pooled)


def test_alarms_are_counted() -> None:
    alarm = np.array([True, True, True, False, False])
    positive = np.array([True, True, False, True, False])
    measured = measure_alarms(alarm, positive)
    assert measured["precision"] == measured["recall"] == measured["f1"] == pytest.approx(2 / 3)
    assert measured["false_alarm_rate"] == 0.5
    assert all(math.isnan(measure_alarms(alarm[:0], positive[:0])[name]) for name in measured)

"""Losses and scores of the tasks, in numpy.

Sources: the area under the ROC curve by ranks is the statistic of Mann and Whitney, Annals of Mathematical
Statistics 18 (1947). The Huber loss has delta 1 (Huber, Annals of Mathematical Statistics 35, 1964, eq. 1).
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

HUBER_DELTA = 1.0
Floats = NDArray[np.float64]


def measure_sample_losses(loss: str, outputs: NDArray[Any], targets: NDArray[Any]) -> Floats:
    """Return the loss of each sample, the mean over its outputs.

    Args:
        loss: `mse`, `mae` or `huber`.
        outputs: outputs of a model, shape (n, k).
        targets: the values to predict, shape (n, k).

    Returns:
        The losses, shape (n,), float64.

    Raises:
        ValueError: the loss is unknown.
    """
    errors = np.abs(np.asarray(outputs, np.float64) - targets)
    if loss == "mse":
        values = errors**2
    elif loss == "mae":
        values = errors
    elif loss == "huber":
        quadratic = np.minimum(errors, HUBER_DELTA)
        values = 0.5 * quadratic**2 + HUBER_DELTA * (errors - quadratic)
    else:
        raise ValueError(f"no loss {loss!r}, expected mse, mae or huber")
    return np.asarray(values.mean(axis=1))


def measure_auc(scores: NDArray[Any], is_positive: NDArray[np.bool_]) -> float:
    """Return the area under the ROC curve: the chance that a positive sample has the higher score.

    Equal scores count half.

    Args:
        scores: scores, shape (n,). More means positive.
        is_positive: whether each sample is positive, shape (n,).

    Returns:
        The area, from 0 to 1. NaN without positive or without negative samples, or with a NaN among the
        scores.
    """
    positive, negative = scores[is_positive], scores[~is_positive]
    if not len(positive) or not len(negative) or np.isnan(scores).any():
        return float("nan")
    return float(rank_among(positive, negative).mean())


def rank_among(scores: NDArray[Any], others: NDArray[Any]) -> Floats:
    """Return for each score the share of other scores that are lower. Equal ones count half.

    Args:
        scores: scores, shape (n,).
        others: scores to compare with, shape (m,), m > 0.

    Returns:
        The shares, shape (n,), float64, from 0 to 1.
    """
    ordered = np.sort(others)
    lower = np.searchsorted(ordered, scores, "left")
    not_higher = np.searchsorted(ordered, scores, "right")
    return np.asarray((lower + not_higher) / (2 * len(ordered)))


def measure_r2(outputs: NDArray[Any], targets: NDArray[Any]) -> float:
    """Return the share of the targets' variance that the outputs explain, R2.

    Args:
        outputs: outputs of a model, shape (n, k).
        targets: the values to predict, shape (n, k).

    Returns:
        At most 1. 0 for the mean of the targets, below 0 for less than that. NaN if the targets do not vary.
    """
    expected = np.asarray(targets, np.float64)
    spread = float(((expected - expected.mean(axis=0)) ** 2).sum()) if len(expected) else 0.0
    if not spread:
        return float("nan")
    return 1 - float(((np.asarray(outputs, np.float64) - expected) ** 2).sum()) / spread


def measure_explained_share(outputs: NDArray[Any], targets: NDArray[Any]) -> float:
    """Return R2, or 0 if it is negative: the share of the variance that a model explains, from 0 to 1.

    Args:
        outputs: outputs of a model, shape (n, k).
        targets: the values to predict, shape (n, k).

    Returns:
        The share. NaN if the targets do not vary, so that nothing can be explained.
    """
    share = measure_r2(outputs, targets)
    return share if math.isnan(share) else max(0.0, share)


def measure_alarms(is_alarm: NDArray[np.bool_], is_positive: NDArray[np.bool_]) -> dict[str, float]:
    """Return precision, recall, F1 and the false-alarm rate of alarms.

    Args:
        is_alarm: whether each sample raises an alarm, shape (n,).
        is_positive: whether each sample is an anomaly, shape (n,).

    Returns:
        `precision`, `recall`, `f1` and `false_alarm_rate`, from 0 to 1. A figure without samples is NaN.
    """
    hits = float((is_alarm & is_positive).sum())
    alarms, positives, negatives = (float(part.sum()) for part in (is_alarm, is_positive, ~is_positive))

    def divide(part: float, whole: float) -> float:
        return part / whole if whole else float("nan")

    return {
        "precision": divide(hits, alarms),
        "recall": divide(hits, positives),
        "f1": divide(2 * hits, alarms + positives) if positives else float("nan"),
        "false_alarm_rate": divide(alarms - hits, negatives),
    }

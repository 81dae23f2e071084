"""Summarizes the figures of a personalized federation over clients and classes. Pure functions."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class FigureSummary:
    """The distribution of one figure over clients.

    Attributes:
        mean: mean over clients.
        weighted: mean weighted by the clients' sizes.
        std: standard deviation over clients.
        p10: 10th percentile over clients.
        count: number of clients that have the figure.
    """

    mean: float
    weighted: float
    std: float
    p10: float
    count: int


def summarize_figure(values: ArrayLike, sizes: ArrayLike) -> FigureSummary:
    """Return the distribution of a figure over clients.

    NaN and infinite values are left out. The standard deviation divides by the number of clients.

    Args:
        values: the figure of each client, shape (clients,).
        sizes: weight of each client, shape (clients,), 0 or more.

    Returns:
        The distribution. All statistics are NaN if no value is finite. The weighted mean is NaN if no weight
            is above 0.
    """
    finite_values = np.asarray(values, np.float64)
    weights = np.asarray(sizes, np.float64)
    is_finite = np.isfinite(finite_values)
    finite_values = finite_values[is_finite]
    weights = weights[is_finite]
    if not len(finite_values):
        nan = float("nan")
        return FigureSummary(mean=nan, weighted=nan, std=nan, p10=nan, count=0)
    weighted = float(np.average(finite_values, weights=weights)) if weights.sum() > 0 else float("nan")
    return FigureSummary(
        mean=float(finite_values.mean()),
        weighted=weighted,
        std=float(finite_values.std()),
        p10=float(np.percentile(finite_values, 10)),
        count=len(finite_values),
    )


def compute_cdf(values: ArrayLike) -> tuple[Vector, Vector]:
    """Return the empirical cumulative distribution of a figure over clients.

    NaN and infinite values are left out.

    Args:
        values: the figure of each client, shape (clients,).

    Returns:
        The sorted values, and for each of them the share of clients with at most this value. Both have one
            element per finite value, float64.
    """
    sorted_values = np.sort(np.asarray(values, np.float64))
    sorted_values = sorted_values[np.isfinite(sorted_values)]
    return sorted_values, np.arange(1, len(sorted_values) + 1) / max(1, len(sorted_values))


def estimate_local_accuracy(by_class: ArrayLike, class_share: ArrayLike) -> float:
    """Return the expected accuracy on a client's mix of classes: the sum of accuracy times share.

    A class that the test set lacks is left out, and the other shares are rescaled to a sum of one.

    Args:
        by_class: accuracy of each class on the test set, shape (classes,). NaN for a class without samples.
        class_share: share of each class in the client's samples, shape (classes,).

    Returns:
        The accuracy, NaN if no class remains.

    Source: PFL-MoE (Guo et al. 2020), section V.
    """
    accuracy = np.asarray(by_class, np.float64)
    share = np.asarray(class_share, np.float64)
    is_counted = np.isfinite(accuracy) & (share > 0)
    return (
        float(np.average(accuracy[is_counted], weights=share[is_counted]))
        if is_counted.any()
        else float("nan")
    )


def estimate_global_accuracy(by_class: ArrayLike, counts: ArrayLike) -> float:
    """Return the accuracy on a test set from the accuracies by class.

    Args:
        by_class: accuracy of each class, shape (classes,). NaN for a class without samples.
        counts: number of test samples of each class, shape (classes,).

    Returns:
        The accuracy, NaN if no class has samples.
    """
    return estimate_local_accuracy(by_class, counts)

"""How a personalized federation is measured: over clients and over classes. Pure functions."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class FigureSummary:
    """One figure over clients: plain mean, mean weighted by size, standard deviation over clients, 10th
    percentile.
    """

    mean: float
    weighted: float
    std: float
    p10: float
    count: int


def summarize_figure(values: ArrayLike, sizes: ArrayLike) -> FigureSummary:
    """Return the distribution of a figure over clients.

    NaN values are left out. The standard deviation is the one of the population. All results are NaN if no
    value is a number.

    Args:
        values: float[clients].
        sizes: weights of the clients, float[clients], above 0.
    """
    finite_values = np.asarray(values, np.float64)
    weights = np.asarray(sizes, np.float64)
    is_finite = np.isfinite(finite_values)
    finite_values = finite_values[is_finite]
    weights = weights[is_finite]
    if not len(finite_values):
        return FigureSummary(*(float("nan"),) * 4, 0)
    weighted = float(np.average(finite_values, weights=weights)) if weights.sum() > 0 else float("nan")
    return FigureSummary(
        float(finite_values.mean()),
        weighted,
        float(finite_values.std()),
        float(np.percentile(finite_values, 10)),
        len(finite_values),
    )


def compute_cdf(values: ArrayLike) -> tuple[Vector, Vector]:
    """Return (sorted values, share of clients with at most that value), both float64[clients].

    NaN values are left out.
    """
    sorted_values = np.sort(np.asarray(values, np.float64))
    sorted_values = sorted_values[np.isfinite(sorted_values)]
    return sorted_values, np.arange(1, len(sorted_values) + 1) / max(1, len(sorted_values))


def estimate_local_accuracy(by_class: ArrayLike, class_share: ArrayLike) -> float:
    """Return the expected accuracy on a client's own classes: the sum over classes of accuracy times share.

    A class that the client has and the test set lacks is left out, and the other shares are rescaled to a
    sum of one. The result is NaN if no class remains. Both arguments are float[classes].

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
    """Return the plain accuracy on a test set with `counts` samples of each class."""
    return estimate_local_accuracy(by_class, counts)

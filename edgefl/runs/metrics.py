"""How a personalized federation is measured: over clients and over classes. Pure functions."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Spread:
    """One figure over clients: plain mean, mean weighted by size, standard deviation over clients, 10th
    percentile.
    """

    mean: float
    weighted: float
    std: float
    p10: float
    count: int


def spread(values: ArrayLike, sizes: ArrayLike) -> Spread:
    """Return how a figure is spread over clients: values float[clients], sizes float[clients] > 0.

    NaN values are left out.

    The standard deviation is that of the population. All is NaN when no value is a number.
    """
    found = np.asarray(values, np.float64)
    weights = np.asarray(sizes, np.float64)
    known = np.isfinite(found)
    found = found[known]
    weights = weights[known]
    if not len(found):
        return Spread(*(float("nan"),) * 4, 0)
    weighted = float(np.average(found, weights=weights)) if weights.sum() > 0 else float("nan")
    return Spread(
        float(found.mean()), weighted, float(found.std()), float(np.percentile(found, 10)), len(found)
    )


def cdf(values: ArrayLike) -> tuple[Vector, Vector]:
    """Return (sorted values, share of clients with at most that value), both float64[clients].

    NaN values are left out.
    """
    found = np.sort(np.asarray(values, np.float64))
    found = found[np.isfinite(found)]
    return found, np.arange(1, len(found) + 1) / max(1, len(found))


def local_test(by_class: ArrayLike, class_share: ArrayLike) -> float:
    """Return the accuracy that a client can expect on its own classes: sum over classes of accuracy times the
    client's share.

    Both are float[classes]; PFL-MoE (Guo et al. 2020), section V. A class that the client has and the test
    set has not is left out, the shares of the others then sum to one; NaN when nothing is left.
    """
    accuracy = np.asarray(by_class, np.float64)
    share = np.asarray(class_share, np.float64)
    known = np.isfinite(accuracy) & (share > 0)
    return float(np.average(accuracy[known], weights=share[known])) if known.any() else float("nan")


def global_test(by_class: ArrayLike, counts: ArrayLike) -> float:
    """Return the plain accuracy on a test set with `counts` samples of each class."""
    return local_test(by_class, counts)

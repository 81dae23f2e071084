"""Divides samples by class. Each client gets a number of samples of each class, and no sample goes to two."""

import math

import numpy as np
from numpy.typing import NDArray

from edgefl.base.errors import DataError
from edgefl.base.types import Labels

CountArray = NDArray[np.int64]


def partition_by_counts(
    labels: Labels, counts: CountArray, rng: np.random.Generator, part: str = "training"
) -> list[Labels]:
    """Draw a number of samples of each class for each client, without replacement.

    Args:
        labels: the class of each sample, shape (n,), int64.
        counts: samples of each class for each client, shape (num_clients, num_classes), int64.
        part: name of the part of the data set, for errors.

    Returns:
        Sorted sample indices of each client, int64.

    Raises:
        DataError: a class has fewer samples than the clients need.
    """
    num_classes = counts.shape[1]
    have = np.bincount(labels, minlength=num_classes)
    need = counts.sum(axis=0)
    for label in np.flatnonzero(need > have[:num_classes]).tolist():
        raise DataError(
            f"class {label} has {have[label]} {part} samples, the {len(counts)} clients need "
            f"{need[label]}; use fewer clients or fewer samples per client"
        )
    pieces = []
    for label in range(num_classes):
        indices = rng.permutation(np.flatnonzero(labels == label))[: need[label]]
        pieces.append(np.split(indices, np.cumsum(counts[:-1, label])))
    return [np.sort(np.concatenate(parts)).astype(np.int64) for parts in zip(*pieces, strict=True)]


def partition_evenly(
    count: int, num_clients: int, per_client: int, rng: np.random.Generator, part: str = "training"
) -> list[Labels]:
    """Draw the same number of samples for each client, regardless of class and without replacement.

    Args:
        per_client: samples per client. 0 divides all samples as evenly as possible.
        part: name of the part of the data set, for errors.

    Returns:
        Sorted sample indices of each client, int64.

    Raises:
        DataError: there are fewer samples than the clients need.
    """
    if per_client * num_clients > count or num_clients > count:
        raise DataError(
            f"there are {count} {part} samples, the {num_clients} clients need "
            f"{max(per_client, 1) * num_clients}; use fewer clients or fewer samples per client"
        )
    order = rng.permutation(count)
    parts = (
        np.split(order[: per_client * num_clients], num_clients)
        if per_client
        else np.array_split(order, num_clients)
    )
    return [np.sort(indices).astype(np.int64) for indices in parts]


def apportion(total: int, weights: NDArray[np.float64]) -> CountArray:
    """Divide a whole number in proportion to weights, by the largest-remainder method.

    Each part is rounded down first. The rest goes to the largest remainders, and the first of equal
    remainders wins.

    Args:
        weights: weights of the parts, shape (n,), float64, with a positive sum.

    Returns:
        The parts, shape (n,), int64. They sum to `total`.
    """
    exact = total * weights / weights.sum()
    counts: CountArray = np.floor(exact + 1e-9).astype(np.int64)
    order = np.argsort(-(exact - counts), kind="stable")
    counts[order[: total - int(counts.sum())]] += 1
    return counts


def check_positive(**values: float) -> None:
    """Check that each value is a finite number above 0.

    Raises:
        DataError: a value is not. The message names its keyword.
    """
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise DataError(f"{name} is {value}, expected a number above 0")


def draw_dirichlet(
    alpha: float, size: int, rows: int, rng: np.random.Generator, name: str = "alpha"
) -> NDArray[np.float64]:
    """Draw rows from a symmetric Dirichlet distribution.

    Args:
        alpha: concentration, above 0. Small values give uneven rows.
        size: length of a row.
        name: name of the option, for errors.

    Returns:
        Probabilities, shape (rows, size), float64. Each row sums to 1.

    Raises:
        DataError: `alpha` is not above 0, or is too large or too small to draw from.
    """
    check_positive(**{name: alpha})
    drawn = rng.dirichlet(np.full(size, alpha), rows)
    if not np.isfinite(drawn).all():
        raise DataError(
            f"{name} is {alpha}, too large or too small to draw from; .5 is usual, 100 is nearly even"
        )
    return drawn

"""Samples dealt out by class: so many of each class to each client, no sample to two clients."""

import math

import numpy as np
from numpy.typing import NDArray

from edgefl.errors import DataError
from edgefl.types import Labels

CountArray = NDArray[np.int64]


def partition_by_counts(
    labels: Labels, counts: CountArray, rng: np.random.Generator, part: str = "training"
) -> list[Labels]:
    """Deal counts: int64[num_clients, num_classes] out of the labels; return sorted indices a client.

    Raises DataError when a class has fewer samples than are asked for.
    """
    num_classes = counts.shape[1]
    have = np.bincount(labels, minlength=num_classes)
    need = counts.sum(axis=0)
    for label in np.flatnonzero(need > have[:num_classes]).tolist():
        raise DataError(
            f"class {label} has {have[label]} {part} samples, the {len(counts)} clients ask for "
            f"{need[label]}; take fewer clients or fewer samples a client"
        )
    pieces = []
    for label in range(num_classes):
        indices = rng.permutation(np.flatnonzero(labels == label))[: need[label]]
        pieces.append(np.split(indices, np.cumsum(counts[:-1, label])))
    return [np.sort(np.concatenate(parts)).astype(np.int64) for parts in zip(*pieces, strict=True)]


def partition_evenly(
    count: int, num_clients: int, per_client: int, rng: np.random.Generator, part: str = "training"
) -> list[Labels]:
    """Deal `each` of `count` samples to each client, whatever their class; 0 means all, as evenly as
    can be.
    """
    if per_client * num_clients > count or num_clients > count:
        raise DataError(
            f"{count} {part} samples, the {num_clients} clients ask for {max(per_client, 1) * num_clients}; "
            "take fewer clients or fewer samples a client"
        )
    order = rng.permutation(count)
    parts = (
        np.split(order[: per_client * num_clients], num_clients)
        if per_client
        else np.array_split(order, num_clients)
    )
    return [np.sort(indices).astype(np.int64) for indices in parts]


def apportion(total: int, weights: NDArray[np.float64]) -> CountArray:
    """Divide a whole number by weights: floors first, the rest to the largest remainders, the first of equals
    first.
    """
    exact = total * weights / weights.sum()
    counts: CountArray = np.floor(exact + 1e-9).astype(np.int64)
    order = np.argsort(-(exact - counts), kind="stable")
    counts[order[: total - int(counts.sum())]] += 1
    return counts


def check_positive(**values: float) -> None:
    """Raise DataError for a value that is not above 0, or without bound."""
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise DataError(f"{name} is {value}, expected a number above 0")


def draw_dirichlet(
    alpha: float, size: int, rows: int, rng: np.random.Generator, name: str = "alpha"
) -> NDArray[np.float64]:
    """Draw float64[rows, size] from Dirichlet(alpha).

    DataError when alpha is not above 0, or too large or small to be drawn.
    """
    check_positive(**{name: alpha})
    drawn = rng.dirichlet(np.full(size, alpha), rows)
    if not np.isfinite(drawn).all():
        raise DataError(f"{name} is {alpha}, which cannot be drawn from; .5 is usual, 100 is nearly even")
    return drawn

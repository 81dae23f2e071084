"""Stratified selection of held-out samples that never divides a group.

Groups are recordings, sessions or other samples that belong together. Samples of one group resemble each
other, so a model that trained on one half of a group looks better on the other half than it is.
"""

import numpy as np
from numpy.typing import NDArray

from edgefl.errors import DataError
from edgefl.types import Labels

MAX_RANDOM_ORDERS = 8
"""Number of random orders in which groups are assigned until each class is on each side."""


def hold_out(
    labels: Labels, groups: Labels | None, share: float, rng: np.random.Generator
) -> tuple[Labels, Labels]:
    """Return the rows to keep and the rows to hold out.

    A class with two rows (or two groups) or more is on both sides. Groups that hold several classes can make
    that impossible. A class with one row (or one group) is kept, unless that would leave nothing to hold out.

    Args:
        labels: int64[n], the class of each row.
        groups: int64[n], the group of each row; None when each row stands alone.
        share: share of the rows to hold out, above 0 and below 1.
        rng: the same generator state gives the same rows.

    Returns:
        Sorted int64 row indices: kept rows and held-out rows. Together they are all rows. With one row, or
        one group, nothing is held out.

    Raises:
        DataError: `share` is out of range.
    """
    if not 0 < share < 1:
        raise DataError(f"the share to hold out is {share}, expected a number above 0 and below 1")
    if groups is None:
        side = _hold_out_rows(labels, share, rng)
    else:
        side = _assign_rows(labels, groups, np.array([1 - share, share]), rng)
    return np.flatnonzero(side == 0), np.flatnonzero(side == 1)


def _hold_out_rows(labels: Labels, share: float, rng: np.random.Generator) -> Labels:
    """Return 1 for each held-out row and 0 for each other row."""
    side = np.zeros(len(labels), np.int64)
    order = rng.permutation(len(labels))
    for label in np.unique(labels):
        rows = order[labels[order] == label]
        side[rows[: count_held_out(len(rows), share)]] = 1
    if not side.any() and len(labels) > 1:
        side[order[0]] = 1
    return side


def count_held_out(count: int, share: float) -> int:
    """Return how many of `count` rows are held out: of two rows or more at least one, and never all."""
    return min(max(1, round(share * count)), count - 1) if count else 0


def _assign_rows(
    labels: Labels, groups: Labels, shares: NDArray[np.float64], rng: np.random.Generator
) -> Labels:
    """Return the side of each row. Rows of one group have one side. A class with one group is on side 0.

    Args:
        labels: int64[n].
        groups: int64[n].
        shares: the share of rows that each side should have.
        rng: breaks ties.
    """
    group_names, group = np.unique(groups, return_inverse=True)
    class_names, label = np.unique(labels, return_inverse=True)
    if len(group_names) < len(shares):
        return np.zeros(len(labels), np.int64)
    counts = np.zeros((len(group_names), len(class_names) + 1))
    np.add.at(counts, (group, label), 1)
    counts[:, -1] = counts.sum(axis=1)  # the last column stands for all rows: no side may be empty
    fewest, best = len(shares) * counts.shape[1] + 1, np.zeros(len(group_names), np.int64)
    for _ in range(MAX_RANDOM_ORDERS):
        sides, lacking = _assign_groups(counts, shares, rng)
        if lacking < fewest:
            fewest, best = lacking, sides
        if not lacking:
            break
    return best[group]


def _assign_groups(
    counts: NDArray[np.float64], shares: NDArray[np.float64], rng: np.random.Generator
) -> tuple[Labels, int]:
    """Return the side of each group, and how often a side lacks a class that it could have.

    Greedy, groups with rare classes and large groups first. A group goes where a class would otherwise be
    absent, else where the shares of its classes are furthest below their targets.
    Source: iterative stratification; K. Sechidis et al., On the Stratification of Multi-Label Data, ECML
    2011.

    Args:
        counts: [groups, classes + 1], rows of each class in each group, and of all classes.
        shares: the share of rows that each side should have.
        rng: breaks ties.
    """
    has = counts > 0
    left = has.sum(axis=0)  # groups that are not assigned yet, for each class
    fraction = counts / counts.sum(axis=0)
    reached = np.zeros((len(shares), counts.shape[1]))
    lacks = np.ones(reached.shape, bool)
    lacks[1:, left == 1] = False
    required = np.minimum(left, lacks.sum(axis=0))
    priority = np.ones(counts.shape[1])
    priority[-1] = counts.shape[1]
    rarity = np.where(has, left, len(counts)).min(axis=1)
    order = rng.permutation(len(counts))
    order = order[np.lexsort((-counts[order, -1], rarity[order]))]
    sides = np.zeros(len(counts), np.int64)
    for group in order:
        group_classes = has[group]
        urgent = group_classes & (left <= lacks.sum(axis=0))
        need = (lacks * urgent) @ priority
        excess = (fraction[group] * (2 * (reached - shares[:, None]) + fraction[group])).sum(axis=1) / shares
        side = np.lexsort((excess.round(9), -need))[0]  # rounded, so that every processor breaks ties alike
        sides[group] = side
        reached[side] += fraction[group]
        lacks[side, group_classes] = False
        left = left - group_classes
    present = np.array([has[sides == side].any(axis=0) for side in range(len(shares))])
    return sides, int((required - present.sum(axis=0)).clip(0).sum())

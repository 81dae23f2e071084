"""Stratified selection of held-out samples that never divides a group.

A group is a recording, a session or another set of samples that belong together. Samples of one group are
similar. A model that was trained on part of a group would score too well on the rest of it.
"""

import numpy as np
from numpy.typing import NDArray

from edgefl.base.errors import DataError
from edgefl.base.types import Labels

MAX_RANDOM_ORDERS = 8
"""Maximum number of random group orders that are tried until each class is on both sides."""


def hold_out(
    labels: Labels, groups: Labels | None, share: float, rng: np.random.Generator
) -> tuple[Labels, Labels]:
    """Return the rows to keep and the rows to hold out.

    A class with at least two rows (or two groups) is on both sides. Groups that contain several classes can
    make this impossible. A class with one row (or one group) is kept, unless nothing else could be held out.

    Args:
        labels: the class of each row, shape (n,), int64. Rows with values instead of a class, shape (n,
            outputs), count as one class.
        groups: the group of each row, shape (n,), int64. None if rows are independent.
        share: share of the rows to hold out, above 0 and below 1.
        rng: random generator. The same state gives the same rows.

    Returns:
        Indices of the kept rows and of the held-out rows, sorted, int64. Together they contain every row.
        Nothing is held out if there is only one row or one group.

    Raises:
        DataError: `share` is out of range.
    """
    if not 0 < share < 1:
        raise DataError(f"the share to hold out is {share}, expected a number above 0 and below 1")
    if labels.ndim > 1:
        labels = np.zeros(len(labels), np.int64)
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
    """Return how many of `count` rows are held out.

    Of two or more rows, at least one is held out and at least one is kept.

    Args:
        share: share of the rows to hold out, above 0 and below 1.
    """
    return min(max(1, round(share * count)), count - 1) if count else 0


def _assign_rows(
    labels: Labels, groups: Labels, shares: NDArray[np.float64], rng: np.random.Generator
) -> Labels:
    """Return the side of each row. Rows of one group share a side. A class with one group is on side 0."""
    group_names, group = np.unique(groups, return_inverse=True)
    class_names, label = np.unique(labels, return_inverse=True)
    if len(group_names) < len(shares):
        return np.zeros(len(labels), np.int64)
    counts = np.zeros((len(group_names), len(class_names) + 1))
    np.add.at(counts, (group, label), 1)
    counts[:, -1] = counts.sum(axis=1)  # the last column counts all rows, so that no side stays empty
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
    """Return the side of each group, and how many classes are missing on a side that could have them.

    Greedy: groups with rare classes and large groups come first. A group is assigned to the side that would
    otherwise lack a class. If there is none, it goes to the side whose class shares are furthest below their
    targets.

    Args:
        counts: rows of each class in each group, shape (groups, classes + 1), float64. The last column counts
            all rows.
        shares: target share of the rows of each side, shape (sides,), float64.
        rng: breaks ties.

    Source: iterative stratification, K. Sechidis et al., On the Stratification of Multi-Label Data, ECML
    2011.
    """
    has = counts > 0
    left = has.sum(axis=0)  # unassigned groups of each class
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
        side = np.lexsort((excess.round(9), -need))[0]  # rounded so that ties are equal on every processor
        sides[group] = side
        reached[side] += fraction[group]
        lacks[side, group_classes] = False
        left = left - group_classes
    present = np.array([has[sides == side].any(axis=0) for side in range(len(shares))])
    return sides, int((required - present.sum(axis=0)).clip(0).sum())

"""Finds windows that share samples, and the recordings that they were cut from.

A window is a time series of shape (time, channels). Windows that were cut from one recording overlap if the
step is shorter than the window: the end of one window is the beginning of another. A model that was trained
on one of them has seen part of the other.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgefl.base.types import Array, Labels

MIN_OVERLAP_DIVISOR = 8
"""Overlaps shorter than 1/8 of a window are not searched for."""
MIN_CHANGES = 3
"""Minimum number of value changes in an overlap. Silent parts of different recordings can be equal."""
MIN_CLASS_RECORDINGS = 3
"""Number of recordings of each class that a split needs: for test, validation and training."""
HASH_BASE = np.uint64(0x9E3779B97F4A7C15)
HASH_BASE_INVERSE = np.uint64(pow(0x9E3779B97F4A7C15, -1, 1 << 64))


@dataclass(frozen=True)
class Recordings:
    """The recording and the position of each window.

    Attributes:
        group: the recording of each window, shape (n,), int64.
        start: the first row of each window in its recording, shape (n,), int64.
        length: number of rows of a window.
    """

    group: Labels
    start: Labels
    length: int

    def select(self, rows: Labels) -> "Recordings":
        """Return the recordings of some windows.

        Args:
            rows: indices of the windows, shape (m,), int64.
        """
        return Recordings(self.group[rows], self.start[rows], self.length)

    def measure_joined_share(self) -> float:
        """Return the share of windows whose recording contains another window, from 0 to 1."""
        counts = np.unique(self.group, return_counts=True)[1]
        return float(counts[counts > 1].sum() / max(1, len(self.group)))

    def find_overlapping(self, rows: Labels) -> NDArray[np.bool_]:
        """Return which windows share samples with the selected windows.

        Args:
            rows: indices of the selected windows, shape (m,), int64.

        Returns:
            One flag per window, shape (n,), bool. The selected windows are flagged too.
        """
        shares = np.zeros(len(self.group), bool)
        positions = self.number_rows()
        marks = np.sort(positions[rows])
        if len(marks):
            after = np.searchsorted(marks, positions - self.length, side="right")
            shares = (after < len(marks)) & (
                marks[np.minimum(after, len(marks) - 1)] < positions + self.length
            )
        return shares

    def number_rows(self) -> Labels:
        """Return the first row of each window, numbered uniquely over all recordings.

        Windows of different recordings are more than one window length apart.

        Returns:
            Row numbers, shape (n,), int64.
        """
        number = np.unique(self.group, return_inverse=True)[1]
        first = np.full(number.max(initial=-1) + 1, np.iinfo(np.int64).max)
        last = np.full(len(first), np.iinfo(np.int64).min)
        np.minimum.at(first, number, self.start)
        np.maximum.at(last, number, self.start)
        offsets = np.concatenate([[0], np.cumsum(last - first + 2 * self.length)[:-1]]).astype(np.int64)
        return np.asarray(self.start - first[number] + offsets[number], np.int64)


def find_recordings(x: Array) -> Recordings | None:
    """Find the windows that overlap or are equal, and join them into recordings.

    The step may be any number of rows up to 7/8 of a window. The windows may be in any order. Overlapping
    rows must be equal bit for bit, so windows that were scaled individually are not found.

    Args:
        x: windows, shape (n, time, channels), float32.

    Returns:
        The recordings, or None if the samples are not time series or if no windows overlap.
    """
    if x.ndim != 3 or len(x) < 2:
        return None
    links = _find_links(np.ascontiguousarray(x, np.float32))
    if not links:
        return None
    neighbors: dict[int, list[tuple[int, int]]] = {}
    for first, second, step in links:
        neighbors.setdefault(first, []).append((second, step))
        neighbors.setdefault(second, []).append((first, -step))
    group = np.arange(len(x), dtype=np.int64)
    start = np.zeros(len(x), np.int64)
    visited = np.zeros(len(x), bool)
    for root in sorted(neighbors):
        if visited[root]:
            continue
        visited[root] = True
        members = [root]
        for window in members:
            for other, step in neighbors[window]:
                if not visited[other]:
                    visited[other] = True
                    start[other] = start[window] + step
                    members.append(other)
        group[members] = root
        start[members] -= start[members].min()
    return Recordings(group, start, x.shape[1])


def find_overlapping_rows(x: Array, training: Array, *, copies: bool = True) -> Labels:
    """Return the rows of `x` that share samples with a window of `training`.

    Args:
        x: windows, shape (n, time, channels), float32. Samples of another rank never overlap.
        training: windows, shape (k, time, channels), float32.
        copies: whether a window that equals a window of `training` counts.

    Returns:
        Sorted row indices, shape (m,), int64.
    """
    recordings = find_recordings(np.concatenate([training, x])) if x.ndim == 3 else None
    if recordings is None:
        return np.empty(0, np.int64)
    rows = np.arange(len(training))
    shares = recordings.find_overlapping(rows)
    if not copies:
        positions = recordings.number_rows()
        shares &= ~np.isin(positions, positions[rows])
    return np.flatnonzero(shares[len(training) :]).astype(np.int64)


def _find_links(x: Array) -> list[tuple[int, int, int]]:
    """Return (window, next window, rows between their starts) for each window that has a next window.

    For each step, polynomial hashes of all ends are compared with hashes of all beginnings. Equal hashes are
    verified. One step costs O(n log n). A window is linked to the nearest next window only, and that window
    leads to the farther ones.
    """
    count, length, channels = x.shape
    bits = x.view(np.uint32)
    factors = np.random.default_rng(0).integers(1, 2**63, channels, dtype=np.uint64) | np.uint64(1)
    power = np.array([pow(int(HASH_BASE), row, 1 << 64) for row in range(length)], np.uint64)
    inverse = np.array([pow(int(HASH_BASE_INVERSE), row, 1 << 64) for row in range(length)], np.uint64)

    def hash_row(row: int) -> NDArray[np.uint64]:
        z = (bits[:, row].astype(np.uint64) * factors).sum(axis=1, dtype=np.uint64)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        return np.asarray((z ^ (z >> np.uint64(31))) * power[row], np.uint64)

    def count_changes(row: int) -> NDArray[np.int64]:
        return np.asarray((x[:, row] != x[:, row - 1]).sum(axis=1), np.int64)

    end = np.zeros(count, np.uint64)
    changes_end = np.zeros(count, np.int64)
    for row in range(length):
        end += hash_row(row)
        if row:
            changes_end += count_changes(row)
    head = end.copy()
    changes_head = changes_end.copy()
    links = _find_equal_windows(x, end, changes_end)
    pending = np.ones(count, bool)  # windows without a next window so far
    for step in range(1, length - max(1, -(-length // MIN_OVERLAP_DIVISOR)) + 1):
        end -= hash_row(step - 1)
        head -= hash_row(length - step)
        changes_end -= count_changes(step)
        changes_head -= count_changes(length - step)
        heads = np.flatnonzero(changes_head >= MIN_CHANGES)
        ends = np.flatnonzero(pending & (changes_end >= MIN_CHANGES))
        if not len(heads) or not len(ends):
            continue
        heads = heads[np.argsort(head[heads], kind="stable")]
        values = head[heads]
        sought = end[ends] * inverse[step]
        low = np.searchsorted(values, sought)
        hits = np.flatnonzero((low < len(values)) & (values[np.minimum(low, len(values) - 1)] == sought))
        for hit in hits:
            window = int(ends[hit])
            for at in range(int(low[hit]), len(values)):
                if values[at] != sought[hit]:
                    break
                other = int(heads[at])
                if other == window or not np.array_equal(x[window, step:], x[other, : length - step]):
                    continue
                links.append((window, other, step))
                pending[window] = False
                break
    return links


def _find_equal_windows(
    x: Array, hashes: NDArray[np.uint64], changes: NDArray[np.int64]
) -> list[tuple[int, int, int]]:
    firsts = dict[int, int]()
    pairs = (
        (firsts.setdefault(int(hashes[window]), int(window)), int(window))
        for window in np.flatnonzero(changes >= MIN_CHANGES)
    )
    return [
        (first, window, 0)
        for first, window in pairs
        if first != window and np.array_equal(x[first], x[window])
    ]


def join_groups(group: Labels, other: Labels) -> Labels:
    """Return the finest groups that divide no group of either input.

    Args:
        group: the first group of each row, shape (n,), int64.
        other: the second group of each row, shape (n,), int64.

    Returns:
        The merged group of each row, shape (n,), int64.
    """
    first = np.unique(group, return_inverse=True)[1].astype(np.int64)
    second = np.unique(other, return_inverse=True)[1].astype(np.int64)
    while True:
        merged = first
        for groups in (second, first):
            lowest = np.full(groups.max(initial=-1) + 1, len(merged), np.int64)
            np.minimum.at(lowest, groups, merged)
            merged = lowest[groups]
        if (merged == first).all():
            return first
        first = merged


def cut_recordings(labels: Labels, recordings: Recordings) -> tuple[Labels, Recordings]:
    """Cut the recordings of a class that has fewer than `MIN_CLASS_RECORDINGS` of them.

    Each of these recordings is cut into as many pieces, if there are enough windows: the piece with the most
    windows is cut in half. One piece can then be for the test and one for validation, and the training still
    sees a part of every recording. Otherwise a model would be chosen on a recording unlike all trained ones
    and tested on a trained recording. Windows on both sides of a cut are left out.

    Args:
        labels: the class of each window, shape (n,), int64.
        recordings: the recordings of the windows.

    Returns:
        Sorted indices of the remaining windows, shape (m,), int64, and their recordings.
    """
    recording = recordings.group
    piece = np.unique(recording, return_inverse=True)[1].astype(np.int64)
    start = recordings.start
    remaining = np.ones(len(piece), bool)
    for label in np.unique(labels):
        names = np.unique(recording[remaining & (labels == label)])
        for name in names if len(names) < MIN_CLASS_RECORDINGS else ():
            while True:
                with_label = remaining & (labels == label) & (recording == name)
                members, counts = np.unique(piece[with_label], return_counts=True)
                if len(members) >= MIN_CLASS_RECORDINGS:
                    break
                cuts = (
                    _halve(start, remaining & (piece == one), with_label & (piece == one), recordings.length)
                    for one in members[np.argsort(-counts, kind="stable")]
                )
                halves = next((cut for cut in cuts if cut is not None), None)
                if halves is None:
                    break
                right, astride = halves
                piece[right] = piece.max() + 1
                remaining[astride] = False
    rows = np.flatnonzero(remaining)
    return rows, Recordings(piece[rows], start[rows], recordings.length)


def _halve(
    start: Labels, members: NDArray[np.bool_], with_label: NDArray[np.bool_], length: int
) -> tuple[Labels, Labels] | None:
    """Return the windows after a cut and the windows on the cut, or None if a half would lack the class."""
    starts = np.sort(start[with_label])
    cut_rows = starts[(len(starts) + 1) // 2 :]
    cut_rows = cut_rows[cut_rows >= starts[0] + length]
    if not len(cut_rows):
        return None
    right = np.flatnonzero(members & (start >= cut_rows[0]))
    astride = np.flatnonzero(members & (start < cut_rows[0]) & (start + length > cut_rows[0]))
    return right, astride


def cut_single_groups(labels: Labels, group: Labels, count: int = 5) -> Labels:
    """Cut the only group of a class into several groups.

    Such a group is cut into `count` blocks of consecutive rows. Otherwise no validation sample of the class
    could be held out while other samples of the class are used for training.

    Args:
        labels: the class of each row, shape (n,), int64.
        group: the group of each row, shape (n,), int64.
        count: number of blocks.

    Returns:
        The group of each row, shape (n,), int64.
    """
    members = [np.unique(group[labels == label]) for label in np.unique(labels)]
    only = {int(names[0]) for names in members if len(names) == 1}
    if not only:
        return group
    parts = np.unique(group, return_inverse=True)[1].astype(np.int64) * count
    for name in only:
        rows = np.flatnonzero(group == name)
        for label in np.unique(labels[rows]):  # each block gets a share of each class
            class_rows = rows[labels[rows] == label]
            parts[class_rows] += np.arange(len(class_rows)) * count // len(class_rows)
    return parts


def cut_time_blocks(labels: Labels, count: int = 10) -> Labels:
    """Cut each class into `count` blocks of consecutive rows.

    Args:
        labels: the class of each row, shape (n,), int64.
        count: number of blocks per class.

    Returns:
        The block of each row, shape (n,), int64. Block numbers differ between classes.
    """
    group = np.zeros(len(labels), np.int64)
    for number, label in enumerate(np.unique(labels)):
        rows = np.flatnonzero(labels == label)
        group[rows] = number * count + np.arange(len(rows)) * count // len(rows)
    return group

"""The rows of a sample file that are trained on, and the rows that are held out as test samples."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgefl.data.holdout import count_held_out, hold_out
from edgefl.data.recordings import (
    Recordings,
    cut_recordings,
    cut_single_groups,
    cut_time_blocks,
    find_recordings,
    join_groups,
)
from edgefl.data.split import BY_GROUP, BY_RECORDING, BY_WINDOW, IN_TIME
from edgefl.errors import DataError
from edgefl.types import Array, Labels

MIN_JOINED_SHARE = 0.5
"""Share of windows that must overlap others for recordings to be held out as a whole."""
RING_BLOCK_WINDOWS = 8
"""Length of the blocks of a ring, in windows."""


@dataclass(frozen=True)
class TrainTestSplit:
    """A division of rows.

    Args:
        rule: a name of `edgefl.data.split.RULES`.
        train: sorted rows to train on.
        test: sorted rows that are held out.
        group: int64[train], the recording of each training row; a further split must not divide it.
    """

    rule: str
    train: Labels
    test: Labels
    group: Labels


def split_train_test(
    x: Array,
    labels: Labels,
    share: float,
    rng: np.random.Generator,
    *,
    group: Labels | None = None,
    recordings: Recordings | None = None,
) -> TrainTestSplit:
    """Divide the rows of one client so that no test sample shares a recording with a training sample.

    With `group`, whole groups are held out. Otherwise whole recordings are held out: `recordings`, or windows
    that overlap. A recording is cut where a class has too few recordings. Windows that overlap the cut are in
    neither part. Without any recording, the last rows of each class are held out.

    Args:
        x: float32[n, *input_shape].
        labels: int64[n].
        share: share of the rows to hold out.
        rng: decides between groups.
        group: int64[n], the group of each row as the owner named it.
        recordings: where windows come from, if the source knows it.

    Raises:
        DataError: nothing can be held out.
    """
    if not 0 < share < 1:
        raise DataError(f"test_share is {share}, expected a share between 0 and 1")
    if len(labels) < 2:
        raise DataError(
            "one sample only, expected two or more: some are held out to measure on; collect more, or give "
            "x_test and y_test"
        )
    if recordings is not None:
        return _split_by_recording(labels, recordings, share, rng)
    overlaps = find_recordings(x)
    if group is not None:
        return _split_by_group(labels, group, overlaps, share, rng)
    if overlaps is not None and overlaps.measure_joined_share() >= MIN_JOINED_SHARE:
        return _split_by_recording(labels, overlaps, share, rng)
    return _split_in_time(labels, overlaps, share)


def split_by_owner(owner: Labels, split_rows: Callable[[Labels], TrainTestSplit]) -> TrainTestSplit:
    """Divide the rows of each owner by themselves. The only row of an owner is trained on.

    Args:
        owner: int64[n], whose each row is.
        divide_rows: divides some rows; the rows of its answer are places among these.

    Raises:
        DataError: each owner has one row only, or the rows of an owner cannot be divided.
    """
    train, test, group = [], [], []
    rule = ""
    for client in np.unique(owner):
        rows = np.flatnonzero(owner == client)
        if len(rows) < 2:
            train.append(rows)
            group.append(rows)
            continue
        try:
            client_split = split_rows(rows)
        except DataError as error:
            raise DataError(f"client {client}: {error}") from error
        rule = client_split.rule
        train.append(rows[client_split.train])
        test.append(rows[client_split.test])
        group.append(
            rows[np.unique(client_split.group, return_inverse=True)[1]]
        )  # below len(rows): unique over owners
    if not test:
        raise DataError(
            "one sample a client, expected two or more: some are held out to measure on; give x_test and "
            "y_test"
        )
    rows = np.concatenate(train)
    order = np.argsort(rows)
    return TrainTestSplit(rule, rows[order], np.sort(np.concatenate(test)), np.concatenate(group)[order])


def _split_by_group(
    labels: Labels, group: Labels, overlaps: Recordings | None, share: float, rng: np.random.Generator
) -> TrainTestSplit:
    group = group if overlaps is None else join_groups(group, overlaps.group)
    train, test = hold_out(labels, group, share, rng)
    if not np.isin(labels[test], labels[train]).any():
        raise DataError(
            f"`group` names {len(np.unique(group))} groups that share no samples, and no class is in two of "
            "them, expected a class in two groups or more: one is held out to measure on; record more, leave "
            "`group` out, or give x_test and y_test"
        )
    parts = cut_single_groups(labels[train], group[train])
    return TrainTestSplit(
        BY_GROUP, train, test, parts if overlaps is None else join_groups(parts, overlaps.group[train])
    )


def _split_by_recording(
    labels: Labels, recordings: Recordings, share: float, rng: np.random.Generator
) -> TrainTestSplit:
    rows, pieces = cut_recordings(labels, recordings)
    train, test = hold_out(labels[rows], pieces.group, share, rng)
    if not np.isin(labels[rows[test]], labels[rows[train]]).any():
        raise DataError(
            f"{len(labels)} windows overlap so much that none can be held out to measure on; record more, "
            "take a longer step between windows, or give x_test and y_test"
        )
    return TrainTestSplit(BY_RECORDING, rows[train], rows[test], pieces.group[train])


def _split_in_time(labels: Labels, overlaps: Recordings | None, share: float) -> TrainTestSplit:
    held_out = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        held_out[rows[len(rows) - count_held_out(len(rows), share) :]] = True
    if not held_out.any():
        held_out[-1] = True
    test = np.flatnonzero(held_out)
    train = np.flatnonzero(~(held_out if overlaps is None else overlaps.find_overlapping(test)))
    if not len(train):
        raise DataError("every sample overlaps a held-out one; record more, or give x_test and y_test")
    group = cut_time_blocks(labels[train])
    return TrainTestSplit(
        IN_TIME, train, test, group if overlaps is None else join_groups(group, overlaps.group[train])
    )


def split_ring(recordings: Recordings, share: float, rng: np.random.Generator) -> TrainTestSplit:
    """Divide the windows of a ring so that a window never changes its side.

    Each recording is cut into blocks of fixed length. Hashes of recording and block decide which of ten
    consecutive blocks are held out. Windows that lie in two blocks are in neither part. So test samples after
    a restart, or at the export, were never trained on. The hash is the finalizer of splitmix64 (Steele, Lea,
    Flood 2014).

    Args:
        recordings: where the windows come from.
        share: share of the blocks to hold out, rounded to a tenth.
        rng: seeds the hash.

    Raises:
        DataError: the ring holds fewer than two blocks.
    """
    if not 0 < share < 1:
        raise DataError(f"test_share is {share}, expected a share between 0 and 1")
    rows = RING_BLOCK_WINDOWS * recordings.length
    block = recordings.start // rows
    whole = np.flatnonzero((recordings.start + recordings.length - 1) // rows == block)
    salt = rng.integers(2**64, dtype=np.uint64)
    row = _mix_bits(recordings.group[whole].astype(np.uint64) + salt)
    ten = block[whole, None] // 10 * 10 + np.arange(10)
    hashes = _mix_bits(row[:, None] + ten.astype(np.uint64))
    block_hashes = hashes[np.arange(len(whole)), block[whole] % 10]
    rank = (hashes < block_hashes[:, None]).sum(axis=1)
    blocks, first, number = np.unique(block_hashes, return_index=True, return_inverse=True)
    if len(blocks) < 2:
        raise DataError(
            f"the ring holds {len(recordings.group)} windows of one stretch of {rows} readings, expected two "
            "stretches or more: one is held out to measure on; record more"
        )
    held_out = rank[first] < min(max(1, round(10 * share)), 9)
    if held_out.all() or not held_out.any():  # few blocks: one at least for each side
        held_out = np.arange(len(blocks)) < (1 if not held_out.any() else len(blocks) - 1)
    side = held_out[number]
    return TrainTestSplit(BY_WINDOW, whole[~side], whole[side], number[~side].astype(np.int64))


def _mix_bits(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = values * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)), np.uint64)

"""Divides the rows of a sample file into training rows and held-out test rows."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgefl.base.errors import DataError
from edgefl.base.types import Array, Labels
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

MIN_JOINED_SHARE = 0.5
"""Share of windows that must overlap others before whole recordings are held out."""
RING_BLOCK_WINDOWS = 8
"""Length of the blocks of a ring, in windows."""
MIN_SAMPLES_WITHOUT_CLASSES = 20
"""Minimum number of samples from which many different labels mean numbers to predict, not classes."""


@dataclass(frozen=True)
class TrainTestSplit:
    """A division of rows into training and test rows.

    Attributes:
        rule: a name of `edgefl.data.split.RULES`.
        train: training rows, sorted, shape (n,), int64.
        test: held-out rows, sorted, shape (m,), int64.
        group: the recording of each training row, shape (n,), int64. A further split must not divide a
            recording.
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

    With `recordings`, whole recordings are held out. Otherwise, with `group`, whole groups are held out, and
    groups whose windows overlap are merged. Otherwise, if most windows overlap others, whole recordings of
    overlapping windows are held out. Otherwise the last rows of each class are held out. If a class has too
    few recordings, they are cut into pieces. Windows that overlap a cut are in neither part.

    Args:
        x: samples, shape (n, *input_shape), float32.
        labels: the class of each row, shape (n,), int64.
        share: share of the rows to hold out, above 0 and below 1.
        rng: decides between groups.
        group: the group of each row as named by the owner, shape (n,), int64, or None.
        recordings: the recordings of the windows, None if the source does not record them.

    Raises:
        DataError: `share` is out of range, or nothing can be held out.
    """
    if not 0 < share < 1:
        raise DataError(f"test_share is {share}, expected a share between 0 and 1")
    if len(labels) < 2:
        raise DataError(
            "there is only one sample, expected two or more: some are held out for the test; collect more, "
            "or add x_test and y_test"
        )
    if recordings is not None:
        return _split_by_recording(labels, recordings, share, rng)
    overlaps = find_recordings(x)
    if group is not None:
        return _split_by_group(labels, group, overlaps, share, rng)
    if overlaps is not None and overlaps.measure_joined_share() >= MIN_JOINED_SHARE:
        return _split_by_recording(labels, overlaps, share, rng)
    return _split_in_time(labels, overlaps, share)


def merge_scattered_labels(labels: Labels) -> Labels:
    """Return the labels for a split by class. Labels that are numbers to predict count as one class.

    Whole numbers to predict, such as remaining hours, look like classes. Nearly every class then has one
    sample, and a class with one sample is never held out. Labels are such numbers if most of 20 samples or
    more have different ones.

    Args:
        labels: the label of each row, shape (n,), int64.

    Returns:
        The labels, or zeros, shape (n,), int64.
    """
    is_scattered = len(labels) >= MIN_SAMPLES_WITHOUT_CLASSES and 2 * len(np.unique(labels)) > len(labels)
    return np.zeros_like(labels) if is_scattered else labels


def split_by_owner(owner: Labels, split_rows: Callable[[Labels], TrainTestSplit]) -> TrainTestSplit:
    """Divide the rows of each owner separately. The only row of an owner is used for training.

    Args:
        owner: the owner of each row, shape (n,), int64.
        split_rows: divides the rows of one owner. It gets their indices, and the rows in its result are
            positions in these indices.

    Raises:
        DataError: each owner has only one row, or the rows of an owner cannot be divided.
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
        )  # row indices as group numbers, so that groups are unique over owners
    if not test:
        raise DataError(
            "there is one sample per client, expected two or more: some are held out for the test; add "
            "x_test and y_test"
        )
    rows = np.concatenate(train)
    order = np.argsort(rows)
    return TrainTestSplit(
        rule=rule, train=rows[order], test=np.sort(np.concatenate(test)), group=np.concatenate(group)[order]
    )


def _split_by_group(
    labels: Labels, group: Labels, overlaps: Recordings | None, share: float, rng: np.random.Generator
) -> TrainTestSplit:
    group = group if overlaps is None else join_groups(group, overlaps.group)
    train, test = hold_out(labels, group, share, rng)
    if not np.isin(labels[test], labels[train]).any():
        raise DataError(
            f"`group` names {len(np.unique(group))} groups that share no samples, and no class is in two of "
            "them, expected a class in two groups or more: one is held out for the test; record more, leave "
            "`group` out, or add x_test and y_test"
        )
    parts = cut_single_groups(labels[train], group[train])
    return TrainTestSplit(
        rule=BY_GROUP,
        train=train,
        test=test,
        group=parts if overlaps is None else join_groups(parts, overlaps.group[train]),
    )


def _split_by_recording(
    labels: Labels, recordings: Recordings, share: float, rng: np.random.Generator
) -> TrainTestSplit:
    rows, pieces = cut_recordings(labels, recordings)
    train, test = hold_out(labels[rows], pieces.group, share, rng)
    if not np.isin(labels[rows[test]], labels[rows[train]]).any():
        raise DataError(
            f"{len(labels)} windows overlap so much that no window can be held out for the test; record "
            "more, use a longer step between windows, or add x_test and y_test"
        )
    return TrainTestSplit(rule=BY_RECORDING, train=rows[train], test=rows[test], group=pieces.group[train])


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
        raise DataError("every sample overlaps a held-out sample; record more, or add x_test and y_test")
    group = cut_time_blocks(labels[train])
    return TrainTestSplit(
        rule=IN_TIME,
        train=train,
        test=test,
        group=group if overlaps is None else join_groups(group, overlaps.group[train]),
    )


def split_ring(recordings: Recordings, share: float, rng: np.random.Generator) -> TrainTestSplit:
    """Divide the windows of a ring so that a window never changes sides.

    Each recording is cut into blocks of fixed length. Hashes of recording and block decide which of ten
    consecutive blocks are held out. Windows that span two blocks are in neither part. Therefore a model was
    never trained on the samples that are held out after a restart or at the export.

    Args:
        share: share of the blocks to hold out, above 0 and below 1, rounded to a tenth.
        rng: seeds the hash.

    Raises:
        DataError: `share` is out of range, or the ring holds fewer than two blocks.

    Source: the hash is the finalizer of splitmix64, G. Steele, D. Lea, C. Flood, Fast Splittable Pseudorandom
    Number Generators, OOPSLA 2014.
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
            f"the ring holds {len(recordings.group)} windows from one block of {rows} readings, expected two "
            "blocks or more: one is held out for the test; record more"
        )
    held_out = rank[first] < min(max(1, round(10 * share)), 9)
    if held_out.all() or not held_out.any():  # few blocks: each side gets at least one
        held_out = np.arange(len(blocks)) < (1 if not held_out.any() else len(blocks) - 1)
    side = held_out[number]
    return TrainTestSplit(
        rule=BY_WINDOW, train=whole[~side], test=whole[side], group=number[~side].astype(np.int64)
    )


def _mix_bits(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = values * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)), np.uint64)

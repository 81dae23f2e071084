"""Windows that share samples are found, joined and cut."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.data.recordings import (
    Recordings,
    cut_recordings,
    cut_single_groups,
    cut_time_blocks,
    find_recordings,
    join_groups,
)


def make_signal(rows, seed=0, channels=3):
    return np.random.default_rng(seed).normal(size=(rows, channels)).astype(np.float32)


def cut_windows(rows, starts, length):
    return np.stack([rows[start : start + length] for start in starts])


@pytest.mark.parametrize("step", [1, 4, 8, 12, 14])
def test_windows_of_one_recording_are_joined_at_any_step(step):
    """Two recordings, windows of 16 rows, and steps of 1/16, 1/4, 1/2, 3/4 and 7/8 of a window."""
    starts = [0, step, 2 * step]
    x = np.concatenate([cut_windows(make_signal(60, seed), starts, 16) for seed in (1, 2)])
    detected = find_recordings(x)
    assert detected is not None
    assert detected.group.tolist() == [0, 0, 0, 3, 3, 3]
    assert detected.start.tolist() == [*starts, *starts]


def test_windows_may_be_in_any_order_and_some_may_be_missing():
    """Rows 0 to 40 with a step of 4 and windows of 16: windows 0, 2, 3 and 6 remain, in another order."""
    x = cut_windows(make_signal(60), [12, 0, 24, 8], 16)
    detected = find_recordings(x)
    assert detected is not None
    assert detected.group.tolist() == [0, 0, 0, 0] and detected.start.tolist() == [12, 0, 24, 8]
    assert detected.measure_joined_share() == 1


def test_windows_that_do_not_overlap_are_not_joined():
    assert find_recordings(cut_windows(make_signal(64), [0, 16, 32], 16)) is None
    assert find_recordings(cut_windows(make_signal(64), [0, 15, 30], 16)) is None  # one row is less than 1/8
    assert find_recordings(make_signal(20)) is None
    assert find_recordings(make_signal(16)[None]) is None


def test_silence_does_not_join_recordings():
    """Both recordings end and begin with zeros, which are no evidence of an overlap."""
    x = np.concatenate([make_signal(16, seed)[None] for seed in (1, 2, 3)])
    x[:, :6] = x[:, -6:] = 0
    assert find_recordings(x) is None
    assert find_recordings(np.zeros((9, 16, 2), np.float32)) is None


def test_equal_windows_are_joined():
    x = np.concatenate([make_signal(16, seed)[None] for seed in (1, 2, 1)])
    detected = find_recordings(x)
    assert (
        detected is not None and detected.group.tolist() == [0, 1, 0] and detected.start.tolist() == [0, 0, 0]
    )


def test_windows_of_a_periodic_signal_are_joined():
    rows = np.tile(make_signal(8), (20, 1))
    detected = find_recordings(cut_windows(rows, range(0, 100, 4), 16))
    assert detected is not None and len(set(detected.group)) == 1


def test_windows_that_overlap_selected_windows_are_found():
    """Recording 5 has windows at rows 0, 4, 8 and 12, recording 6 at 0 and 4. Windows have 8 rows."""
    recordings = Recordings(np.array([5, 5, 6, 5, 6, 5]), np.array([0, 4, 0, 12, 4, 8]), 8)
    assert recordings.find_overlapping(np.array([3])).tolist() == [False, False, False, True, False, True]
    assert recordings.find_overlapping(np.array([0, 4])).tolist() == [True, True, True, False, True, False]
    assert not recordings.find_overlapping(np.array([], np.int64)).any()


def test_groups_that_share_members_are_joined():
    """a joins 0 and 1, x joins 1 and 2, which gives one group. 3 stays alone."""
    first = np.array([7, 7, 8, 9])
    second = np.array([1, 2, 2, 3])
    assert join_groups(first, second).tolist() == [0, 0, 0, 2]


def test_only_recording_of_a_class_is_cut():
    """One recording of nine windows with a step of half a window is cut twice.

    It is cut before window 5, and window 4 is on the cut. The first half, windows 0 to 3, is cut before
    window 2, and window 1 is on the cut.
    """
    rows, pieces = cut_recordings(
        np.zeros(9, np.int64), Recordings(np.zeros(9, np.int64), np.arange(9) * 4, 8)
    )
    assert rows.tolist() == [0, 2, 3, 5, 6, 7, 8]
    rows_of_pieces = [set(rows[pieces.group == group]) for group in np.unique(pieces.group)]
    assert rows_of_pieces == [{0}, {5, 6, 7, 8}, {2, 3}]


def test_both_recordings_of_a_class_are_cut_into_three_pieces():
    """Two recordings of nine and seven windows with a step of half a window are cut as one would be.

    Windows 0 to 8 are the first recording. The second, windows 9 to 15, is cut before window 13, where window
    12 is on the cut, and before window 11, where window 10 is on the cut.
    """
    recordings = Recordings(np.repeat([5, 3], [9, 7]), 4 * np.r_[:9, :7], 8)
    rows, pieces = cut_recordings(np.zeros(16, np.int64), recordings)
    members = [set(rows[pieces.group == group].tolist()) for group in np.unique(pieces.group)]
    assert sorted(members, key=min) == [{0}, {2, 3}, {5, 6, 7, 8}, {9}, {11}, {13, 14, 15}]


def test_class_with_three_recordings_leaves_those_of_another_class_whole():
    """Recording 0 has both classes. It is cut for class 1 only, which has no other recording."""
    labels = np.array([0, 0, 1, 1, 1, 1, 1, 1, 0, 0])
    recordings = Recordings(np.array([0] * 8 + [1, 2]), 8 * np.r_[:8, 0, 0], 8)
    rows, pieces = cut_recordings(labels, recordings)
    assert rows.tolist() == list(range(10))
    members = [set(rows[pieces.group == group].tolist()) for group in np.unique(pieces.group)]
    assert sorted(members, key=min) == [{0, 1, 2, 3}, {4}, {5, 6, 7}, {8}, {9}]


def test_three_recordings_of_a_class_are_not_cut():
    labels = np.array([0, 0, 0, 0, 0, 0])
    recordings = Recordings(np.array([1, 1, 2, 2, 3, 3]), np.array([0, 4, 0, 4, 0, 4]), 8)
    rows, pieces = cut_recordings(labels, recordings)
    assert rows.tolist() == [0, 1, 2, 3, 4, 5] and pieces.group.tolist() == [0, 0, 1, 1, 2, 2]


def test_recording_of_two_overlapping_windows_is_not_cut():
    rows, pieces = cut_recordings(
        np.zeros(2, np.int64), Recordings(np.zeros(2, np.int64), np.array([0, 4]), 8)
    )
    assert rows.tolist() == [0, 1] and pieces.group.tolist() == [0, 0]


def test_only_group_of_a_class_is_divided():
    """Group 8 is the only group of class 1 and also has class 0. Class 0 is also in group 4, which stays."""
    labels = np.array([0, 0, 1, 1, 0, 0, 1, 1])
    group = np.array([4, 4, 8, 8, 8, 8, 8, 8])
    assert cut_single_groups(labels, group, 2).tolist() == [0, 0, 2, 2, 2, 3, 3, 3]
    whole = np.array([4, 4, 8, 8, 4, 4, 9, 9])
    assert len(set(cut_single_groups(labels, whole, 2)[[2, 3, 6, 7]])) == 2


def test_time_blocks_divide_each_class_in_order():
    labels = np.array([4, 2, 2, 4, 2, 2])
    assert cut_time_blocks(labels, 2).tolist() == [2, 0, 0, 3, 1, 1]


@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(0, 2)), min_size=1, max_size=5),
    st.integers(1, 14),
    st.integers(0, 5),
)
def test_shuffled_windows_are_joined_by_recording(recordings, step, seed):
    """Windows of some recordings with one label each are shuffled. The original recordings are found."""
    x = np.concatenate(
        [
            cut_windows(make_signal(200, 10 * seed + number), range(0, count * step, step), 16)
            for number, (count, _) in enumerate(recordings)
        ]
    )
    truth = np.repeat(np.arange(len(recordings)), [count for count, _ in recordings])
    start = np.concatenate([np.arange(count) * step for count, _ in recordings])
    labels = np.repeat([label for _, label in recordings], [count for count, _ in recordings])
    order = np.random.default_rng(seed).permutation(len(x))
    detected = find_recordings(x[order])
    if max(count for count, _ in recordings) == 1:
        assert detected is None
        return
    assert detected is not None
    assert ((detected.group[:, None] == detected.group) == (truth[order][:, None] == truth[order])).all()
    assert (detected.start == start[order]).all()
    rows, pieces = cut_recordings(labels[order], detected)
    row_number = detected.number_rows()[rows]
    overlapping = np.abs(row_number[:, None] - row_number) < 16
    assert (pieces.group[:, None] == pieces.group)[overlapping].all()

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


def signal(rows, seed=0, channels=3):
    return np.random.default_rng(seed).normal(size=(rows, channels)).astype(np.float32)


def windows(rows, starts, length):
    return np.stack([rows[start : start + length] for start in starts])


@pytest.mark.parametrize("step", [1, 4, 8, 12, 14])
def test_windows_of_one_recording_are_joined_at_any_step(step):
    """Two recordings, windows of 16 rows, and steps of 1/16, 1/4, 1/2, 3/4 and 7/8 of a window."""
    starts = [0, step, 2 * step]
    x = np.concatenate([windows(signal(60, seed), starts, 16) for seed in (1, 2)])
    found = find_recordings(x)
    assert found is not None
    assert found.group.tolist() == [0, 0, 0, 3, 3, 3]
    assert found.start.tolist() == [*starts, *starts]


def test_windows_may_be_in_any_order_and_some_may_be_missing():
    """Rows 0 to 40 with a step of 4 and windows of 16: windows 0, 2, 3 and 6 remain, in another order."""
    x = windows(signal(60), [12, 0, 24, 8], 16)
    found = find_recordings(x)
    assert found is not None
    assert found.group.tolist() == [0, 0, 0, 0] and found.start.tolist() == [12, 0, 24, 8]
    assert found.measure_joined_share() == 1


def test_windows_that_do_not_overlap_are_not_joined():
    assert find_recordings(windows(signal(64), [0, 16, 32], 16)) is None
    assert find_recordings(windows(signal(64), [0, 15, 30], 16)) is None  # one row is less than 1/8
    assert find_recordings(signal(20)) is None
    assert find_recordings(signal(16)[None]) is None


def test_silence_joins_no_recordings():
    """Both recordings end and begin with zeros, which are no evidence of an overlap."""
    x = np.concatenate([signal(16, seed)[None] for seed in (1, 2, 3)])
    x[:, :6] = x[:, -6:] = 0
    assert find_recordings(x) is None
    assert find_recordings(np.zeros((9, 16, 2), np.float32)) is None


def test_equal_windows_are_joined():
    x = np.concatenate([signal(16, seed)[None] for seed in (1, 2, 1)])
    found = find_recordings(x)
    assert found is not None and found.group.tolist() == [0, 1, 0] and found.start.tolist() == [0, 0, 0]


def test_a_periodic_signal_ends():
    rows = np.tile(signal(8), (20, 1))
    found = find_recordings(windows(rows, range(0, 100, 4), 16))
    assert found is not None and len(set(found.group)) == 1


def test_which_windows_share_samples_by_hand():
    """Recording 5 has windows at rows 0, 4, 8 and 12, recording 6 at 0 and 4. Windows have 8 rows."""
    own = Recordings(np.array([5, 5, 6, 5, 6, 5]), np.array([0, 4, 0, 12, 4, 8]), 8)
    assert own.find_overlapping(np.array([3])).tolist() == [False, False, False, True, False, True]
    assert own.find_overlapping(np.array([0, 4])).tolist() == [True, True, True, False, True, False]
    assert not own.find_overlapping(np.array([], np.int64)).any()


def test_groups_are_joined_by_hand():
    """a joins 0 and 1, x joins 1 and 2, which gives one group. 3 stays alone."""
    first = np.array([7, 7, 8, 9])
    second = np.array([1, 2, 2, 3])
    assert join_groups(first, second).tolist() == [0, 0, 0, 2]


def test_a_recording_is_cut_where_a_class_has_no_other():
    """One recording of nine windows with a step of half a window is cut twice.

    It is cut before window 5, and window 4 is on the cut. The first half, windows 0 to 3, is cut before
    window 2, and window 1 is on the cut.
    """
    rows, pieces = cut_recordings(
        np.zeros(9, np.int64), Recordings(np.zeros(9, np.int64), np.arange(9) * 4, 8)
    )
    assert rows.tolist() == [0, 2, 3, 5, 6, 7, 8]
    found = [set(rows[pieces.group == group]) for group in np.unique(pieces.group)]
    assert found == [{0}, {5, 6, 7, 8}, {2, 3}]


def test_three_recordings_of_a_class_are_not_cut():
    labels = np.array([0, 0, 0, 0, 0, 0])
    own = Recordings(np.array([1, 1, 2, 2, 3, 3]), np.array([0, 4, 0, 4, 0, 4]), 8)
    rows, pieces = cut_recordings(labels, own)
    assert rows.tolist() == [0, 1, 2, 3, 4, 5] and pieces.group.tolist() == [0, 0, 1, 1, 2, 2]


def test_two_windows_that_overlap_cannot_be_cut():
    rows, pieces = cut_recordings(
        np.zeros(2, np.int64), Recordings(np.zeros(2, np.int64), np.array([0, 4]), 8)
    )
    assert rows.tolist() == [0, 1] and pieces.group.tolist() == [0, 0]


def test_the_only_group_of_a_class_is_divided_by_hand():
    """Group 8 is the only group of class 1 and also has class 0. Class 0 is also in group 4, which stays."""
    labels = np.array([0, 0, 1, 1, 0, 0, 1, 1])
    group = np.array([4, 4, 8, 8, 8, 8, 8, 8])
    assert cut_single_groups(labels, group, 2).tolist() == [0, 0, 2, 2, 2, 3, 3, 3]
    whole = np.array([4, 4, 8, 8, 4, 4, 9, 9])
    assert len(set(cut_single_groups(labels, whole, 2)[[2, 3, 6, 7]])) == 2


def test_blocks_in_time_by_hand():
    labels = np.array([4, 2, 2, 4, 2, 2])
    assert cut_time_blocks(labels, 2).tolist() == [2, 0, 0, 3, 1, 1]


@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(0, 2)), min_size=1, max_size=5),
    st.integers(1, 14),
    st.integers(0, 5),
)
def test_joined_windows_are_those_of_one_recording(recordings, step, seed):
    """Windows of some recordings with one label each are shuffled. The original recordings are found."""
    x = np.concatenate(
        [
            windows(signal(200, 10 * seed + number), range(0, count * step, step), 16)
            for number, (count, _) in enumerate(recordings)
        ]
    )
    truth = np.repeat(np.arange(len(recordings)), [count for count, _ in recordings])
    start = np.concatenate([np.arange(count) * step for count, _ in recordings])
    labels = np.repeat([label for _, label in recordings], [count for count, _ in recordings])
    order = np.random.default_rng(seed).permutation(len(x))
    found = find_recordings(x[order])
    if max(count for count, _ in recordings) == 1:
        assert found is None
        return
    assert found is not None
    assert ((found.group[:, None] == found.group) == (truth[order][:, None] == truth[order])).all()
    assert (found.start == start[order]).all()
    rows, pieces = cut_recordings(labels[order], found)
    place = found.number_rows()[rows]
    near = np.abs(place[:, None] - place) < 16
    assert (pieces.group[:, None] == pieces.group)[near].all()

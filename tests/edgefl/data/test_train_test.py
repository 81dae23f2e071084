"""Test samples share nothing with training samples."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.data.holdout import hold_out
from edgefl.data.recordings import Recordings
from edgefl.data.train_test import split_by_owner, split_train_test
from edgefl.errors import DataError
from edgefl.rng import derive_rng


def windows(count, step, seed=0, length=16):
    rows = np.random.default_rng(seed).normal(size=(count * step + length, 3)).astype(np.float32)
    return np.stack([rows[start : start + length] for start in range(0, count * step, step)])


def readings(x):
    return {row.tobytes() for window in x for row in window}


def divided(x, labels, share=0.2, seed=1, **more):
    return split_train_test(x, np.asarray(labels, np.int64), share, derive_rng(seed, 0, "split:"), **more)


@pytest.mark.parametrize(("step", "lost"), [(4, 3), (8, 1)])
def test_overlapping_windows_of_one_recording_by_hand(step, lost):
    """A recording of 40 windows is cut into 20, 10 and 10 windows.

    The windows on a cut are left out. With a step of 1/4, three windows are on each cut. With a step of 1/2,
    one window is. About a fifth is held out.
    """
    x = windows(40, step)
    own = divided(x, np.zeros(40))
    assert own.rule == "recording"
    assert len(own.train) + len(own.test) == 40 - 2 * lost
    assert not readings(x[own.train]) & readings(x[own.test])
    assert 7 <= len(own.test) <= 10 and (np.diff(own.test) == 1).all()
    assert len(set(own.group)) == 2


def test_each_class_of_one_long_recording_is_on_both_sides():
    x = windows(60, 8)
    labels = np.arange(60) // 20
    own = divided(x, labels)
    assert set(labels[own.train]) == set(labels[own.test]) == {0, 1, 2}
    assert not readings(x[own.train]) & readings(x[own.test])


def test_without_recordings_the_last_of_each_class_are_held_out():
    """Rows are assumed to be in time order. The training rows of a class are blocks of consecutive rows."""
    labels = np.arange(40) % 2
    own = divided(np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32), labels)
    assert own.rule == "time"
    assert own.test.tolist() == list(range(32, 40))
    for label in (0, 1):
        group = own.group[labels[own.train] == label]
        assert (np.diff(group) >= 0).all() and len(set(group)) == 10


def test_a_few_windows_that_overlap_leave_time_order_but_share_nothing():
    """Of 20 windows two overlap: the last, which is held out, and the first, which is left out."""
    x = np.stack([windows(1, 1, seed)[0] for seed in range(20)])
    x[0, 8:] = x[19, :8]
    own = divided(x, np.zeros(20))
    assert own.rule == "time" and own.test.tolist() == [16, 17, 18, 19]
    assert own.train.tolist() == list(range(1, 16))


def test_groups_that_share_windows_are_one():
    """Groups 0 and 1 are halves of one recording, 2 and 3 are others. 0 and 1 stay together."""
    x = np.concatenate([windows(10, 8, 1), windows(5, 16, 2), windows(5, 16, 3)])
    group = np.repeat([0, 1, 2, 3], 5)
    for seed in range(10):
        own = divided(x, np.zeros(20), seed=seed, group=group)
        assert own.rule == "group"
        assert {0, 1} <= set(group[own.train]) and set(group[own.test]) < {2, 3}


def test_the_last_group_of_a_class_can_be_validated():
    """Each class has two groups of ten. One is held out, and the other is divided for validation only."""
    labels = np.repeat([0, 1], 20)
    group = np.repeat([0, 1, 2, 3], 10)
    x = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    own = divided(x, labels, group=group)
    assert len(set(group[own.train])) == len(set(group[own.test])) == 2
    kept, held = hold_out(labels[own.train], own.group, 0.2, derive_rng(1, 0))
    assert set(labels[own.train][kept]) == set(labels[own.train][held]) == {0, 1}
    # Overlapping windows stay together, so nothing can be held out of this recording.
    x = np.concatenate([windows(10, 8, seed) for seed in range(4)])
    assert len(set(divided(x, labels, group=group).group)) == 2


def test_recordings_of_a_source_count_where_readings_are_silent():
    """All readings are zero, so the recordings cannot be derived from the windows."""
    x = np.zeros((20, 16, 1), np.float32)
    own = divided(x, np.zeros(20), recordings=Recordings(np.zeros(20, np.int64), np.arange(20) * 8, 16))
    assert own.rule == "recording" and len(own.train) + len(own.test) == 18


def test_what_cannot_be_divided_is_refused():
    for share in (0, 1, float("nan")):
        with pytest.raises(DataError, match="between 0 and 1"):
            divided(windows(4, 16), np.zeros(4), share=share)
    with pytest.raises(DataError, match="only one sample"):
        divided(windows(1, 16), np.zeros(1))
    with pytest.raises(DataError, match="2 windows overlap so much"):
        divided(windows(2, 8), np.zeros(2))
    with pytest.raises(DataError, match="no class is in two of them"):
        divided(windows(4, 16), [0, 0, 1, 1], group=np.array([0, 0, 1, 1]))


def test_owners_are_divided_by_themselves():
    """Owner 3 has rows 0, 2 and 4, owner 1 has the others, and row 6 is the only row of its owner."""
    owner = np.array([3, 1, 3, 1, 3, 1, 9])
    x = np.arange(7, dtype=np.float32)[:, None]
    own = split_by_owner(owner, lambda rows: divided(x[rows], np.zeros(len(rows))))
    assert own.test.tolist() == [4, 5] and own.train.tolist() == [0, 1, 2, 3, 6]
    assert len(set(own.group)) == 5
    with pytest.raises(DataError, match="one sample per client"):
        split_by_owner(np.arange(3), lambda rows: divided(x[rows], np.zeros(len(rows))))
    with pytest.raises(DataError, match="client 0: 2 windows overlap"):
        split_by_owner(np.zeros(2, np.int64), lambda rows: divided(windows(2, 8), np.zeros(len(rows))))


@given(
    st.lists(st.tuples(st.integers(1, 15), st.integers(0, 2)), min_size=2, max_size=6),
    st.integers(2, 16),
    st.integers(0, 3),
    st.floats(0.1, 0.5),
)
def test_no_reading_is_on_both_sides_nor_in_two_groups(recordings, step, seed, share):
    x = np.concatenate([windows(count, step, 7 * seed + n) for n, (count, _) in enumerate(recordings)])
    labels = np.repeat([label for _, label in recordings], [count for count, _ in recordings])
    try:
        own = divided(x, labels, share, seed)
    except DataError:
        assert step < 15
        return
    again = divided(x, labels, share, seed)
    for name in ("train", "test", "group"):
        np.testing.assert_array_equal(getattr(own, name), getattr(again, name))
    assert len(own.train) and len(own.test) and not set(own.train) & set(own.test)
    if step < 15:  # overlaps shorter than 1/8 of a window are not searched for
        assert not readings(x[own.train]) & readings(x[own.test])
        parts = [readings(x[own.train][own.group == group]) for group in np.unique(own.group)]
        assert sum(map(len, parts)) == len(set().union(*parts))

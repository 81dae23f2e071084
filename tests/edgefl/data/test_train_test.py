"""Test samples share nothing with training samples."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.base.errors import DataError
from edgefl.base.rng import derive_rng
from edgefl.data.holdout import hold_out
from edgefl.data.recordings import Recordings
from edgefl.data.train_test import split_by_owner, split_train_test


def make_windows(count, step, seed=0, length=16):
    rows = np.random.default_rng(seed).normal(size=(count * step + length, 3)).astype(np.float32)
    return np.stack([rows[start : start + length] for start in range(0, count * step, step)])


def collect_readings(x):
    return {row.tobytes() for window in x for row in window}


def divide(x, labels, share=0.2, seed=1, **more):
    return split_train_test(x, np.asarray(labels, np.int64), share, derive_rng(seed, 0, "split:"), **more)


@pytest.mark.parametrize(("step", "lost"), [(4, 3), (8, 1)])
def test_overlapping_windows_of_one_recording_are_cut(step, lost):
    """A recording of 40 windows is cut into 20, 10 and 10 windows.

    The windows on a cut are left out. With a step of 1/4, three windows are on each cut. With a step of 1/2,
    one window is. About a fifth is held out.
    """
    x = make_windows(40, step)
    split = divide(x, np.zeros(40))
    assert split.rule == "recording"
    assert len(split.train) + len(split.test) == 40 - 2 * lost
    assert not collect_readings(x[split.train]) & collect_readings(x[split.test])
    assert 7 <= len(split.test) <= 10 and (np.diff(split.test) == 1).all()
    assert len(set(split.group)) == 2


def test_each_class_of_one_long_recording_is_on_both_sides():
    x = make_windows(60, 8)
    labels = np.arange(60) // 20
    split = divide(x, labels)
    assert set(labels[split.train]) == set(labels[split.test]) == {0, 1, 2}
    assert not collect_readings(x[split.train]) & collect_readings(x[split.test])


@pytest.mark.parametrize("seed", range(10))
def test_two_recordings_of_a_class_are_both_trained_on(seed):
    """With one of the two for validation, models would be chosen on data unlike those of the test.

    For instance, a person records an exercise once with each arm.
    """
    x = np.concatenate([make_windows(30, 8, 1), make_windows(24, 8, 2)])
    recording = np.repeat([0, 1], [30, 24])
    split = divide(x, np.zeros(54), seed=seed)
    train, validation = hold_out(np.zeros(len(split.train)), split.group, 0.2, derive_rng(seed, 1, "v"))
    assert set(recording[split.train[train]]) == {0, 1}
    assert len(validation) and len(split.test)


def test_last_samples_of_each_class_are_held_out_remove_recordings():
    """Rows are assumed to be in time order. The training rows of a class are blocks of consecutive rows."""
    labels = np.arange(40) % 2
    split = divide(np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32), labels)
    assert split.rule == "time"
    assert split.test.tolist() == list(range(32, 40))
    for label in (0, 1):
        group = split.group[labels[split.train] == label]
        assert (np.diff(group) >= 0).all() and len(set(group)) == 10


def test_few_overlapping_windows_are_left_out_of_a_time_split():
    """Of 20 windows two overlap: the last, which is held out, and the first, which is left out."""
    x = np.stack([make_windows(1, 1, seed)[0] for seed in range(20)])
    x[0, 8:] = x[19, :8]
    split = divide(x, np.zeros(20))
    assert split.rule == "time" and split.test.tolist() == [16, 17, 18, 19]
    assert split.train.tolist() == list(range(1, 16))


def test_groups_that_share_windows_stay_together():
    """Groups 0 and 1 are halves of one recording, 2 and 3 are others. 0 and 1 stay together."""
    x = np.concatenate([make_windows(10, 8, 1), make_windows(5, 16, 2), make_windows(5, 16, 3)])
    group = np.repeat([0, 1, 2, 3], 5)
    for seed in range(10):
        split = divide(x, np.zeros(20), seed=seed, group=group)
        assert split.rule == "group"
        assert {0, 1} <= set(group[split.train]) and set(group[split.test]) < {2, 3}


def test_last_training_group_of_a_class_is_divided_for_validation():
    """Each class has two groups of ten. One is held out, and the other is divided for validation only."""
    labels = np.repeat([0, 1], 20)
    group = np.repeat([0, 1, 2, 3], 10)
    x = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    split = divide(x, labels, group=group)
    assert len(set(group[split.train])) == len(set(group[split.test])) == 2
    training_rows, held_out = hold_out(labels[split.train], split.group, 0.2, derive_rng(1, 0))
    assert set(labels[split.train][training_rows]) == set(labels[split.train][held_out]) == {0, 1}
    # Overlapping windows stay together, so nothing can be held out of this recording.
    x = np.concatenate([make_windows(10, 8, seed) for seed in range(4)])
    assert len(set(divide(x, labels, group=group).group)) == 2


def test_recordings_of_the_source_are_used_for_silent_readings():
    """All readings are zero, so the recordings cannot be derived from the windows."""
    x = np.zeros((20, 16, 1), np.float32)
    split = divide(x, np.zeros(20), recordings=Recordings(np.zeros(20, np.int64), np.arange(20) * 8, 16))
    assert split.rule == "recording" and len(split.train) + len(split.test) == 18


def test_indivisible_samples_are_refused():
    for share in (0, 1, float("nan")):
        with pytest.raises(DataError, match="between 0 and 1"):
            divide(make_windows(4, 16), np.zeros(4), share=share)
    with pytest.raises(DataError, match="only one sample"):
        divide(make_windows(1, 16), np.zeros(1))
    with pytest.raises(DataError, match="2 windows overlap so much"):
        divide(make_windows(2, 8), np.zeros(2))
    with pytest.raises(DataError, match="no class is in two of them"):
        divide(make_windows(4, 16), [0, 0, 1, 1], group=np.array([0, 0, 1, 1]))


def test_samples_of_each_owner_are_split_separately():
    """Owner 3 has rows 0, 2 and 4, owner 1 has the others, and row 6 is the only row of its owner."""
    owner = np.array([3, 1, 3, 1, 3, 1, 9])
    x = np.arange(7, dtype=np.float32)[:, None]
    split = split_by_owner(owner, lambda rows: divide(x[rows], np.zeros(len(rows))))
    assert split.test.tolist() == [4, 5] and split.train.tolist() == [0, 1, 2, 3, 6]
    assert len(set(split.group)) == 5
    with pytest.raises(DataError, match="one sample per client"):
        split_by_owner(np.arange(3), lambda rows: divide(x[rows], np.zeros(len(rows))))
    with pytest.raises(DataError, match="client 0: 2 windows overlap"):
        split_by_owner(np.zeros(2, np.int64), lambda rows: divide(make_windows(2, 8), np.zeros(len(rows))))


@given(
    st.lists(st.tuples(st.integers(1, 15), st.integers(0, 2)), min_size=2, max_size=6),
    st.integers(2, 16),
    st.integers(0, 3),
    st.floats(0.1, 0.5),
)
def test_readings_are_never_on_both_sides_or_in_two_groups(recordings, step, seed, share):
    x = np.concatenate([make_windows(count, step, 7 * seed + n) for n, (count, _) in enumerate(recordings)])
    labels = np.repeat([label for _, label in recordings], [count for count, _ in recordings])
    try:
        split = divide(x, labels, share, seed)
    except DataError:
        assert step < 15
        return
    again = divide(x, labels, share, seed)
    for name in ("train", "test", "group"):
        np.testing.assert_array_equal(getattr(split, name), getattr(again, name))
    assert len(split.train) and len(split.test) and not set(split.train) & set(split.test)
    if step < 15:  # overlaps shorter than 1/8 of a window are not searched for
        assert not collect_readings(x[split.train]) & collect_readings(x[split.test])
        parts = [collect_readings(x[split.train][split.group == group]) for group in np.unique(split.group)]
        assert sum(map(len, parts)) == len(set().union(*parts))

"""Held-out rows: groups stay whole, and each class is on both sides if that is possible."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.base.errors import DataError
from edgefl.base.rng import derive_rng
from edgefl.data.holdout import hold_out


def hold_out_rows(labels, groups, share=0.2, seed=1):
    training_rows, held_out = hold_out(
        np.array(labels, np.int64),
        None if groups is None else np.array(groups, np.int64),
        share,
        derive_rng(seed, 0, "test"),
    )
    assert training_rows.dtype == held_out.dtype == np.int64
    assert (np.sort(training_rows) == training_rows).all() and (np.sort(held_out) == held_out).all()
    assert sorted([*training_rows, *held_out]) == list(range(len(labels)))
    return training_rows, held_out


def test_rows_are_held_out_class_by_class():
    """A fifth of ten rows and of five rows are two and one. The only row of class 2 is not held out."""
    labels = [0] * 10 + [1] * 5 + [2]
    training_rows, held_out = hold_out_rows(labels, None)
    assert np.bincount(np.array(labels)[held_out], minlength=3).tolist() == [2, 1, 0]
    assert 15 in training_rows


def test_held_out_rows_depend_on_the_seed():
    labels = [0, 1] * 50
    assert (hold_out_rows(labels, None)[1] == hold_out_rows(labels, None)[1]).all()
    assert (hold_out_rows(labels, None, seed=2)[1] != hold_out_rows(labels, None)[1]).any()


def test_whole_recording_of_each_class_is_held_out():
    """Class 0 has recordings 0 and 1, class 1 has 2, 3 and 4. One recording of each is held out."""
    labels = [0] * 4 + [0] * 4 + [1] * 4 + [1] * 4 + [1] * 4
    groups = [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4 + [4] * 4
    for seed in range(20):
        held_out = hold_out_rows(labels, groups, seed=seed)[1]
        assert len(held_out) == 8
        recordings = {int(g) for g in np.array(groups)[held_out]}
        assert len(recordings & {0, 1}) == 1 and len(recordings & {2, 3, 4}) == 1


def test_class_with_one_recording_is_not_held_out():
    labels = [0] * 4 + [0] * 4 + [1] * 3
    groups = [5] * 4 + [6] * 4 + [7] * 3
    for seed in range(20):
        assert set(hold_out_rows(labels, groups, share=0.5, seed=seed)[0]) >= {8, 9, 10}


def test_single_group_is_not_held_out():
    training_rows, held_out = hold_out_rows([0, 1, 0], [4, 4, 4])
    assert training_rows.tolist() == [0, 1, 2] and held_out.tolist() == []


def test_smallest_group_is_held_out_if_no_class_has_two_groups():
    assert hold_out_rows([0] * 5 + [1] * 3, [0] * 5 + [1] * 3)[1].tolist() == [5, 6, 7]


def test_groups_with_several_classes_have_each_class_on_both_sides():
    """Recording 0 has both classes, 1 and 2 have one each. 0 is on one side, 1 and 2 are on the other."""
    labels = [0, 1, 0, 1]
    groups = [0, 0, 1, 2]
    for seed in range(20):
        training_rows, held_out = hold_out_rows(labels, groups, seed=seed)
        assert {tuple(training_rows), tuple(held_out)} == {(0, 1), (2, 3)}


def test_share_is_exact_for_recordings_of_equal_size():
    labels = np.repeat(np.arange(3), 100)
    groups = np.arange(300) // 10
    held_out = hold_out_rows(labels, groups)[1]
    assert np.bincount(labels[held_out]).tolist() == [20, 20, 20]


@pytest.mark.parametrize("share", [0, 1, -0.1, float("nan")])
def test_share_out_of_range_is_refused(share):
    with pytest.raises(DataError, match="above 0 and below 1"):
        hold_out(np.zeros(3, np.int64), None, share, derive_rng(1, 0))


ROWS = st.lists(st.tuples(st.integers(0, 4), st.integers(-3, 8)), min_size=0, max_size=40)


@given(ROWS, st.floats(0.05, 0.95), st.integers(0, 3), st.booleans())
def test_groups_are_never_divided(rows, share, seed, grouped):
    labels = [label for label, _ in rows]
    groups = [group for _, group in rows] if grouped else list(range(len(rows)))
    training_rows, held_out = hold_out_rows(labels, groups if grouped else None, share, seed)
    group_of_row = np.array(groups)
    assert not set(group_of_row[training_rows]) & set(group_of_row[held_out])
    if rows:
        assert len(training_rows)
    if len(set(groups)) > 1:
        assert len(held_out)


@given(ROWS, st.floats(0.05, 0.95), st.integers(0, 3))
def test_classes_with_two_groups_are_on_both_sides(rows, share, seed):
    """Each group has samples of one class, so that each class can be on both sides."""
    labels = np.array([label for label, _ in rows], np.int64)
    groups = np.array([10 * label + group for label, group in rows], np.int64)
    training_rows, held_out = hold_out_rows(labels, groups, share, seed)
    for label in set(labels):
        if len(set(groups[labels == label])) > 1:
            assert label in labels[training_rows] and label in labels[held_out]
    divisible = [label for label in set(labels) if len(set(groups[labels == label])) > 1]
    if divisible:
        assert set(labels[training_rows]) == set(labels)

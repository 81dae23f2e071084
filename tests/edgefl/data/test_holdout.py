"""Held-out rows: groups stay whole, and each class is on both sides if that is possible."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.data.holdout import hold_out
from edgefl.errors import DataError
from edgefl.rng import derive_rng


def held(labels, groups, share=0.2, seed=1):
    kept, rows = hold_out(
        np.array(labels, np.int64),
        None if groups is None else np.array(groups, np.int64),
        share,
        derive_rng(seed, 0, "test"),
    )
    assert kept.dtype == rows.dtype == np.int64
    assert (np.sort(kept) == kept).all() and (np.sort(rows) == rows).all()
    assert sorted([*kept, *rows]) == list(range(len(labels)))
    return kept, rows


def test_rows_are_held_out_class_by_class():
    """A fifth of ten rows and of five rows are two and one. The only row of class 2 is kept."""
    labels = [0] * 10 + [1] * 5 + [2]
    kept, rows = held(labels, None)
    assert np.bincount(np.array(labels)[rows], minlength=3).tolist() == [2, 1, 0]
    assert 15 in kept


def test_rows_are_drawn_and_the_same_generator_draws_the_same():
    labels = [0, 1] * 50
    assert (held(labels, None)[1] == held(labels, None)[1]).all()
    assert (held(labels, None, seed=2)[1] != held(labels, None)[1]).any()


def test_a_recording_of_each_class_is_held_out_whole():
    """Class 0 has recordings 0 and 1, class 1 has 2, 3 and 4. One recording of each is held out."""
    labels = [0] * 4 + [0] * 4 + [1] * 4 + [1] * 4 + [1] * 4
    groups = [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4 + [4] * 4
    for seed in range(20):
        rows = held(labels, groups, seed=seed)[1]
        assert len(rows) == 8
        whole = {int(g) for g in np.array(groups)[rows]}
        assert len(whole & {0, 1}) == 1 and len(whole & {2, 3, 4}) == 1


def test_a_class_with_one_recording_is_kept():
    labels = [0] * 4 + [0] * 4 + [1] * 3
    groups = [5] * 4 + [6] * 4 + [7] * 3
    for seed in range(20):
        assert set(held(labels, groups, share=0.5, seed=seed)[0]) >= {8, 9, 10}


def test_one_group_only_is_kept():
    kept, rows = held([0, 1, 0], [4, 4, 4])
    assert kept.tolist() == [0, 1, 2] and rows.tolist() == []


def test_the_smallest_group_is_held_out_where_no_class_has_two():
    assert held([0] * 5 + [1] * 3, [0] * 5 + [1] * 3)[1].tolist() == [5, 6, 7]


def test_groups_with_several_classes_leave_each_class_on_both_sides():
    """Recording 0 has both classes, 1 and 2 have one each. 0 is on one side, 1 and 2 are on the other."""
    labels = [0, 1, 0, 1]
    groups = [0, 0, 1, 2]
    for seed in range(20):
        kept, rows = held(labels, groups, seed=seed)
        assert {tuple(kept), tuple(rows)} == {(0, 1), (2, 3)}


def test_the_share_of_recordings_of_one_size_is_met():
    labels = np.repeat(np.arange(3), 100)
    groups = np.arange(300) // 10
    rows = held(labels, groups)[1]
    assert np.bincount(labels[rows]).tolist() == [20, 20, 20]


@pytest.mark.parametrize("share", [0, 1, -0.1, float("nan")])
def test_a_share_out_of_range_is_refused(share):
    with pytest.raises(DataError, match="above 0 and below 1"):
        hold_out(np.zeros(3, np.int64), None, share, derive_rng(1, 0))


ROWS = st.lists(st.tuples(st.integers(0, 4), st.integers(-3, 8)), min_size=0, max_size=40)


@given(ROWS, st.floats(0.05, 0.95), st.integers(0, 3), st.booleans())
def test_no_group_is_divided_and_the_rows_are_partitioned(rows, share, seed, grouped):
    labels = [label for label, _ in rows]
    groups = [group for _, group in rows] if grouped else list(range(len(rows)))
    kept, out = held(labels, groups if grouped else None, share, seed)
    own = np.array(groups)
    assert not set(own[kept]) & set(own[out])
    if rows:
        assert len(kept)
    if len(set(groups)) > 1:
        assert len(out)


@given(ROWS, st.floats(0.05, 0.95), st.integers(0, 3))
def test_classes_of_two_groups_of_one_class_are_on_both_sides(rows, share, seed):
    """Each group has samples of one class, so that each class can be on both sides."""
    labels = np.array([label for label, _ in rows], np.int64)
    groups = np.array([10 * label + group for label, group in rows], np.int64)
    kept, out = held(labels, groups, share, seed)
    for label in set(labels):
        if len(set(groups[labels == label])) > 1:
            assert label in labels[kept] and label in labels[out]
    divisible = [label for label in set(labels) if len(set(groups[labels == label])) > 1]
    if divisible:
        assert set(labels[kept]) == set(labels)

"""Test samples of data sets by writer: the last samples of each."""

import numpy as np

from edgefl.errors import DataError
from edgefl.types import Labels


def hold_out_last(groups: Labels, share: float, time: Labels | None = None) -> tuple[Labels, Labels]:
    """Hold out the last samples of each group, at least one of two.

    Args:
        groups: int64[n], the group of each sample.
        share: share of each group to hold out.
        time: int64[n], sorts the samples of a group; None for the order in which they are.

    Returns:
        Sorted indices of training and test samples.

    Raises:
        DataError: `share` is out of range.
    """
    if not 0 < share < 1:
        raise DataError(f"test_share is {share}, expected a share between 0 and 1")
    order = np.lexsort((np.arange(len(groups)) if time is None else time, groups))
    starts = np.flatnonzero(np.diff(groups[order])) + 1
    held_out = np.zeros(len(groups), bool)
    for members in np.split(order, starts):
        if len(members) > 1:
            held_out[members[-min(max(1, round(share * len(members))), len(members) - 1) :]] = True
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)

"""Holds out the last samples of each writer as test samples."""

import numpy as np

from edgefl.base.errors import DataError
from edgefl.base.types import Labels


def hold_out_last(groups: Labels, share: float, time: Labels | None = None) -> tuple[Labels, Labels]:
    """Hold out the last samples of each group.

    At least one sample of a group with two or more samples is held out.

    Args:
        groups: the group of each sample, shape (n,), int64.
        share: share of each group to hold out, above 0 and below 1.
        time: sort key of the samples of a group, shape (n,), int64. None uses the order of the samples.

    Returns:
        Sorted indices of training samples and of test samples, int64.

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

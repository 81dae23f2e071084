"""What is held out to be measured on: the last samples of each group, and never one that overlaps a training
sample.
"""

import numpy as np

from edgefl.errors import DataError
from edgefl.types import Labels


def hold_out_last(
    groups: Labels, share: float, time: Labels | None = None, overlaps: Labels | None = None
) -> tuple[Labels, Labels]:
    """Return the sorted indices of training and test samples: of each group the last `share` in time, at
    least one when there are two.

    groups: int64[n]. time: int64[n], what sorts a group's samples; without it their order. overlaps: int64[m,
    2], pairs of samples that share raw data: a sample that overlaps a held-out one is in neither part.
    """
    if not 0 < share < 1:
        raise DataError(f"test_share is {share}, expected a share between 0 and 1")
    order = np.lexsort((np.arange(len(groups)) if time is None else time, groups))
    starts = np.flatnonzero(np.diff(groups[order])) + 1
    held = np.zeros(len(groups), bool)
    for own in np.split(order, starts):
        if len(own) > 1:
            held[own[-min(max(1, round(share * len(own))), len(own) - 1) :]] = True
    kept = ~held
    if overlaps is not None:
        first = overlaps[:, 0]
        second = overlaps[:, 1]
        kept[first[held[second]]] = False
        kept[second[held[first]]] = False
    return np.flatnonzero(kept), np.flatnonzero(held)

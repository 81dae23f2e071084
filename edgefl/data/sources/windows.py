"""Windows of rows: fixed lengths of a recording, each with one label."""

import numpy as np
from numpy.typing import NDArray

from edgefl.types import Array, Labels

FLOAT32_MAX = float(np.finfo(np.float32).max)


def count_windows(rows: int, window: int, step: int) -> int:
    """Return how many windows of that length, begun each `step` rows, lie wholly in the rows."""
    return max(0, (rows - window) // step + 1)


def find_majority(labels: NDArray[np.integer]) -> int:
    """Return the label that most rows have, the smallest of them where several are as frequent."""
    values, counts = np.unique(labels, return_counts=True)
    return int(values[counts.argmax()])


def cut_windows(rows: Array, labels: Labels, window: int, step: int) -> tuple[Array, Labels]:
    """Cut one recording, float32[rows, channels], int64[rows], into float32[n, window, channels], int64[n].

    A window's label is that which most of its rows have. What is left at the end makes no window. The windows
    are a view of the rows.
    """
    count = count_windows(len(rows), window, step)
    if not count:
        return np.empty((0, window, rows.shape[1]), np.float32), np.empty(0, np.int64)
    views = np.lib.stride_tricks.sliding_window_view(rows, window, axis=0)[::step]
    starts = range(0, count * step, step)
    return views.transpose(0, 2, 1), np.array(
        [find_majority(labels[start : start + window]) for start in starts], np.int64
    )

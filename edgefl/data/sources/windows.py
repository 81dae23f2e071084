"""Cuts recordings into windows of fixed length, each with one label."""

import numpy as np
from numpy.typing import NDArray

from edgefl.types import Array, Labels

FLOAT32_MAX = float(np.finfo(np.float32).max)


def count_windows(rows: int, window: int, step: int) -> int:
    """Return the number of complete windows.

    Args:
        rows: rows of the recording.
        window: rows per window.
        step: rows from one window to the next.
    """
    return max(0, (rows - window) // step + 1)


def find_majority(labels: NDArray[np.integer]) -> int:
    """Return the most frequent label, and the smallest of equally frequent ones.

    Args:
        labels: labels, shape (n,), integers.
    """
    values, counts = np.unique(labels, return_counts=True)
    return int(values[counts.argmax()])


def cut_windows(rows: Array, labels: Labels, window: int, step: int) -> tuple[Array, Labels]:
    """Cut one recording into windows.

    A window gets the most frequent label of its rows. Remaining rows at the end are dropped.

    Args:
        rows: the recording, shape (rows, channels), float32.
        labels: the label of each row, shape (rows,), int64.
        window: rows per window.
        step: rows from one window to the next.

    Returns:
        Windows, shape (n, window, channels), float32, a view of `rows`. Labels, shape (n,), int64.
    """
    count = count_windows(len(rows), window, step)
    if not count:
        return np.empty((0, window, rows.shape[1]), np.float32), np.empty(0, np.int64)
    views = np.lib.stride_tricks.sliding_window_view(rows, window, axis=0)[::step]
    starts = range(0, count * step, step)
    return views.transpose(0, 2, 1), np.array(
        [find_majority(labels[start : start + window]) for start in starts], np.int64
    )

"""Cuts recordings into windows of fixed length, each with one label, with numbers, or without labels."""

import numpy as np
from numpy.typing import NDArray

from edgefl.base.types import Array, Labels

FLOAT32_MAX = float(np.finfo(np.float32).max)
MIN_EPOCH_S = 1.0e9
MAX_EPOCH_S = 4.2e9
"""A time between 2001 and 2103 in seconds since 1970."""
EPOCH_UNITS = (1.0, 1e3, 1e6, 1e9)


def find_epoch_unit(low: float, high: float) -> float:
    """Return how many units a second has if values are times since 1970, otherwise 0.

    The unit is a second, a millisecond, a microsecond or a nanosecond.

    Args:
        low: smallest value.
        high: largest value.
    """
    return next(
        (unit for unit in EPOCH_UNITS if MIN_EPOCH_S * unit <= low <= high <= MAX_EPOCH_S * unit), 0.0
    )


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


def cut_rows(rows: Array, window: int, step: int) -> Array:
    """Cut one recording into windows without labels. Remaining rows at the end are dropped.

    Args:
        rows: the recording, shape (rows, channels), float32.
        window: rows per window.
        step: rows from one window to the next.

    Returns:
        Windows, shape (n, window, channels), float32, a view of `rows`.
    """
    if not count_windows(len(rows), window, step):
        return np.empty((0, window, rows.shape[1]), np.float32)
    views = np.lib.stride_tricks.sliding_window_view(rows, window, axis=0)[::step]
    return views.transpose(0, 2, 1)


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
    starts = range(0, count_windows(len(rows), window, step) * step, step)
    return cut_rows(rows, window, step), np.array(
        [find_majority(labels[start : start + window]) for start in starts], np.int64
    )

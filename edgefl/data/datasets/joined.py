"""Recordings of different lengths that a file stores one after another."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.base.errors import DataError
from edgefl.base.types import Array


def split_recordings(
    path: Path, joined: Array, ends: NDArray[Any], *described: NDArray[Any]
) -> tuple[Array, ...]:
    """Return each recording of a file.

    Args:
        path: the file, for errors.
        joined: all recordings, shape (rows, ...), float32.
        ends: the row after each recording, shape (n,), integers, increasing up to the number of rows.
        described: arrays that have a value for each recording.

    Raises:
        DataError: there is no recording, `ends` does not fit, or an array has another length.
    """
    if not (ends.ndim == 1 and len(ends) and ends.dtype.kind in "iu"):
        raise DataError(f"{path}: ends is {ends.dtype}{list(ends.shape)}, expected integers; copy it again")
    lengths = np.diff(ends.astype(np.int64), prepend=0)
    if (lengths <= 0).any() or ends[-1] != len(joined):
        raise DataError(
            f"{path}: the recordings end at row {int(ends.max())} of {len(joined)}, expected increasing ends "
            "up to the last row; copy it again"
        )
    for values in described:
        if values.shape != ends.shape:
            raise DataError(
                f"{path} has {len(ends)} recordings and an array of shape {values.shape}, expected a value "
                "for each; copy it again"
            )
    return tuple(np.split(joined, ends[:-1]))

"""Reads the idx format of MNIST and related data sets: a big-endian header, then the values."""

import gzip
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.base.errors import DataError

VALUE_DTYPES: dict[int, np.dtype[Any]] = {0x08: np.dtype(np.uint8), 0x0C: np.dtype(">i4")}


def read_idx(path: Path, rank: int, kind: int = 0x08) -> NDArray[Any]:
    """Read a gzipped idx archive.

    Args:
        path: the archive.
        rank: number of dimensions of the array.
        kind: type code of the values: 0x08 for unsigned bytes, 0x0C for int32.

    Returns:
        The array, uint8 or int32.

    Raises:
        DataError: the archive is missing or damaged, or has another rank or type.
    """
    try:
        raw = gzip.decompress(path.read_bytes())
        header = np.frombuffer(raw, ">u4", 1 + rank)
        shape = tuple(int(size) for size in header[1:])
        magic = 256 * kind + rank
        if header[0] != magic:
            raise ValueError(f"magic {header[0]:#x}, expected {magic:#x}")
        values = np.frombuffer(raw, VALUE_DTYPES[kind], offset=4 * (1 + rank)).reshape(shape)
        native: NDArray[Any] = values.astype(VALUE_DTYPES[kind].newbyteorder("="), copy=False)
        return native
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(f"{path} is not an idx archive: {error}; install or copy it again") from error

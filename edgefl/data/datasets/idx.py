"""The idx format of MNIST and its relatives: big-endian header, then the values."""

import gzip
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.errors import DataError

VALUE_DTYPES: dict[int, np.dtype[Any]] = {0x08: np.dtype(np.uint8), 0x0C: np.dtype(">i4")}


def read_idx(path: Path, rank: int, kind: int = 0x08) -> NDArray[Any]:
    """Read one gzipped idx archive of unsigned bytes (0x08) or int32 (0x0C).

    DataError when it is damaged or of another rank or kind.
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

"""Fashion-MNIST: 70,000 grey pictures of clothes, 28x28, ten classes.

Source: H. Xiao, K. Rasul, R. Vollgraf, arXiv:1708.07747. The files are the four idx archives as published.
"""

import gzip
import os
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgefl.data.dataset import Dataset
from edgefl.errors import DataError

SYSTEM = Path("/usr/share/datasets/fashion-mnist")


def folder() -> Path:
    """Return where the archives lie: `$EDGEFL_DATA/fashion-mnist`, else Debian's place; DataError when neither is there."""
    own = os.environ.get("EDGEFL_DATA")
    places = [Path(own) / "fashion-mnist"] if own else []
    for place in (*places, SYSTEM):
        if (place / "train-images-idx3-ubyte.gz").exists():
            return place
    raise DataError(
        f"no Fashion-MNIST in {' or '.join(map(str, (*places, SYSTEM)))}; "
        "run `apt-get install dataset-fashion-mnist`, or put the four idx .gz archives in $EDGEFL_DATA/fashion-mnist"
    )


def read_idx(path: Path, rank: int) -> NDArray[np.uint8]:
    """Read one idx archive of unsigned bytes; DataError when it is damaged or of another rank."""
    try:
        raw = gzip.decompress(path.read_bytes())
        header = np.frombuffer(raw, ">u4", 1 + rank)
        shape = tuple(int(size) for size in header[1:])
        if header[0] != 0x800 + rank:
            raise ValueError(f"magic {header[0]:#x}, expected {0x800 + rank:#x}")
        return np.frombuffer(raw, np.uint8, offset=4 * (1 + rank)).reshape(shape)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(f"{path} is not an idx archive: {error}; install or copy it again") from error


def load() -> Dataset:
    """Return 60,000 training and 10,000 test pictures, float32[n, 28, 28, 1] in [0, 1]."""
    place = folder()
    x_train, x_test = (
        (read_idx(place / f"{part}-images-idx3-ubyte.gz", 3)[..., None] / np.float32(255)).astype(np.float32) for part in ("train", "t10k")
    )
    y_train, y_test = (read_idx(place / f"{part}-labels-idx1-ubyte.gz", 1).astype(np.int64) for part in ("train", "t10k"))
    return Dataset(x_train, y_train, x_test, y_test, 10)

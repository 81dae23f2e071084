"""Reads the binary version of CIFAR.

A record consists of label bytes and 3,072 pixels, one colour plane after the other.
"""

import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgefl.base.errors import DataError
from edgefl.data.dataset import Pixels

IMAGE_SIDE = 32


def read_cifar_records(
    archive: Path, names: Sequence[str], label_bytes: int
) -> tuple[Pixels, NDArray[np.uint8]]:
    """Read CIFAR records from a `.tar.gz` archive, without unpacking it to disk.

    Args:
        names: names of the files in the archive, in order.
        label_bytes: number of label bytes per record.

    Returns:
        Pixels, shape (n, 32, 32, 3), uint8, and label bytes, shape (n, label_bytes), uint8.

    Raises:
        DataError: the archive is damaged or is not the binary version of CIFAR.
    """
    record = label_bytes + 3 * IMAGE_SIDE * IMAGE_SIDE
    blocks = []
    try:
        with tarfile.open(archive) as tar:
            for name in names:
                file = tar.extractfile(name)
                if file is None:
                    raise ValueError(f"{name} is not a file")
                blocks.append(np.frombuffer(file.read(), np.uint8).reshape(-1, record))
    except (OSError, EOFError, KeyError, ValueError, tarfile.TarError, zlib.error) as error:
        raise DataError(
            f"{archive} is not the binary version of CIFAR: {error}; remove it, and edgefl downloads it again"
        ) from error
    rows = np.concatenate(blocks)
    pixels = rows[:, label_bytes:].reshape(-1, 3, IMAGE_SIDE, IMAGE_SIDE).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(pixels), rows[:, :label_bytes]

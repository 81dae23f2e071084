"""DermaMNIST: 10,015 colour pictures of skin lesions, 28x28 pixels, seven classes, from HAM10000.

Reads the `dermamnist.npz` of MedMNIST (`dermamnist_64.npz` and so on for larger pictures), or an `.npz` with
`x_train`, `y_train` and so on.

Source: J. Yang et al., MedMNIST v2, arXiv:2110.14795, after P. Tschandl et al., The HAM10000 dataset, 2018.
"""

from pathlib import Path

import numpy as np

from edgefl.base.errors import DataError
from edgefl.base.types import Labels
from edgefl.data.arrays import read_arrays
from edgefl.data.dataset import Dataset, Pixels, resize_pictures
from edgefl.data.datasets.fetch import RemoteFile, find_file, find_or_download

REMOTE = RemoteFile(
    "https://zenodo.org/records/10519652/files/dermamnist.npz?download=1",
    "md5:0744692d530f8e62ec473284d019b0c7",
)
PUBLISHED_PARTS = ("train", "val", "test")


def load(*, size: int = 28) -> Dataset:
    """Load 8,010 training pictures and 2,005 test pictures.

    The training pictures are the published training and validation parts.

    Args:
        size: width and height of the pictures in pixels, at least 8. Sizes other than 28 are read from
            `dermamnist_SIZE.npz` if that file exists, or else resized bilinearly. Size 224 needs 1.5 GB of
            memory.

    Returns:
        The data set. Pictures have shape (n, size, size, 3), uint8.

    Raises:
        DataError: `size` is too small, or the file is missing and cannot be downloaded, or is damaged.
    """
    if size < 8:
        raise DataError(f"size is {size}, expected at least 8 pixels")
    path = find_file(f"dermamnist_{size}.npz") or find_or_download("dermamnist.npz", REMOTE)
    (x, y), (x_val, y_val), (x_test, y_test) = (_read_part(path, part, size) for part in PUBLISHED_PARTS)
    return Dataset(
        x_train=np.concatenate([x, x_val]),
        y_train=np.concatenate([y, y_val]),
        x_test=x_test,
        y_test=y_test,
        num_classes=7,
    )


def _read_part(path: Path, part: str, size: int) -> tuple[Pixels, Labels]:
    arrays = read_arrays(path, (f"{part}_images", f"{part}_labels", f"x_{part}", f"y_{part}"), some=True)
    if len(arrays) != 2:
        raise DataError(
            f"{path} has no {part}_images and {part}_labels, expected MedMNIST's file; remove it, and edgefl "
            "downloads it again"
        )
    x, y = arrays.values()
    return resize_pictures(x, size, size), y.astype(np.int64).ravel()

"""MNIST with the writer of each digit: 28x28 grey pixels, ten classes, hundreds of writers.

Reads the QMNIST archives, whose extended labels name the NIST writer. Alternatively reads a
`mnist_writers.npz` with `x_train`, `y_train`, `writer_train` and the same arrays of the test part.

Source: C. Yadav and L. Bottou, Cold Case: The Lost MNIST Digits, arXiv:1905.10498.
"""

import numpy as np

from edgefl.base.errors import DataError
from edgefl.base.types import Labels
from edgefl.data.arrays import read_arrays
from edgefl.data.dataset import Dataset, Pixels, divide_samples
from edgefl.data.datasets.fetch import RemoteFile, find_file, find_or_download
from edgefl.data.datasets.held_out import hold_out_last
from edgefl.data.datasets.idx import read_idx

BASE_URL = "https://raw.githubusercontent.com/facebookresearch/qmnist/master/"
REMOTE_ARCHIVES = {
    "train": (
        RemoteFile(
            BASE_URL + "qmnist-train-images-idx3-ubyte.gz", "md5:ed72d4157d28c017586c42bc6afe6370", 40_000_000
        ),
        RemoteFile(
            BASE_URL + "qmnist-train-labels-idx2-int.gz", "md5:0058f8dd561b90ffdd0f734c6a30e5e4", 40_000_000
        ),
    ),
    "test": (
        RemoteFile(
            BASE_URL + "qmnist-test-images-idx3-ubyte.gz", "md5:1394631089c404de565df7b7aeaf9412", 40_000_000
        ),
        RemoteFile(
            BASE_URL + "qmnist-test-labels-idx2-int.gz", "md5:5b5b05890a5e13444e108efe57b788aa", 40_000_000
        ),
    ),
}


def load(*, split: str = "own", test_share: float = 0.2) -> Dataset:
    """Load the digits, with writers as groups.

    Args:
        split: `own` holds out the last digits of each training writer, so that each writer is also a test
            writer. It leaves out the official test part, which has other writers. `official` is the published
            split, where no writer is in both parts.
        test_share: share of the digits of each writer to hold out with `own`, between 0 and 1.

    Returns:
        The data set. Pictures have shape (n, 28, 28, 1), uint8.

    Raises:
        DataError: `split` or `test_share` is invalid, or the files are missing and cannot be downloaded, or
            are damaged.
    """
    if split not in ("own", "official"):
        raise DataError(f"split is {split!r}, expected 'own' or 'official'")
    x, y, writer, time = _read_part("train")
    if split == "official":
        x_test, y_test, writer_test, _ = _read_part("test")
        return Dataset(
            x_train=x,
            y_train=y,
            x_test=x_test,
            y_test=y_test,
            num_classes=10,
            group_train=writer,
            group_test=writer_test,
        )
    train, test = hold_out_last(writer, test_share, time)
    return divide_samples(x, y, train, test, num_classes=10, group=writer)


def _read_part(part: str) -> tuple[Pixels, Labels, Labels, Labels]:
    """Return pictures, labels, writers, and the sort key of the digits of a writer."""
    npz_path = find_file("mnist_writers.npz")
    if npz_path:
        arrays = read_arrays(npz_path, (f"x_{part}", f"y_{part}", f"writer_{part}"))
        x, y, writer = arrays.values()
        return x[..., None], y.astype(np.int64), writer.astype(np.int64), np.arange(len(y))
    images, labels = REMOTE_ARCHIVES[part]
    x = read_idx(find_or_download(f"qmnist/{images.url.removeprefix(BASE_URL)}", images), 3)[..., None]
    table = read_idx(find_or_download(f"qmnist/{labels.url.removeprefix(BASE_URL)}", labels), 2, 0x0C).astype(
        np.int64
    )
    if len(table) != len(x) or table.shape[1] < 4:
        raise DataError(
            f"{len(x)} pictures and labels of shape {table.shape}, expected a row of 8 per picture; download "
            "the qmnist archives again"
        )
    return x, table[:, 0], table[:, 2], table[:, 3]

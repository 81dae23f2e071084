"""CIFAR-10: 60,000 colour pictures of 32x32 pixels, ten classes.

Reads the binary version, or a `cifar10.npz` with `x_train`, `y_train`, `x_test` and `y_test`.

Source: A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009.
"""

import numpy as np

from edgefl.data.arrays import read_parts
from edgefl.data.dataset import Dataset
from edgefl.data.datasets.cifar import read_cifar_records
from edgefl.data.datasets.fetch import RemoteFile, find_file, find_or_download

ARCHIVE = "cifar-10-binary.tar.gz"
REMOTE = RemoteFile(
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)
TRAIN_FILES = [f"cifar-10-batches-bin/data_batch_{i}.bin" for i in range(1, 6)]
TEST_FILES = ["cifar-10-batches-bin/test_batch.bin"]


def load() -> Dataset:
    """Load 50,000 training and 10,000 test pictures in the published order.

    Returns:
        The data set. Pictures have shape (n, 32, 32, 3), uint8.

    Raises:
        DataError: the files are missing and cannot be downloaded, or are damaged.
    """
    npz_path = find_file("cifar10.npz")
    if npz_path:
        x_train, y_train, x_test, y_test = read_parts(npz_path)
        return Dataset(x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test, num_classes=10)
    archive = find_or_download(ARCHIVE, REMOTE)
    (train, train_labels), (test, test_labels) = (
        read_cifar_records(archive, names, 1) for names in (TRAIN_FILES, TEST_FILES)
    )
    return Dataset(
        x_train=train,
        y_train=train_labels[:, 0].astype(np.int64),
        x_test=test,
        y_test=test_labels[:, 0].astype(np.int64),
        num_classes=10,
    )

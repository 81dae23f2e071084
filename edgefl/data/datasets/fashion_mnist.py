"""Fashion-MNIST: 70,000 grey pictures of clothes, 28x28 pixels, ten classes.

Reads the four idx archives in their published form.

Source: H. Xiao, K. Rasul, R. Vollgraf, arXiv:1708.07747.
"""

from pathlib import Path

import numpy as np

from edgefl.data.dataset import Dataset
from edgefl.data.datasets.fetch import RemoteFile, find_file, find_or_download
from edgefl.data.datasets.idx import read_idx

SYSTEM_FOLDER = Path("/usr/share/datasets/fashion-mnist")
BASE_URL = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"
ARCHIVE_DIGESTS = {
    "train-images-idx3-ubyte.gz": "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "md5:25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "md5:bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "md5:bb300cfdad3c16e7a12a480ee83cd310",
}
MANUAL_DOWNLOAD = (
    "run `apt-get install dataset-fashion-mnist`, or put the four idx .gz archives in "
    "$EDGEFL_DATA/fashion-mnist"
)


def find_folder() -> Path:
    """Return the folder with the archives, and download them if they are missing.

    `$EDGEFL_DATA/fashion-mnist` comes first, then the cache, then the folder of the Debian package.

    Raises:
        DataError: the archives are missing and cannot be downloaded. The message explains how to get them.
    """
    archive = find_file("fashion-mnist/train-images-idx3-ubyte.gz")
    if archive:
        return archive.parent
    if (SYSTEM_FOLDER / "train-images-idx3-ubyte.gz").exists():
        return SYSTEM_FOLDER
    paths = [
        find_or_download(
            f"fashion-mnist/{name}", RemoteFile(BASE_URL + name, digest, 40_000_000), MANUAL_DOWNLOAD
        )
        for name, digest in ARCHIVE_DIGESTS.items()
    ]
    return paths[0].parent


def load() -> Dataset:
    """Load 60,000 training and 10,000 test pictures.

    Returns:
        The data set. Pictures have shape (n, 28, 28, 1), uint8.

    Raises:
        DataError: the archives are missing and cannot be downloaded, or are damaged.
    """
    directory = find_folder()
    x_train, x_test = (
        read_idx(directory / f"{part}-images-idx3-ubyte.gz", 3)[..., None] for part in ("train", "t10k")
    )
    y_train, y_test = (
        read_idx(directory / f"{part}-labels-idx1-ubyte.gz", 1).astype(np.int64) for part in ("train", "t10k")
    )
    return Dataset(x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test, num_classes=10)

"""Fashion-MNIST: 70,000 grey pictures of clothes, 28x28, ten classes.

Source: H. Xiao, K. Rasul, R. Vollgraf, arXiv:1708.07747. The files are the four idx archives as published.
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
    """Return where the archives lie: `$EDGEFL_DATA/fashion-mnist`, else Debian's place, else fetched.

    DataError says how to get them.
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
    """Return 60,000 training and 10,000 test pictures, uint8[n, 28, 28, 1]."""
    directory = find_folder()
    x_train, x_test = (
        read_idx(directory / f"{part}-images-idx3-ubyte.gz", 3)[..., None] for part in ("train", "t10k")
    )
    y_train, y_test = (
        read_idx(directory / f"{part}-labels-idx1-ubyte.gz", 1).astype(np.int64) for part in ("train", "t10k")
    )
    return Dataset(x_train, y_train, x_test, y_test, 10)

"""UCI HAR: smartphone accelerometer and gyroscope at 50 Hz, windows of 2.56 s, six activities, by wearer.

Reads the official zip archive, or a `uci_har.npz` with `x` of shape (n, 128, 9), `y` and `subject`. The
windows of that file may be in any order.

Source: D. Anguita et al., A Public Domain Dataset for Human Activity Recognition Using Smartphones, ESANN
2013.
"""

import io
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.base.errors import DataError
from edgefl.base.rng import derive_rng
from edgefl.base.types import Array, Labels
from edgefl.data.arrays import read_arrays
from edgefl.data.dataset import Dataset, divide_samples
from edgefl.data.datasets.fetch import RemoteFile, find_file, find_or_download
from edgefl.data.recordings import find_recordings
from edgefl.data.train_test import split_by_owner, split_train_test

ARCHIVE = "uci_har.zip"
REMOTE = RemoteFile(
    "https://archive.ics.uci.edu/static/public/240/human+activity+recognition+using+smartphones.zip",
    "sha256:c00b803081a5c797cd5e4b83700a9810b38d53d9d84e01917e090e1fdbc81031",
)
CHANNELS = tuple(f"{signal}_{axis}" for signal in ("body_acc", "body_gyro", "total_acc") for axis in "xyz")
TEST_WEARERS = (2, 4, 9, 10, 12, 13, 18, 20, 24)
WINDOW_ROWS = 128
# Fixed, so that a device can apply the same constants. Units: g, rad/s, g. Rounded statistics of the
# training part of 20 wearers.
CHANNEL_MEAN = np.array([0, 0, 0, 0, 0, 0, 0.8, 0, 0], np.float32)
CHANNEL_SCALE = np.array([0.19, 0.12, 0.11, 0.39, 0.37, 0.26, 0.4, 0.38, 0.36], np.float32)


def load(*, split: str = "own", test_share: float = 0.2, standardise: bool = True) -> Dataset:
    """Load the windows, with wearers as groups.

    Args:
        split: `own` holds out whole recordings of each wearer, which are found by overlapping windows: see
            `edgefl.data.train_test`. `wearer` holds out the nine wearers of the published test part.
        test_share: share of the windows of each wearer and activity to hold out with `own`, between 0 and 1.
            The held-out share is approximate.
        standardise: subtract a fixed mean from each channel and divide by a fixed scale, so that channels in
            g and in rad/s have similar ranges. Without it, values are in g and rad/s.

    Returns:
        The data set. Windows have shape (n, 128, 9), float32.

    Raises:
        DataError: `split` or `test_share` is invalid, or the files are missing and cannot be downloaded, or
            are damaged.
    """
    if split not in ("own", "wearer"):
        raise DataError(f"split is {split!r}, expected 'own' or 'wearer'")
    file = find_file("uci_har.npz")
    x, y, wearer = _read_npz(file) if file else read_zip(find_or_download(ARCHIVE, REMOTE))
    recording = np.zeros(len(y), np.int64)
    if split == "own":
        train_test = split_by_owner(
            wearer,
            lambda rows: split_train_test(
                x[rows].astype(np.float32), y[rows], test_share, derive_rng(1, 0, "split:")
            ),
        )
        train, test, recording = train_test.train, train_test.test, train_test.group
    else:
        held_out = np.isin(wearer, TEST_WEARERS)
        train = np.flatnonzero(~held_out)
        test = np.flatnonzero(held_out)
        recordings = find_recordings(x[train].astype(np.float32))
        recording = np.arange(len(train)) if recordings is None else recordings.group
    values = (x.astype(np.float32) - CHANNEL_MEAN) / CHANNEL_SCALE if standardise else x.astype(np.float32)
    count = len(np.unique(wearer))
    note = f"{count} of the 30 wearers" if count < 30 else ""
    return divide_samples(
        values, y, train, test, num_classes=6, group=wearer, recording_train=recording, note=note
    )


def _read_npz(path: Path) -> tuple[NDArray[Any], Labels, Labels]:
    x, y, wearer = read_arrays(path, ("x", "y", "subject")).values()
    return x, y.astype(np.int64), wearer.astype(np.int64)


def read_zip(path: Path) -> tuple[Array, Labels, Labels]:
    """Read the official archive, training part first.

    Returns:
        Windows, shape (n, 128, 9), float32, activities from 0 to 5, shape (n,), int64, and wearers, shape
        (n,), int64.

    Raises:
        DataError: the archive is damaged or is another archive.
    """
    try:
        with zipfile.ZipFile(path) as outer:
            inner = next((name for name in outer.namelist() if name.endswith("UCI HAR Dataset.zip")), None)
            with zipfile.ZipFile(io.BytesIO(outer.read(inner))) if inner else outer as archive:
                parts = [_read_zip_part(archive, part) for part in ("train", "test")]
    except (OSError, EOFError, KeyError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"{path} is not the official UCI HAR archive: {error}; remove it, and edgefl downloads it again"
        ) from error
    x, y, wearer = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return x, y, wearer


def _read_zip_part(archive: zipfile.ZipFile, part: str) -> tuple[Array, Labels, Labels]:
    def read_numbers(name: str) -> NDArray[np.float64]:
        return np.array(archive.read(f"UCI HAR Dataset/{part}/{name}_{part}.txt").split(), np.float64)

    x = np.stack(
        [read_numbers(f"Inertial Signals/{channel}").reshape(-1, WINDOW_ROWS) for channel in CHANNELS],
        axis=-1,
    )
    y, wearer = (read_numbers(name).astype(np.int64) for name in ("y", "subject"))
    if not len(x) == len(y) == len(wearer):
        raise ValueError(f"{len(x)} windows, {len(y)} labels and {len(wearer)} wearers in {part}")
    return x.astype(np.float32), y - 1, wearer

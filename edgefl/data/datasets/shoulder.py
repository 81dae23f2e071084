"""Shoulder exercises: a smartwatch's accelerations and rotations at 50 Hz, seven exercises by ten people.

Each person recorded each exercise once with each arm. Reads the `watch_dataset.npy` of the package seglearn,
or a `shoulder.npz` with `x` and with `ends`, `y` and `subject` of each recording.

Source: D. Burns et al., Shoulder physiotherapy exercise recognition, Physiological Measurement 39 (2018).
"""

import hashlib
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgefl.base.errors import DataError
from edgefl.base.rng import derive_rng
from edgefl.base.types import Array, Labels
from edgefl.data.arrays import read_arrays
from edgefl.data.dataset import Dataset, divide_samples
from edgefl.data.datasets.fetch import find_file, list_data_folders
from edgefl.data.datasets.joined import split_recordings
from edgefl.data.recordings import Recordings
from edgefl.data.sources.windows import cut_rows
from edgefl.data.train_test import split_by_owner, split_train_test

PUBLISHED_FILE = "watch_dataset.npy"
PUBLISHED_DIGEST = "eb122f23cdf06ef6bd6c6c5312958ec5cf9d038e2e6d457b8081662c75a42537"
"""SHA-256 of the file in seglearn 1.2.5. It holds Python objects, so that no other file is read."""
NUM_EXERCISES = 7
MANUAL_DOWNLOAD = (
    "run `pip download seglearn==1.2.5 --no-deps`, unzip the wheel, and copy its "
    f"seglearn/data/{PUBLISHED_FILE} there"
)


@dataclass(frozen=True)
class WatchRecordings:
    """All recordings of the data set.

    Attributes:
        rows: the rows of each recording, shape (length, 6), float32: accelerations in g, rotations in rad/s.
        exercise: the exercise of each recording, shape (n,), int64.
        person: the person of each recording, shape (n,), int64.
    """

    rows: tuple[Array, ...]
    exercise: Labels
    person: Labels


def load(*, window: int = 128, step: int = 64, test_share: float = 0.2) -> Dataset:
    """Load windows of the recordings, with people as groups.

    Whole parts of recordings of each person are held out: see `edgefl.data.train_test`.

    Args:
        window: rows of a window, 50 in a second.
        step: rows from one window to the next.
        test_share: share of the windows of each person and exercise to hold out, between 0 and 1.

    Returns:
        The data set. Windows have shape (n, window, 6), float32.

    Raises:
        DataError: an option is out of range, or the file is missing or damaged.
    """
    if window < 1 or step < 1:
        raise DataError(f"window is {window} and step is {step}, expected 1 or more")
    stored = _read_recordings()
    windows = [cut_rows(rows, window, step) for rows in stored.rows]
    counts = [len(part) for part in windows]
    if not all(counts):
        shortest = min(map(len, stored.rows))
        raise DataError(
            f"window is {window}, expected at most {shortest}, the rows of the shortest recording"
        )
    x = np.concatenate(windows)
    y, person, recording = (
        np.repeat(values, counts) for values in (stored.exercise, stored.person, np.arange(len(counts)))
    )
    start = np.concatenate([step * np.arange(count) for count in counts])
    recordings = Recordings(recording, start, window)
    split = split_by_owner(
        person,
        lambda rows: split_train_test(
            x[rows], y[rows], test_share, derive_rng(1, 0, "split:"), recordings=recordings.select(rows)
        ),
    )
    return divide_samples(
        x,
        y,
        split.train,
        split.test,
        num_classes=NUM_EXERCISES,
        group=person,
        recording_train=split.group,
    )


def _read_recordings() -> WatchRecordings:
    if file := find_file("shoulder.npz"):
        x, ends, exercise, person = read_arrays(file, ("x", "ends", "y", "subject")).values()
        rows = split_recordings(file, x.astype(np.float32), ends, exercise, person)
        return WatchRecordings(rows, exercise.astype(np.int64), person.astype(np.int64))
    if file := find_file(PUBLISHED_FILE):
        return read_published_file(file)
    raise DataError(f"no {PUBLISHED_FILE} in {' or '.join(map(str, list_data_folders()))}; {MANUAL_DOWNLOAD}")


def read_published_file(path: Path, digest: str = PUBLISHED_DIGEST) -> WatchRecordings:
    """Read the recordings of seglearn's file.

    Args:
        digest: its SHA-256 in hexadecimal.

    Raises:
        DataError: the file cannot be read, or has another digest.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}; copy it again") from error
    received = hashlib.sha256(content).hexdigest()
    if received != digest:
        raise DataError(f"{path} has the SHA-256 {received}, expected {digest}; {MANUAL_DOWNLOAD}")
    stored = np.load(io.BytesIO(content), allow_pickle=True).item()
    return WatchRecordings(
        rows=tuple(np.asarray(rows, np.float32) for rows in stored["X"]),
        exercise=np.asarray(stored["y"], np.int64),
        person=np.asarray(stored["subject"], np.int64),
    )

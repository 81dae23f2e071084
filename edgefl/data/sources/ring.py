"""The last windows of a recording: a ring in memory, and the `.npz` that it is kept in, which `--data` reads
as a shard.

Arrays: x float32[n, window, channels], y int64[n], window_number int64[n] (which window of all that were ever
recorded), recording int64[n] (the number of the first window of the same sensor without a gap), first_row
int64[n] (the window's first reading in that recording), channel_names, and class_names where labels have
names.
"""

import fcntl
import glob
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from edgefl.data.arrays import read_arrays
from edgefl.data.sources.classes import pack_class_names
from edgefl.errors import ConfigError, DataError, StateError
from edgefl.system.files import SECRET_MODE, write_state
from edgefl.types import Array

MAX_RING_BYTES = 1 << 30
RING_REMEDY = "give another -o, or remove the file"


def check_ring_size(capacity: int, window: int, channels: int) -> None:
    """Raise ConfigError for a ring that would take too much memory."""
    if 4 * capacity * window * channels > MAX_RING_BYTES:
        size = f"{capacity} windows of {window} x {channels} values"
        raise ConfigError(f"{size} are above the limit of {MAX_RING_BYTES} bytes; take a smaller --capacity")


class Ring:
    """The newest `capacity` windows of float32[window, channels]. The memory is taken as it fills."""

    def __init__(
        self, capacity: int, window: int, channels: tuple[str, ...], classes: tuple[str, ...] = ()
    ) -> None:
        check_ring_size(capacity, window, len(channels))
        self.channels = channels
        self.classes = classes
        self._x = np.zeros((capacity, window, len(channels)), np.float32)
        self._y = np.zeros(capacity, np.int64)
        self._number = np.full(capacity, -1, np.int64)
        self._recording = np.zeros(capacity, np.int64)
        self._first_row = np.zeros(capacity, np.int64)
        self.recorded = 0

    def __len__(self) -> int:
        return int((self._number >= 0).sum())

    def add(self, x: Array, y: int, recording: int, first_row: int) -> None:
        """Put in a window; the oldest goes when there is no more room.

        Args:
            x: float32[window, channels].
            y: the label.
            recording: the recording that the window was cut from: `recorded` as its first window came.
            first_row: the window's first reading in that recording.
        """
        slot = self.recorded % len(self._y)
        self._number[slot] = -1  # an end in the midst of this leaves no window with another's label
        self._x[slot] = x
        self._y[slot] = y
        self._recording[slot] = recording
        self._first_row[slot] = first_row
        self._number[slot] = self.recorded
        self.recorded += 1

    def save(self, path: Path) -> None:
        """Replace the file, wholly or not at all. StateError when it cannot be written."""
        filled = self._number >= 0
        count = len(self)
        buffer = io.BytesIO()
        # A view where there is no gap, not a copy
        rows = slice(0, count) if filled[:count].all() else filled
        arrays: dict[str, Any] = {
            "x": self._x[rows],
            "y": self._y[rows],
            "window_number": self._number[rows],
            "recording": self._recording[rows],
            "first_row": self._first_row[rows],
        }
        arrays |= {"channel_names": np.array(self.channels), **pack_class_names(self.classes)}
        np.savez(buffer, **arrays)
        write_state(path, buffer.getvalue(), SECRET_MODE, "free some space, or take a smaller --capacity")


def load_ring(path: Path, capacity: int, window: int, classes: tuple[str, ...]) -> Ring | None:
    """Return what was kept, its newest `capacity` windows, or None when there is no file.

    DataError when the file is no ring, or one of other windows or classes.
    """
    if not path.exists():
        return None
    arrays = read_arrays(
        path,
        ("x", "y", "window_number", "recording", "first_row", "channel_names", "class_names"),
        some=True,
        remedy=RING_REMEDY,
    )
    if not {"x", "y", "window_number", "channel_names"} <= arrays.keys():
        raise DataError(
            f"{path} is no ring of `edgefl device record`, it holds {', '.join(arrays) or 'nothing'}; "
            f"{RING_REMEDY}"
        )
    x = arrays["x"]
    y = arrays["y"]
    number = arrays["window_number"]
    # a ring of an earlier version: each window counts as a recording of its own
    recording = arrays.get("recording", number)
    first_row = arrays.get("first_row", np.zeros_like(number))
    channels = tuple(map(str, arrays["channel_names"].ravel()))
    stored_classes = tuple(map(str, arrays.get("class_names", np.array([]))))
    if (
        x.ndim != 3
        or x.shape[2] != len(channels)
        or not len(x) == y.size == number.size == recording.size == first_row.size
        or not len(x)
        or number.min() < 0
    ):
        raise DataError(
            f"{path} is damaged: x is {x.shape}, {y.size} labels, {number.size} numbers, {len(channels)} "
            f"channels; {RING_REMEDY}"
        )
    if x.shape[1] != window or stored_classes != classes:
        stored, requested = (
            f"windows of {n} rows, classes {', '.join(c) or 'by number'}"
            for n, c in ((x.shape[1], stored_classes), (window, classes))
        )
        raise DataError(f"{path} holds {stored}, asked for are {requested}; ask for the same, {RING_REMEDY}")
    ring = Ring(capacity, window, channels, classes)
    for index in np.argsort(number)[-capacity:]:
        ring.recorded = int(number[index])
        ring.add(x[index], int(y[index]), int(recording[index]), int(first_row[index]))
    return ring


@contextmanager
def lock_ring(path: Path) -> Iterator[None]:
    """Hold the file's lock, and clear away what a killed writer left beside it.

    StateError when another one writes it.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(path.with_name(f"{path.name}.lock"), os.O_CREAT | os.O_RDWR, 0o600)
    except OSError as error:
        raise StateError(
            f"cannot use {path.parent}: {error.strerror}; give a -o that this account can write"
        ) from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StateError(f"another recorder writes {path}; give each an -o of its own") from error
        for left in path.parent.glob(f".{glob.escape(path.name)}.*"):
            left.unlink(missing_ok=True)
        yield
    finally:
        os.close(lock)

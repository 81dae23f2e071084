"""A ring buffer for the latest windows of a recording, and the `.npz` file that stores it.

`--data` reads the file as a shard. It contains these arrays:

- `x`: windows, shape (n, window, channels), float32.
- `y`: labels, shape (n,), int64, or numbers to predict, shape (n,), float32. Missing without labels.
- `window_number`: position of each window among all windows ever recorded, shape (n,), int64.
- `recording`: number of the first window of the same sensor without a gap, shape (n,), int64.
- `first_row`: first reading of each window in that recording, shape (n,), int64.
- `channel_names`: names of the channels.
- `class_names`: names of the classes, if labels have names.
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
from numpy.typing import NDArray

from edgefl.base.errors import ConfigError, DataError, StateError
from edgefl.base.system.files import SECRET_MODE, open_no_link, write_state
from edgefl.base.types import Array
from edgefl.data.arrays import read_arrays
from edgefl.data.sources.classes import pack_class_names

MAX_RING_BYTES = 1 << 30
CLASS_LABELS = "classes"
TARGET_LABELS = "targets"
NO_LABELS = "none"
LABEL_FORMS = {
    CLASS_LABELS: "windows with classes",
    TARGET_LABELS: "windows with numbers to predict",
    NO_LABELS: "windows without labels",
}
"""What the labels of a ring are, with a description."""
RING_REMEDY = "use another -o, or remove the file"


def check_ring_size(capacity: int, window: int, channels: int) -> None:
    """Check that a ring does not need too much memory.

    Args:
        capacity: maximum number of windows.
        window: rows per window.

    Raises:
        ConfigError: the ring would exceed `MAX_RING_BYTES`.
    """
    if 4 * capacity * window * channels > MAX_RING_BYTES:
        size = f"{capacity} windows of {window} x {channels} values"
        raise ConfigError(f"{size} exceed the limit of {MAX_RING_BYTES} bytes; use a smaller --capacity")


class Ring:
    """The newest windows of a recording. Memory is used only as the ring fills.

    Args:
        capacity: maximum number of windows.
        window: rows per window.
        channels: names of the channels.
        classes: names of the classes, empty if labels are numbers.
        labels: what the labels are, one of `LABEL_FORMS`.

    Raises:
        ConfigError: the ring would exceed `MAX_RING_BYTES`.
    """

    def __init__(
        self,
        capacity: int,
        window: int,
        channels: tuple[str, ...],
        classes: tuple[str, ...] = (),
        labels: str = CLASS_LABELS,
    ) -> None:
        check_ring_size(capacity, window, len(channels))
        self.channels = channels
        self.classes = classes
        self._x = np.zeros((capacity, window, len(channels)), np.float32)
        self.labels = labels
        self._y: NDArray[Any] = np.zeros(capacity, np.float32 if labels == TARGET_LABELS else np.int64)
        self._number = np.full(capacity, -1, np.int64)
        self._recording = np.zeros(capacity, np.int64)
        self._first_row = np.zeros(capacity, np.int64)
        self.recorded = 0

    def __len__(self) -> int:
        return int((self._number >= 0).sum())

    def add(self, x: Array, y: float, recording: int, first_row: int) -> None:
        """Add a window, which replaces the oldest window of a full ring.

        Args:
            x: the window, shape (window, channels), float32.
            y: the class, or the number to predict. Without labels, it has no effect.
            recording: number of the recording that the window was cut from: the value of `recorded` before
                its first window was added.
            first_row: first reading of the window in that recording.
        """
        slot = self.recorded % len(self._y)
        self._number[slot] = -1  # a process that ends here leaves no window with the label of another
        self._x[slot] = x
        self._y[slot] = y
        self._recording[slot] = recording
        self._first_row[slot] = first_row
        self._number[slot] = self.recorded
        self.recorded += 1

    def save(self, path: Path) -> None:
        """Write the ring to a file atomically.

        Raises:
            StateError: the file cannot be written.
        """
        filled = self._number >= 0
        count = len(self)
        buffer = io.BytesIO()
        # Without gaps, a slice avoids copying the windows.
        rows = slice(0, count) if filled[:count].all() else filled
        arrays: dict[str, Any] = {
            "x": self._x[rows],
            "y": self._y[rows],
            "window_number": self._number[rows],
            "recording": self._recording[rows],
            "first_row": self._first_row[rows],
        }
        arrays |= {"channel_names": np.array(self.channels), **pack_class_names(self.classes)}
        if self.labels == NO_LABELS:
            del arrays["y"]
        np.savez(buffer, **arrays)
        write_state(path, buffer.getvalue(), SECRET_MODE, "free some space, or use a smaller --capacity")


def load_ring(
    path: Path, capacity: int, window: int, classes: tuple[str, ...], labels: str = CLASS_LABELS
) -> Ring | None:
    """Load the newest `capacity` windows of a ring file, or return None if there is no file.

    Args:
        capacity: maximum number of windows.
        window: expected rows per window.
        classes: expected names of the classes.
        labels: what the labels are expected to be, one of `LABEL_FORMS`.

    Raises:
        DataError: the file is not a ring, is damaged, or has other windows, labels or classes.
        ConfigError: the ring would exceed `MAX_RING_BYTES`.
    """
    if not path.exists():
        return None
    arrays = read_arrays(
        path,
        ("x", "y", "window_number", "recording", "first_row", "channel_names", "class_names"),
        some=True,
        remedy=RING_REMEDY,
    )
    if not {"x", "window_number", "channel_names"} <= arrays.keys():
        raise DataError(
            f"{path} is not a ring of `edgefl device record`, it contains {', '.join(arrays) or 'nothing'}; "
            f"{RING_REMEDY}"
        )
    x = arrays["x"]
    y = arrays.get("y", np.zeros(len(x) if x.ndim else 0, np.int64))
    number = arrays["window_number"]
    missing = np.zeros(0, np.int64)
    recording, first_row = arrays.get("recording", missing), arrays.get("first_row", missing)
    channels = tuple(map(str, arrays["channel_names"].ravel()))
    stored_classes = tuple(map(str, arrays.get("class_names", np.array([]))))
    if (
        x.ndim != 3
        or x.shape[2] != len(channels)
        or not len(x) == y.size == number.size == recording.size == first_row.size
        or not len(x)
        or number.min() < 0
        or y.dtype.kind not in "iuf"
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
        raise DataError(f"{path} holds {stored}, expected {requested}; use the same options, {RING_REMEDY}")
    stored_labels = NO_LABELS if "y" not in arrays else TARGET_LABELS if y.dtype.kind == "f" else CLASS_LABELS
    if stored_labels != labels:
        raise DataError(
            f"{path} holds {LABEL_FORMS[stored_labels]}, expected {LABEL_FORMS[labels]}; use the same "
            f"options, {RING_REMEDY}"
        )
    ring = Ring(capacity=capacity, window=window, channels=channels, classes=classes, labels=labels)
    for index in np.argsort(number)[-capacity:]:
        ring.recorded = int(number[index])
        ring.add(x[index], y.ravel()[index], int(recording[index]), int(first_row[index]))
    return ring


@contextmanager
def lock_ring(path: Path) -> Iterator[None]:
    """Hold the lock of a ring file, and remove the temporary files of a killed recorder.

    Raises:
        StateError: another recorder holds the lock, or the lock file cannot be created.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = open_no_link(path.with_name(f"{path.name}.lock"), os.O_CREAT | os.O_RDWR)
    except OSError as error:
        raise StateError(
            f"cannot use {path.parent}: {error.strerror}; use a -o that this account can write"
        ) from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StateError(f"another recorder writes to {path}; use a different -o for each") from error
        for left in path.parent.glob(f".{glob.escape(path.name)}.*"):
            left.unlink(missing_ok=True)
        yield
    finally:
        os.close(lock)

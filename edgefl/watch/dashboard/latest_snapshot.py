"""Passes the latest snapshot from the thread that reads messages to the threads that serve browsers."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from edgefl.watch.dashboard.patch import DeviceCache, Json, index_records, merge_patch


@dataclass(frozen=True)
class SnapshotUpdate:
    """An update for a browser.

    Attributes:
        kind: `whole` or `patch`.
        data: JSON.
        version: version of the snapshot that the browser then has.
    """

    kind: str
    data: bytes
    version: int


class LatestSnapshot:
    """The latest snapshot, with one writer and many readers.

    There is no queue per reader. A slow reader gets the whole snapshot again.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._latest: Json = {}
        self._device_cache: DeviceCache = {}
        self._update = SnapshotUpdate("patch", b"", 0)
        self._whole: SnapshotUpdate | None = None
        self._num_readers = 0
        self._closed = False

    @property
    def is_watched(self) -> bool:
        """Whether a browser is connected. Otherwise no snapshot is needed."""
        return self._num_readers > 0

    @property
    def is_closed(self) -> bool:
        """Whether the server is shutting down."""
        return self._closed

    def put(self, snapshot: Mapping[str, Any]) -> bool:
        """Store a snapshot and wake the readers.

        Args:
            snapshot: a snapshot of `edgefl.watch.dashboard.follower`.

        Returns:
            Whether the snapshot was stored. A snapshot that differs only in `ts` is not.
        """
        latest = index_records(snapshot, self._device_cache)
        patch = merge_patch(self._latest, latest)
        if patch.keys() <= {"ts"}:
            return False
        with self._changed:
            self._latest = latest
            self._whole = None
            self._update = SnapshotUpdate("patch", _encode(patch), self._update.version + 1)
            self._changed.notify_all()
        return True

    def wait_for_update(self, seen: int, timeout_s: float) -> SnapshotUpdate | None:
        """Wait for a version after `seen`.

        Args:
            seen: version that the reader has. 0 means none.
            timeout_s: seconds to wait.

        Returns:
            A patch if the reader has the previous version, otherwise the whole snapshot. None after
            `timeout_s`, or when the server shuts down.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._update.version > seen, timeout_s)
            version = self._update.version
            if self._closed or version <= seen:
                return None
            if seen and seen == version - 1:
                return self._update
            if self._whole is None:
                self._whole = SnapshotUpdate("whole", _encode(self._latest), version)
            return self._whole

    @contextmanager
    def count_reader(self) -> Iterator[int]:
        """Count a reader while this context is open. The context value is the number of readers."""
        with self._changed:
            self._num_readers += 1
            count = self._num_readers
        try:
            yield count
        finally:
            with self._changed:
                self._num_readers -= 1

    def close(self) -> None:
        """Wake all readers, so that they end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def _encode(value: Json) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()

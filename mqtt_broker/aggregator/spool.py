"""Updates on disk between their receipt and the end of the round: `aggregate` reads one at a time.

A client may be in a round twice, when its answer to an earlier task came late: an update is known by its
client and the task's round. They stand in one file, one after the other, each behind a line of JSON: to sync
one file that grew by ten updates costs a twentieth of syncing ten files.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from edgefl.errors import StateError
from edgefl.server.tasks import Expected
from edgefl.system.files import parse_json, sync_directory
from edgefl.types import Update, Weights
from edgefl.wire.messages import Begin
from edgefl.wire.tensors import decode_models

FILE = "updates"
MAX_LINE = 1024
KEPT_BYTES = 4 * 1024 * 1024
"""A round's first updates, so many bytes, are kept in memory too: what few clients sent need not be read and
decoded again.
"""
WRITE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Spooled:
    """An update that was checked: what was said about it, the tensors that it may hold, and where its bytes
    stand.

    deltas: what is in it, None where that is to be read.
    """

    begin: Begin
    expected: Expected
    codec: str
    offset: int
    deltas: Mapping[str, Weights] | None = None


class Spool:
    """The updates of one round, in a directory.

    What was `put` is safe after `sync`. StateError when the disk does not take it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._entries: dict[tuple[str, int], Spooled] = {}
        self._file: BinaryIO | None = None
        self._found: dict[tuple[str, str], tuple[int, int]] = {}
        self._end = self._begun = self._kept_bytes = 0

    @contextlib.contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        try:
            if self._file is None:
                self._directory.mkdir(parents=True, exist_ok=True)
                path = self._directory / FILE
                self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b")
                self._found, self._end = records(self._file)
                self._file.truncate(self._end)  # what was being written when the aggregator was killed
                for each in (self._directory, self._directory.parent):
                    sync_directory(each)
            yield self._file
        except OSError as error:
            raise StateError(
                f"cannot keep an update in {self._directory}: {error}; free some space or choose another "
                "--out"
            ) from error

    def put(
        self, begin: Begin, expected: Expected, codec: str, blob: bytes, deltas: Mapping[str, Weights]
    ) -> None:
        """Write an update whose tensors were checked; `deltas`: the tensors in it."""
        line = json.dumps([begin.client_id, begin.sha256, len(blob)]).encode() + b"\n"
        with self._opened() as file:
            file.seek(self._end)
            file.write(line)
            file.write(blob)
            file.flush()
            offset = self._end + len(line)
            self._end = self._end + len(line) + len(blob)
            if self._end - self._begun >= WRITE_BYTES:
                # Linux begins to write it to the disk then, and keeps it in memory until it is there: `sync`
                # has little left to wait for
                # Not every system has it, and none need follow
                with contextlib.suppress(AttributeError, OSError):
                    os.posix_fadvise(
                        file.fileno(), self._begun, self._end - self._begun, os.POSIX_FADV_DONTNEED
                    )
                self._begun = self._end
        size = sum(array.nbytes for weights in deltas.values() for array in weights.values())
        kept = deltas if self._kept_bytes + size <= KEPT_BYTES else None
        self._kept_bytes += size if kept else 0
        self._entries[begin.client_id, begin.round] = Spooled(begin, expected, codec, offset, kept)

    def sync(self) -> None:
        """Return when all that was put would survive a power cut."""
        with self._opened() as file:
            os.fsync(file.fileno())

    def restore(self, begin: Begin, expected: Expected, codec: str) -> bool:
        """Take an update again that this directory holds from before a restart.

        False when its bytes are not there whole.
        """
        with self._opened() as file:
            if (begin.client_id, begin.sha256) not in self._found:
                return False
            offset, size = self._found[begin.client_id, begin.sha256]
            file.seek(offset)
            if hashlib.sha256(file.read(size)).hexdigest() != begin.sha256:
                return False
        self._entries[begin.client_id, begin.round] = Spooled(begin, expected, codec, offset)
        return True

    def updates(self) -> Iterator[Update]:
        """Yield the updates sorted by client id and round, each read when its turn comes."""
        for key in sorted(self._entries):
            entry = self._entries[key]
            client_id = entry.begin.client_id
            deltas = entry.deltas
            if deltas is None:
                deltas = decode_models(self._read(entry), entry.expected, client_id, entry.codec)
            yield Update(client_id, entry.begin.round, entry.begin.num_samples, deltas, entry.begin.metrics)

    def _read(self, entry: Spooled) -> bytes:
        with self._opened() as file:
            file.seek(entry.offset)
            return file.read(entry.begin.size)

    def clear(self) -> None:
        """Forget all updates: their round is aggregated.

        The next one's are written over them, in space that the disk has given.
        """
        self._entries.clear()
        self._found.clear()
        self._end = self._begun = self._kept_bytes = 0

    def remove(self) -> None:
        """Forget all updates and the directory: the federation is over."""
        if self._file:
            self._file.close()
        shutil.rmtree(self._directory, ignore_errors=True)


def records(file: BinaryIO) -> tuple[dict[tuple[str, str], tuple[int, int]], int]:
    """Return where each whole record's bytes stand, as (client id, sha256) -> (offset, size), and where the
    last one ends.
    """
    found: dict[tuple[str, str], tuple[int, int]] = {}
    length = file.seek(0, os.SEEK_END)
    end = 0
    while end < length:
        file.seek(end)
        line = file.readline(MAX_LINE)
        try:
            client_id, sha256, size = parse_json(line)
            following = end + len(line) + int(size)
        except (ValueError, TypeError):
            break
        if not line.endswith(b"\n") or not end < following <= length:
            break
        found[str(client_id), str(sha256)] = (end + len(line), int(size))
        end = following
    return found, end

"""Updates on disk between their receipt and the end of the round: `aggregate` reads one at a time.

A client may be in a round twice, when its answer to an earlier task came late: a file is named by the client and the task's round.
"""

import hashlib
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from edgefl.errors import StateError
from edgefl.files import write_atomic
from edgefl.plan.spec import TensorSpec
from edgefl.types import Update
from edgefl.wire.messages import Begin
from edgefl.wire.tensors import decode_models

Expected = Mapping[str, tuple[TensorSpec, ...]]


@dataclass(frozen=True)
class Spooled:
    """An accepted update: what was said about it, and the tensors that it may hold."""

    begin: Begin
    expected: Expected
    codec: str


class Spool:
    """The accepted updates of one round, in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._entries: dict[tuple[str, int], Spooled] = {}

    def _path(self, begin: Begin) -> Path:
        return self._directory / f"{begin.client_id}@{begin.round}"

    def put(self, begin: Begin, expected: Expected, codec: str, blob: bytes) -> None:
        """Keep an update whose tensors were checked. StateError when the disk does not take it."""
        try:
            write_atomic(self._path(begin), blob)
        except OSError as error:
            raise StateError(f"cannot keep an update in {self._directory}: {error}; free some space or choose another --out") from error
        self._entries[begin.client_id, begin.round] = Spooled(begin, expected, codec)

    def restore(self, begin: Begin, expected: Expected, codec: str) -> bool:
        """Take an update again that this directory holds from before a restart; False when its bytes are not there whole."""
        try:
            blob = self._path(begin).read_bytes()
        except OSError:
            return False
        if hashlib.sha256(blob).hexdigest() != begin.sha256:
            return False
        self._entries[begin.client_id, begin.round] = Spooled(begin, expected, codec)
        return True

    def begins(self) -> list[Begin]:
        """Return what was said about each update, sorted by client id and round."""
        return [self._entries[key].begin for key in sorted(self._entries)]

    def updates(self) -> Iterator[Update]:
        """Yield the updates sorted by client id and round, each read when its turn comes."""
        for key in sorted(self._entries):
            begin, expected, codec = self._entries[key].begin, self._entries[key].expected, self._entries[key].codec
            deltas = decode_models(self._path(begin).read_bytes(), expected, begin.client_id, codec)
            yield Update(begin.client_id, begin.round, begin.num_samples, deltas, begin.metrics)

    def clear(self) -> None:
        """Forget all updates: their round is aggregated."""
        self._entries.clear()
        shutil.rmtree(self._directory, ignore_errors=True)

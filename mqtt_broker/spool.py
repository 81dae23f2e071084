"""Updates on disk between their receipt and the end of the round: `aggregate` reads one at a time."""

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
        self._entries: dict[str, Spooled] = {}

    def put(self, begin: Begin, expected: Expected, codec: str, blob: bytes) -> None:
        """Keep an update whose tensors were checked. StateError when the disk does not take it."""
        try:
            write_atomic(self._directory / begin.client_id, blob)
        except OSError as error:
            raise StateError(f"cannot keep an update in {self._directory}: {error}; free some space or choose another --out") from error
        self._entries[begin.client_id] = Spooled(begin, expected, codec)

    def restore(self, begin: Begin, expected: Expected, codec: str) -> bool:
        """Take an update again that this directory holds from before a restart; False when its bytes are not there whole."""
        try:
            blob = (self._directory / begin.client_id).read_bytes()
        except OSError:
            return False
        if hashlib.sha256(blob).hexdigest() != begin.sha256:
            return False
        self._entries[begin.client_id] = Spooled(begin, expected, codec)
        return True

    def begins(self) -> list[Begin]:
        """Return what was said about each update, sorted by client id."""
        return [self._entries[client_id].begin for client_id in sorted(self._entries)]

    def updates(self) -> Iterator[Update]:
        """Yield the updates sorted by client id, each read when its turn comes."""
        for client_id in sorted(self._entries):
            entry = self._entries[client_id]
            blob = (self._directory / client_id).read_bytes()
            deltas = decode_models(blob, entry.expected, client_id, entry.codec)
            yield Update(client_id, entry.begin.round, entry.begin.num_samples, deltas, entry.begin.metrics)

    def clear(self) -> None:
        """Forget all updates: their round is aggregated."""
        self._entries.clear()
        shutil.rmtree(self._directory, ignore_errors=True)

"""The spool of an aggregator whose workers write it: a file each, in a directory for each round, read here as
if they were one.

It takes updates itself as well, as `Spool` does, so that a federation may go on with another number of
workers, or with none.
"""

import hashlib
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from edgefl.errors import StateError
from edgefl.system.files import sync_directory
from edgefl.types import Weights
from edgefl.wire.messages import Begin
from mqtt_broker.aggregator.spool import FILE, Expected, Spool, Spooled, records

Places = dict[tuple[str, str], tuple[int, int]]
"""(client id, sha256) -> (offset, size) of an update's bytes."""


class SharedSpool(Spool):
    """The updates of one round, wherever in the directory they are.

    StateError when the disk does not give or take them.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(directory.resolve())
        self._round = secrets.token_hex(4)
        self._made = False
        self._paths: dict[tuple[str, int], Path] = {}
        self._places: dict[Path, Places] = {}

    def directory(self) -> Path:
        """Return where workers put the updates of this round; it is there."""
        path = self._directory / self._round
        if not self._made:
            with self._errors(path):
                path.mkdir(parents=True, exist_ok=True)
                for each in (path, self._directory, self._directory.parent):
                    sync_directory(each)
            self._made = True
        return path

    def holds(self, directory: Path) -> bool:
        """Whether a worker's directory is one of this round."""
        return directory.parent == self._directory / self._round

    @contextmanager
    def _errors(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StateError(
                f"cannot use {path}: {error}; free some space or choose another --out"
            ) from error

    def adopt(self, begin: Begin, expected: Expected, codec: str, directory: Path) -> None:
        """Note an update that a worker has checked and synced in its directory."""
        self._entries[begin.client_id, begin.round] = Spooled(begin, expected, codec, -1)
        self._paths[begin.client_id, begin.round] = directory / FILE

    def restore(self, begin: Begin, expected: Expected, codec: str) -> bool:
        """Take an update again that this directory or a worker's holds from before a restart.

        False when its bytes are not there whole.
        """
        if super().restore(begin, expected, codec):
            return True
        for path in sorted(self._directory.glob(f"*/*/{FILE}")):
            with self._errors(path), path.open("rb") as file:
                if path not in self._places:
                    self._places[path], _ = records(file)
                if (begin.client_id, begin.sha256) not in self._places[path]:
                    continue
                offset, size = self._places[path][begin.client_id, begin.sha256]
                file.seek(offset)
                if hashlib.sha256(file.read(size)).hexdigest() != begin.sha256:
                    continue
            self.adopt(begin, expected, codec, path.parent)
            return True
        return False

    def _read(self, entry: Spooled) -> bytes:
        begin = entry.begin
        path = self._paths.get((begin.client_id, begin.round))
        if path is None:
            return super()._read(entry)
        with self._errors(path), path.open("rb") as file:
            key = (begin.client_id, begin.sha256)
            if key not in self._places.get(path, {}):
                self._places[path], _ = records(file)
            file.seek(self._places[path][key][0])
            return file.read(begin.size)

    def put(
        self,
        begin: Begin,
        expected: Expected,
        codec: str,
        blob: bytes,
        deltas: Mapping[str, Weights] | None = None,
    ) -> None:
        """Write an update whose tensors were checked; `deltas`: what is in it, where that is known."""
        super().put(begin, expected, codec, blob, deltas)
        self._paths.pop((begin.client_id, begin.round), None)

    def clear(self) -> None:
        """Forget all updates: their round is aggregated."""
        super().clear()
        self._paths.clear()
        self._places.clear()
        for path in self._directory.glob("*/"):
            shutil.rmtree(path, ignore_errors=True)
        self._round = secrets.token_hex(4)
        self._made = False

"""What clients keep between rounds, on disk, so that memory does not grow with the number of clients."""

from collections.abc import Iterator, MutableMapping
from pathlib import Path

from edgefl.errors import StateError
from edgefl.storage.checkpoint import decode_client_state, encode_client_state
from edgefl.storage.run_directory import REMEDY, RunFiles
from edgefl.system.files import write_state
from edgefl.types import ClientState


def _parts_of(path: Path) -> tuple[str, str]:
    client_id, _, round = path.name.removesuffix(".safetensors").rpartition(".")
    return client_id, round


class FileStates(MutableMapping[str, ClientState]):
    """Client id -> state.

    A state is written beside the one of the last checkpoint; `keep` makes the newest ones the checkpoint.

    After a crash, `FileStates(files, round)` forgets what came after that round.
    Clients that keep nothing have no file.
    """

    def __init__(self, files: RunFiles, round: int) -> None:
        self._files = files
        self._round = round + 1
        self._kept: dict[str, int] = {}
        self._new: dict[str, int] = {}
        for path in sorted(files.clients.glob("*.safetensors*")):
            client_id, written = _parts_of(path)
            if path.name.startswith(".") or (written.isdecimal() and int(written) > round):
                path.unlink()  # of after the checkpoint, or half written
            elif written.isdecimal():
                self._kept[client_id] = max(int(written), self._kept.get(client_id, 0))
        for path in files.clients.glob("*.safetensors"):
            client_id, written = _parts_of(path)
            if written.isdecimal() and int(written) < self._kept[client_id]:
                path.unlink()

    def _path(self, client_id: str, round: int) -> Path:
        return self._files.client_state(client=client_id, round=round)

    def at(self, round: int) -> None:
        """Say which round's states are written from now on."""
        self._round = round

    def keep(self) -> None:
        """Remove what the checkpoint that was just written does not need."""
        for client_id, round in self._new.items():
            before = self._kept.get(client_id)
            if before is not None and before != round:
                self._path(client_id, before).unlink(missing_ok=True)
            self._kept[client_id] = round
        self._new.clear()

    def __getitem__(self, client_id: str) -> ClientState:
        """Read one client's newest state."""
        round = self._new.get(client_id, self._kept.get(client_id))
        if round is None:
            raise KeyError(client_id)
        path = self._path(client_id, round)
        try:
            return decode_client_state(path.read_bytes())
        except StateError as error:
            raise StateError(f"{path}: {error}") from error

    def __setitem__(self, client_id: str, state: ClientState) -> None:
        """Write one client's state of this round."""
        if not state.arrays and not state.scalars and client_id not in self:
            return
        before = self._new.get(client_id)
        path = self._path(client_id, self._round)
        write_state(path, encode_client_state(state), remedy=REMEDY)
        if before is not None and before != self._round:
            self._path(client_id, before).unlink(missing_ok=True)
        self._new[client_id] = self._round

    def __delitem__(self, client_id: str) -> None:
        """Forget a client."""
        found = {self._new.pop(client_id, None), self._kept.pop(client_id, None)} - {None}
        if not found:
            raise KeyError(client_id)
        for round in found:
            self._path(client_id, round or 0).unlink(missing_ok=True)

    def __iter__(self) -> Iterator[str]:
        """Clients that keep something."""
        return iter(sorted({**self._kept, **self._new}))

    def __len__(self) -> int:
        """Return how many clients keep something."""
        return len({**self._kept, **self._new})

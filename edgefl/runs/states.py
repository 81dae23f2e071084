"""What clients keep between rounds, on disk, so that memory does not grow with the number of clients."""

from collections.abc import Iterator, MutableMapping
from pathlib import Path

from edgefl.errors import StateError
from edgefl.storage.checkpoint import decode_client_state, encode_client_state
from edgefl.storage.run_directory import RUN_SPACE_REMEDY, RunFiles
from edgefl.system.files import write_state
from edgefl.types import ClientState


def _split_name(path: Path) -> tuple[str, str]:
    client_id, _, round = path.name.removesuffix(".safetensors").rpartition(".")
    return client_id, round


class FileStates(MutableMapping[str, ClientState]):
    """A mapping from client ids to client states in files.

    A new state is written next to the state of the last checkpoint. `commit` makes the newest states the
    checkpoint. After a crash, `FileStates(files, round)` discards the states after that round. A client
    with an empty state has no file.
    """

    def __init__(self, files: RunFiles, round: int) -> None:
        self._files = files
        self._round = round + 1
        self._committed: dict[str, int] = {}
        self._uncommitted: dict[str, int] = {}
        for path in sorted(files.clients.glob("*.safetensors*")):
            client_id, written = _split_name(path)
            if path.name.startswith(".") or (written.isdecimal() and int(written) > round):
                path.unlink()  # of after the checkpoint, or half written
            elif written.isdecimal():
                self._committed[client_id] = max(int(written), self._committed.get(client_id, 0))
        for path in files.clients.glob("*.safetensors"):
            client_id, written = _split_name(path)
            if written.isdecimal() and int(written) < self._committed[client_id]:
                path.unlink()

    def _locate(self, client_id: str, round: int) -> Path:
        return self._files.client_state(client=client_id, round=round)

    def set_round(self, round: int) -> None:
        """Say which round's states are written from now on."""
        self._round = round

    def commit(self) -> None:
        """Remove what the checkpoint that was just written does not need."""
        for client_id, round in self._uncommitted.items():
            before = self._committed.get(client_id)
            if before is not None and before != round:
                self._locate(client_id, before).unlink(missing_ok=True)
            self._committed[client_id] = round
        self._uncommitted.clear()

    def __getitem__(self, client_id: str) -> ClientState:
        """Read one client's newest state."""
        round = self._uncommitted.get(client_id, self._committed.get(client_id))
        if round is None:
            raise KeyError(client_id)
        path = self._locate(client_id, round)
        try:
            return decode_client_state(path.read_bytes())
        except StateError as error:
            raise StateError(f"{path}: {error}") from error

    def __setitem__(self, client_id: str, state: ClientState) -> None:
        """Write one client's state of this round."""
        if not state.arrays and not state.scalars and client_id not in self:
            return
        before = self._uncommitted.get(client_id)
        path = self._locate(client_id, self._round)
        write_state(path, encode_client_state(state), remedy=RUN_SPACE_REMEDY)
        if before is not None and before != self._round:
            self._locate(client_id, before).unlink(missing_ok=True)
        self._uncommitted[client_id] = self._round

    def __delitem__(self, client_id: str) -> None:
        """Forget a client."""
        rounds = {self._uncommitted.pop(client_id, None), self._committed.pop(client_id, None)} - {None}
        if not rounds:
            raise KeyError(client_id)
        for round in rounds:
            self._locate(client_id, round or 0).unlink(missing_ok=True)

    def __iter__(self) -> Iterator[str]:
        """Clients that keep something."""
        return iter(sorted({**self._committed, **self._uncommitted}))

    def __len__(self) -> int:
        """Return how many clients keep something."""
        return len({**self._committed, **self._uncommitted})

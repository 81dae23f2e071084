"""Stores client states on disk, so that memory does not grow with the number of clients."""

from collections.abc import Iterator, MutableMapping
from pathlib import Path

from edgefl.base.errors import StateError
from edgefl.base.storage.run_directory import RUN_SPACE_REMEDY, RunFiles
from edgefl.base.system.files import write_state
from edgefl.base.types import ClientState
from edgefl.learning.checkpoint import decode_client_state, encode_client_state


def _split_name(path: Path) -> tuple[str, str]:
    client_id, _, round = path.name.removesuffix(".safetensors").rpartition(".")
    return client_id, round


def find_committed_rounds(files: RunFiles, round: int) -> dict[str, int]:
    """Return the round of each client's newest state up to a checkpoint, by client id."""
    rounds: dict[str, int] = {}
    for path in sorted(files.clients.glob("*.safetensors")):
        client_id, written = _split_name(path)
        if not path.name.startswith(".") and written.isdecimal() and int(written) <= round:
            rounds[client_id] = max(int(written), rounds.get(client_id, 0))
    return rounds


def load_committed_states(files: RunFiles, round: int) -> dict[str, ClientState]:
    """Return the client states of a checkpoint by client id, without changing a file.

    Raises:
        StateError: a file is damaged.
    """
    return {
        client_id: _load_state(files.client_state(client=client_id, round=written))
        for client_id, written in find_committed_rounds(files, round).items()
    }


def _load_state(path: Path) -> ClientState:
    try:
        return decode_client_state(path.read_bytes())
    except StateError as error:
        raise StateError(f"{path}: {error}") from error


class FileStates(MutableMapping[str, ClientState]):
    """A mapping from client ids to client states in files.

    A new state is written next to the state of the last checkpoint. `commit` makes the newest states the
    checkpoint. A client whose state was always empty has no file.

    Args:
        round: round of the last checkpoint, 0 before the first. States of later rounds are deleted.
    """

    def __init__(self, files: RunFiles, round: int) -> None:
        self._files = files
        self._round = round + 1
        self._committed = find_committed_rounds(files, round)
        self._uncommitted: dict[str, int] = {}
        for path in sorted(files.clients.glob("*.safetensors*")):
            _, written = _split_name(path)
            if path.name.startswith(".") or (written.isdecimal() and int(written) > round):
                path.unlink()  # written after the checkpoint, or incomplete
        for path in files.clients.glob("*.safetensors"):
            client_id, written = _split_name(path)
            if written.isdecimal() and int(written) < self._committed[client_id]:
                path.unlink()

    def _locate(self, client_id: str, round: int) -> Path:
        return self._files.client_state(client=client_id, round=round)

    def set_round(self, round: int) -> None:
        """Set the round under which states are written from now on."""
        self._round = round

    def commit(self) -> None:
        """Make the newest states the checkpoint, and remove the states of the previous checkpoint."""
        for client_id, round in self._uncommitted.items():
            before = self._committed.get(client_id)
            if before is not None and before != round:
                self._locate(client_id, before).unlink(missing_ok=True)
            self._committed[client_id] = round
        self._uncommitted.clear()

    def __getitem__(self, client_id: str) -> ClientState:
        """Return the newest state of a client.

        Raises:
            KeyError: the client has no state.
            StateError: the file is damaged.
        """
        round = self._uncommitted.get(client_id, self._committed.get(client_id))
        if round is None:
            raise KeyError(client_id)
        return _load_state(self._locate(client_id, round))

    def __setitem__(self, client_id: str, state: ClientState) -> None:
        """Write the state of a client after the current round.

        Raises:
            StateError: the file cannot be written.
        """
        if not state.arrays and not state.records and client_id not in self:
            return
        before = self._uncommitted.get(client_id)
        path = self._locate(client_id, self._round)
        write_state(path, encode_client_state(state), remedy=RUN_SPACE_REMEDY)
        if before is not None and before != self._round:
            self._locate(client_id, before).unlink(missing_ok=True)
        self._uncommitted[client_id] = self._round

    def __delitem__(self, client_id: str) -> None:
        """Delete the states of a client.

        Raises:
            KeyError: the client has no state.
        """
        rounds = {self._uncommitted.pop(client_id, None), self._committed.pop(client_id, None)} - {None}
        if not rounds:
            raise KeyError(client_id)
        for round in rounds:
            self._locate(client_id, round or 0).unlink(missing_ok=True)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the ids of the clients that have a state, sorted."""
        return iter(sorted({**self._committed, **self._uncommitted}))

    def __len__(self) -> int:
        """Return the number of clients that have a state."""
        return len({**self._committed, **self._uncommitted})

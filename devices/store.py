"""The state directory of a device.

A finished round is one file: a line of JSON, the encoded update, and the client state. Its name contains a
rising number and the sha256 of the file. So the update and the state of a round are always stored together.

The file of the previous round also stays, because a memory card that lost power may lack data that it
acknowledged. The device then trains the last round again. The result has the same bits.
"""

import fcntl
import hashlib
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgefl.base.errors import StateError, WireError
from edgefl.base.storage.device_directory import (
    STATE_ACCESS_REMEDY,
    DeviceFiles,
    check_note_format,
    decode_note,
    encode_note,
)
from edgefl.base.system.files import SECRET_MODE, open_no_link, remove_state, write_errors, write_state
from edgefl.base.types import ClientState, Mixture
from edgefl.learning.checkpoint import decode_client_state, encode_client_state
from edgefl.learning.personal_model import save_personal_model
from edgefl.program.plan.spec import Plan
from edgefl.protocol.wire.strict_json import decode_json, encode_json

MAX_MASKED_SESSIONS = 64
MAX_STORED_ROUNDS = 2
"""Number of files of rounds on the disk. The older one serves when the newer one is damaged."""
ROUND_PATTERN = re.compile(r"round-([1-9][0-9]{0,17})-[0-9a-f]{64}")
RESTART_REMEDY = "restart this device, which then continues from the file before it"


@dataclass(frozen=True)
class FinishedRound:
    """The last round that this device finished.

    Attributes:
        session: id of the session.
        round: number of the round.
        phase: phase of the round.
        num_samples: number of samples that weigh the update.
        metrics: metrics of the update.
        update_bytes: size of the encoded update.
        masked_sessions: the newest sessions for which this device masked an update, at most
            MAX_MASKED_SESSIONS.
    """

    session: str
    round: int
    phase: str
    num_samples: int
    metrics: Mapping[str, float]
    update_bytes: int
    masked_sessions: tuple[str, ...] = ()


def _try_lock(lock: int, kind: int) -> bool:
    # Tried twice, because `device status` may hold the lock for an instant
    for wait_s in (0.1, 0.0):
        try:
            fcntl.flock(lock, kind | fcntl.LOCK_NB)
            return True
        except OSError:
            time.sleep(wait_s)
    return False


def is_in_use(directory: Path) -> bool:
    """Return whether a device runs with a state directory.

    Raises:
        StateError: this account may not read the lock file.
    """
    path = DeviceFiles(directory).lock
    try:
        lock = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StateError(
            f"cannot read {path}: {error.strerror}; use the account that runs the device"
        ) from error
    try:
        return not _try_lock(lock, fcntl.LOCK_SH)
    finally:
        os.close(lock)


def read_last_round(directory: Path) -> FinishedRound | None:
    """Return the last round that the device of a state directory finished, or None before the first.

    Raises:
        StateError: the file is damaged or cannot be read, or another version of edgefl wrote the directory.
    """
    files = DeviceFiles(directory)
    if (note := _read(files.note)) is not None:
        check_note_format(files.note, note)
    while rounds := _list_rounds(files):
        try:
            return _read_round(rounds[0]).finished
        except StateError:
            # The device of this directory may have removed the file after it was listed
            if rounds == _list_rounds(files):
                raise
    return None


@dataclass(frozen=True)
class _StoredRound:
    """The content of the file of a round.

    Attributes:
        finished: the round.
        update: the encoded update.
        state: the encoded client state.
    """

    finished: FinishedRound
    update: bytes
    state: bytes

    def encode(self) -> bytes:
        """Return the content of the file: a line of JSON, the update, and the client state."""
        return b"".join((encode_json(self.finished), b"\n", self.update, self.state))


class _DamagedRoundError(StateError):
    """Raised when the file of a round is missing or differs from its digest."""


def _list_rounds(files: DeviceFiles) -> list[Path]:
    """Return the files of the finished rounds, the newest first."""
    try:
        paths = [path for path in files.root.glob(DeviceFiles.round.pattern) if _parse_number(path)]
    except OSError as error:
        raise StateError(f"cannot list {files.root}: {error.strerror}; {STATE_ACCESS_REMEDY}") from error
    return sorted(paths, key=_parse_number, reverse=True)


def _parse_number(path: Path) -> int:
    """Return the number in the name of a round's file, from 1. 0: the file is not one of a round."""
    match = ROUND_PATTERN.fullmatch(path.name)
    return int(match[1]) if match else 0


def _read_round(path: Path) -> _StoredRound:
    """Read the file of a round.

    Raises:
        _DamagedRoundError: the file is missing or damaged.
        StateError: the file cannot be read.
    """
    content = _read(path)
    if content is None:
        raise _DamagedRoundError(f"{path} is missing; {RESTART_REMEDY}")
    sha256 = hashlib.sha256(content).hexdigest()
    if sha256 != path.name.rpartition("-")[2]:
        raise _DamagedRoundError(
            f"{path} is damaged: its sha256 is {sha256}, expected the one in its name; {RESTART_REMEDY}"
        )
    header, _, blobs = content.partition(b"\n")
    try:
        finished = decode_json(FinishedRound, header)
    except WireError as error:
        raise _DamagedRoundError(f"{path} is damaged: {error}; {RESTART_REMEDY}") from error
    return _StoredRound(finished, blobs[: finished.update_bytes], blobs[finished.update_bytes :])


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(
            f"cannot read {path}: {error.strerror}; let this account read it, or pass another --state"
        ) from error


class DeviceStore:
    """The files of one device in its state directory. The directory is locked until `close`.

    Args:
        directory: the state directory. It is created if it does not exist.

    Attributes:
        recovered: a message for the log if the files of the last round were damaged, otherwise empty.

    Raises:
        StateError: the directory belongs to another device, is in use, is damaged, or cannot be written.
    """

    def __init__(self, directory: Path, client_id: str) -> None:
        self._files = DeviceFiles(directory)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock = open_no_link(self._files.lock, os.O_CREAT | os.O_RDWR, 0o644)
        except OSError as error:
            raise StateError(
                f"cannot use {directory}: {error.strerror}; pass a directory that this account can write"
            ) from error
        if not _try_lock(self._lock, fcntl.LOCK_EX):
            os.close(self._lock)
            raise StateError(f"another device uses {directory}; pass a separate --state to each device")
        try:
            self._check_owner(client_id)
            self._rounds = _list_rounds(self._files)
            # One value, because the worker reads it while the driver stores a round in another thread
            self._last: tuple[Path, FinishedRound] | None = None
            self.recovered = self._recover()
        except StateError:
            self.close()
            raise

    def _check_owner(self, client_id: str) -> None:
        content = _read(self._files.note)
        if content is not None:
            check_note_format(self._files.note, content)
        owner = self.read_note().get("id", client_id)
        if owner != client_id:
            raise StateError(
                f"{self._files.root} belongs to {owner!r}, this device is {client_id!r}; pass a separate "
                "--state to each device"
            )

    def _recover(self) -> str:
        """Return to the previous file if the file of the last round is damaged.

        Returns:
            A message for the log, empty if nothing is damaged.

        Raises:
            StateError: all files are damaged, and one is from a later round than the first. Or a file cannot
                be read or moved.
        """
        damage: list[StateError] = []
        for path in self._rounds:
            try:
                self._last = path, _read_round(path).finished
                break
            except _DamagedRoundError as error:
                damage.append(error)
        if not damage:
            return ""
        if self._last is None and _parse_number(self._rounds[0]) > 1:
            raise StateError(
                f"{damage[0]}, and no earlier round is stored; remove {self._files.root} to start with an "
                "empty state"
            )
        for _ in damage:
            with write_errors(self._files.damaged_round, STATE_ACCESS_REMEDY):
                self._rounds.pop(0).replace(self._files.damaged_round)
        if self._last is None:
            return "the file of the first round is damaged, as after a power cut; this device starts again"
        return (
            "the file of the last round is damaged, as after a power cut; this device continues from the "
            "file before it"
        )

    def close(self) -> None:
        """Unlock the directory."""
        os.close(self._lock)

    def read_note(self) -> dict[str, Any]:
        """Return the content of device.json, or an empty mapping if the file is missing or damaged.

        Raises:
            StateError: the file cannot be read.
        """
        try:
            return decode_note(_read(self._files.note) or b"{}")
        except ValueError:
            return {}  # Damaged, as after a power cut. The next round writes it again

    def save_note(self, note: Mapping[str, Any]) -> None:
        """Write device.json if its content changed.

        Args:
            note: id, federation, seed, data source and sketch of the samples of the device, and whether its
                updates are masked. The export reads it.

        Raises:
            StateError: the file cannot be written.
        """
        if self.read_note() != dict(note):
            write_state(self._files.note, encode_note(note), SECRET_MODE)

    def read_progress(self) -> FinishedRound | None:
        """Return the last finished round, or None before the first."""
        last = self._last
        return last[1] if last else None

    def read_update(self) -> bytes:
        """Return the encoded update of the last finished round, which is empty before the first.

        Raises:
            StateError: the file is missing or damaged.
        """
        last = self._last
        return _read_round(last[0]).update if last else b""

    def read_client_state(self, session: str) -> ClientState:
        """Return the client state of a session. A new session has an empty state.

        Args:
            session: id of the session.

        Raises:
            StateError: the file is missing or damaged, or another version of edgefl wrote it.
        """
        last = self._last
        if last is None or last[1].session != session:
            return ClientState()
        path, _ = last
        blob = _read_round(path).state
        try:
            return decode_client_state(blob)
        except StateError as error:
            raise StateError(f"{path}: {error}") from error

    def finish_round(
        self,
        session: str,
        round: int,
        phase: str,
        num_samples: int,
        metrics: Mapping[str, float],
        update: bytes,
        state: ClientState,
    ) -> FinishedRound:
        """Store the update and the client state of a round together.

        The device stores them before it sends the update, and answers a repeated task with the same bytes.

        Args:
            session: id of the session.
            num_samples: number of samples that weigh the update.
            update: the encoded update.
            state: the client state after the round.

        Returns:
            The stored round.

        Raises:
            StateError: a file cannot be read, written or removed.
        """
        before = self.read_progress()
        finished = FinishedRound(
            session=session,
            round=round,
            phase=phase,
            num_samples=num_samples,
            metrics=metrics,
            update_bytes=len(update),
            masked_sessions=before.masked_sessions if before else (),
        )
        self._write_round(_StoredRound(finished, update, encode_client_state(state)))
        return finished

    def _write_round(self, stored: _StoredRound) -> None:
        content = stored.encode()
        number = _parse_number(self._rounds[0]) + 1 if self._rounds else 1
        path = self._files.round(number=number, sha256=hashlib.sha256(content).hexdigest())
        write_state(path, content, SECRET_MODE)
        self._last = path, stored.finished
        self._rounds.insert(0, path)
        while len(self._rounds) > MAX_STORED_ROUNDS:
            remove_state(self._rounds.pop(), STATE_ACCESS_REMEDY)

    def mark_masked(self, session: str) -> None:
        """Record that this device masked an update of a session. It then sends no plain update of the
        session.

        Both stored files get the mark, so it survives damage of one of them.

        Args:
            session: the session of the last finished round.

        Raises:
            StateError: the file cannot be read or written.
        """
        if self._last is None or session in self._last[1].masked_sessions:
            return
        path, before = self._last
        sessions = (*before.masked_sessions, session)[-MAX_MASKED_SESSIONS:]
        marked = replace(_read_round(path), finished=replace(before, masked_sessions=sessions))
        for _ in range(MAX_STORED_ROUNDS):
            self._write_round(marked)

    def save_personal(self, plan: Plan, mixture: Mixture) -> None:
        """Write the plan and the mixture for the export on this device.

        Raises:
            StateError: a file cannot be written.
        """
        save_personal_model(self._files, plan, mixture)

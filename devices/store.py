"""The state directory of a device.

The files of a round are written under new names first. `progress.json` names them and is written last.

The files of the previous round also stay, because a memory card that lost power may lack data that it
acknowledged. The device then trains the last round again. The result has the same bits.
"""

import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgefl.errors import StateError, WireError
from edgefl.plan.spec import Plan
from edgefl.storage.checkpoint import decode_client_state, encode_client_state
from edgefl.storage.device_directory import (
    STATE_ACCESS_REMEDY,
    DeviceFiles,
    check_note_format,
    decode_note,
    encode_note,
    save_personal_model,
)
from edgefl.storage.directory import FileSeries
from edgefl.system.files import SECRET_MODE, open_no_link, remove_state, write_errors, write_state
from edgefl.types import ClientState, Mixture
from edgefl.wire.strict_json import decode_json, encode_json

MAX_MASKED_SESSIONS = 64


@dataclass(frozen=True)
class FinishedRound:
    """The last round that this device finished, with the files of its update and its client state.

    Attributes:
        session: id of the session.
        round: number of the round.
        phase: phase of the round.
        num_samples: number of samples that weigh the update.
        metrics: metrics of the update.
        update: file name of the encoded update.
        client_state: file name of the encoded client state.
        masked_sessions: the newest sessions for which this device masked an update, at most
            MAX_MASKED_SESSIONS.
    """

    session: str
    round: int
    phase: str
    num_samples: int
    metrics: Mapping[str, float]
    update: str
    client_state: str
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

    Args:
        directory: the state directory.

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

    Args:
        directory: the state directory.

    Raises:
        StateError: the file is damaged or cannot be read.
    """
    return _read_progress(DeviceFiles(directory).progress)


def _read_progress(path: Path) -> FinishedRound | None:
    content = _read(path)
    try:
        return None if content is None else decode_json(FinishedRound, content)
    except WireError as error:
        raise StateError(
            f"{path} is damaged: {error}; remove {path.parent} to start with an empty state"
        ) from error


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(
            f"cannot read {path}: {error.strerror}; let this account read it, or pass another --state"
        ) from error


def _write_named(path_of: Callable[..., Path], content: bytes) -> str:
    path = path_of(sha256=hashlib.sha256(content).hexdigest())
    write_state(path, content, SECRET_MODE)
    return path.name


class DeviceStore:
    """The files of one device in its state directory. The directory is locked until `close`.

    Args:
        directory: the state directory. It is created if it does not exist.
        client_id: id of the device.

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
        """Return to the previous round if the files of the last round are damaged or missing.

        Returns:
            A message for the log, empty if nothing is damaged.

        Raises:
            StateError: the files of the previous round are damaged too, or a file cannot be read or written.
        """
        path = self._files.progress
        before = _read(self._files.progress_before)
        try:
            self._check(path)
            if before is None or path.exists():
                return ""
            damage = StateError(f"{path} is missing; remove {path.parent} to start with an empty state")
        except StateError as error:
            damage = error
        if before is None:  # The damaged round was the first
            with write_errors(self._files.progress_damaged, STATE_ACCESS_REMEDY):
                path.replace(self._files.progress_damaged)
            return (
                f"{path.name} of the first round is damaged, as after a power cut; this device starts again"
            )
        try:
            self._check(self._files.progress_before)
        except StateError:
            raise damage from None
        write_state(path, before, SECRET_MODE)
        return (
            "files of the last round are damaged or missing, as after a power cut; this device continues "
            "from the previous round"
        )

    def _check(self, path: Path) -> None:
        progress = _read_progress(path)
        for file in (progress.update, progress.client_state) if progress else ():
            self._read_named(file)

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
        """Return the last finished round, or None before the first.

        Raises:
            StateError: the file is damaged or cannot be read.
        """
        return _read_progress(self._files.progress)

    def read_update(self, progress: FinishedRound) -> bytes:
        """Return the encoded update of a finished round.

        Args:
            progress: the finished round.

        Raises:
            StateError: the file is missing or damaged.
        """
        return self._read_named(progress.update)

    def read_client_state(self, session: str) -> ClientState:
        """Return the client state of a session. A new session has an empty state.

        Args:
            session: id of the session.

        Raises:
            StateError: the file is missing or damaged, or another version of edgefl wrote it.
        """
        progress = self.read_progress()
        if progress is None or progress.session != session:
            return ClientState()
        blob = self._read_named(progress.client_state)
        try:
            return decode_client_state(blob)
        except StateError as error:
            raise StateError(f"{self._files.root / progress.client_state}: {error}") from error

    def _read_named(self, name: str) -> bytes:
        path = self._files.root / name
        content = _read(path)
        if content is None or hashlib.sha256(content).hexdigest() != name.rpartition("-")[2]:
            raise StateError(
                f"{path} is missing or damaged; remove {path.parent} to start with an empty state"
            )
        return content

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
            round: number of the round.
            phase: phase of the round.
            num_samples: number of samples that weigh the update.
            metrics: metrics of the update.
            update: the encoded update.
            state: the client state after the round.

        Returns:
            The stored round.

        Raises:
            StateError: a file cannot be read, written or removed.
        """
        update_name = _write_named(self._files.update, update)
        state_name = _write_named(self._files.client_state, encode_client_state(state))
        before = self.read_progress()
        masked_sessions = before.masked_sessions if before else ()
        progress = FinishedRound(
            session=session,
            round=round,
            phase=phase,
            num_samples=num_samples,
            metrics=metrics,
            update=update_name,
            client_state=state_name,
            masked_sessions=masked_sessions,
        )
        if before:
            write_state(self._files.progress_before, encode_json(before), SECRET_MODE)
        write_state(self._files.progress, encode_json(progress), SECRET_MODE)
        names = {
            name for record in (before, progress) if record for name in (record.update, record.client_state)
        }
        for series in (DeviceFiles.update, DeviceFiles.client_state):
            for path in self._list_files(series):
                if path.name not in names:
                    remove_state(path, STATE_ACCESS_REMEDY)
        return progress

    def _list_files(self, series: FileSeries) -> list[Path]:
        try:
            return list(self._files.root.glob(series.pattern))
        except OSError as error:
            raise StateError(
                f"cannot list {self._files.root}: {error.strerror}; {STATE_ACCESS_REMEDY}"
            ) from error

    def mark_masked(self, session: str) -> None:
        """Record that this device masked an update of a session. It then sends no plain update of the
        session.

        Args:
            session: the session of the last finished round.

        Raises:
            StateError: the file cannot be read or written.
        """
        progress = self.read_progress()
        if progress is None or session in progress.masked_sessions:
            return
        sessions = (*progress.masked_sessions, session)[-MAX_MASKED_SESSIONS:]
        write_state(
            self._files.progress, encode_json(replace(progress, masked_sessions=sessions)), SECRET_MODE
        )

    def save_personal(self, plan: Plan, mixture: Mixture) -> None:
        """Write the plan and the mixture for the export on this device.

        Args:
            plan: the plan.
            mixture: the personal model.

        Raises:
            StateError: a file cannot be written.
        """
        save_personal_model(self._files, plan, mixture)

"""Stores the data of a client machine in the state directory of a device."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from devices.blob_cache import BlobCache
from devices.store import DeviceStore, FinishedRound
from edgefl.base.errors import StateError, WireError
from edgefl.base.storage.device_directory import STATE_ACCESS_REMEDY, DeviceFiles
from edgefl.base.system.files import SECRET_MODE, remove_state, write_state
from edgefl.base.types import ClientState
from edgefl.protocol.device.events import (
    Answer,
    AnsweredRound,
    ClientAction,
    ForgetPendingTask,
    NewestRound,
    SavedClient,
    SaveMaskedSession,
    SaveOrder,
    SavePendingTask,
    SaveRound,
    StoreBlob,
    Train,
)
from edgefl.protocol.device.masked_rounds import EMPTY_ANSWER
from edgefl.protocol.device.order import RESET_REMEDY
from edgefl.protocol.wire.messages import Task
from edgefl.protocol.wire.strict_json import decode_json, encode_json


class DeviceStorage:
    """Stores the data of a client machine.

    Args:
        directory: the state directory.
        store: the files of the finished rounds.
        federation: name of the federation. Each federation has its own order of tasks.
        is_enrolled: whether messages are signed. Without signatures, anyone can forge the newest run. With a
            stored order, the device would then refuse all later tasks.

    Attributes:
        cache: the fetched blobs.
    """

    def __init__(self, directory: Path, store: DeviceStore, federation: str, is_enrolled: bool) -> None:
        files = DeviceFiles(directory)
        self.cache = BlobCache(files.blobs)
        self._store = store
        self._pending_path = files.pending_task
        self._order_path = files.order(federation=federation) if is_enrolled else None
        self._answers: dict[str, bytes] = {}
        self._states: dict[str, ClientState] = {}

    @property
    def reset_remedy(self) -> str:
        """How the owner makes the device forget the newest run."""
        return f"remove {self._order_path} and restart this device" if self._order_path else RESET_REMEDY

    def load(self) -> SavedClient:
        """Return the data that the device stored before its last stop.

        Raises:
            StateError: a file is damaged or cannot be read.
        """
        finished = self._store.read_progress()
        return SavedClient(
            answered=self._make_answered_round(finished) if finished else None,
            pending=self._read_pending(),
            newest=self._read_order(),
            masked_sessions=finished.masked_sessions if finished else (),
        )

    def _make_answered_round(self, finished: FinishedRound) -> AnsweredRound:
        update = self._store.read_update()
        answer = Answer(
            sha256=hashlib.sha256(update).hexdigest(),
            size=len(update),
            num_samples=finished.num_samples,
            metrics=finished.metrics,
        )
        return AnsweredRound(
            session=finished.session, round=finished.round, phase=finished.phase, answer=answer
        )

    def _read_pending(self) -> Task | None:
        try:
            return decode_json(Task, self._pending_path.read_bytes())
        except (OSError, WireError):
            # Missing, or damaged by a power cut. The round of a damaged task ends without this device
            return None

    def _read_order(self) -> NewestRound | None:
        try:
            return decode_json(NewestRound, self._order_path.read_bytes()) if self._order_path else None
        except FileNotFoundError:
            return None
        except (OSError, WireError) as error:
            raise StateError(
                f"cannot read {self._order_path}: {error}; remove it, and the device then accepts the next "
                "task that arrives"
            ) from error

    def add_answer(self, sha256: str, content: bytes, state: ClientState | None = None) -> None:
        """Keep a new answer in memory, until it is sent or another one is added.

        Args:
            sha256: digest of the answer in hex.
            content: the bytes of the answer.
            state: the client state after the round. None for an answer to a step of a masked round.
        """
        self._answers = {sha256: content}
        self._states = {} if state is None else {sha256: state}

    def has_unsaved_answer(self, sha256: str) -> bool:
        """Return whether the answer to a task was added, and its round is not stored yet.

        Args:
            sha256: digest of the answer in hex.
        """
        return sha256 in self._states

    def read_answer(self, sha256: str) -> bytes:
        """Return the bytes of the newest answer.

        Args:
            sha256: digest of the answer in hex.

        Raises:
            StateError: the file is missing or damaged.
        """
        if sha256 == EMPTY_ANSWER.sha256:
            return b""
        if sha256 not in self._answers:
            finished = self._store.read_progress()
            update = self._store.read_update() if finished else b""
            self._answers = {hashlib.sha256(update).hexdigest(): update}
        if sha256 not in self._answers:
            raise StateError(f"the answer {sha256[:8]} is not stored; restart this device")
        return self._answers[sha256]

    def find_blobs(self, digests: Iterable[str]) -> Mapping[str, bytes]:
        """Return the blobs of these digests that were fetched before, by sha256.

        Args:
            digests: digests of the blobs in hex.

        Raises:
            StateError: a file cannot be read.
        """
        cached = {sha256: self.cache.get(sha256) for sha256 in digests}
        return {sha256: blob for sha256, blob in cached.items() if blob is not None}

    def apply(self, action: ClientAction) -> None:
        """Perform a storage action. Ignore other actions.

        Args:
            action: an action of the client machine.

        Raises:
            StateError: a file cannot be written.
        """
        match action:
            case SaveRound(answered):
                answer = answered.answer
                self._store.finish_round(
                    session=answered.session,
                    round=answered.round,
                    phase=answered.phase,
                    num_samples=answer.num_samples,
                    metrics=answer.metrics,
                    update=self._answers[answer.sha256],
                    state=self._states.pop(answer.sha256),
                )
            case SaveMaskedSession(session):
                self._store.mark_masked(session)
            case SavePendingTask(task):
                write_state(self._pending_path, encode_json(task), SECRET_MODE)
            case ForgetPendingTask():
                self._answers.clear()
                remove_state(self._pending_path, STATE_ACCESS_REMEDY)
            case SaveOrder(newest) if self._order_path:
                write_state(self._order_path, encode_json(newest))
            case StoreBlob(content):
                self.cache.put(content)
            case Train():
                self._answers.clear()  # The answer to an earlier task, which may be read from its file

"""The protocol of one client, without I/O and without a clock.

It does what the device service does: it answers a task with an update, announces an update until it has a
receipt, and sends the chunks that the server lacks. `docs/protocol.md` describes the messages.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from edgefl.server.events import BeginReceived, ChunkReceived, EndReceived, Event, StatusReceived
from edgefl.wire.chunks import count_chunks, slice_chunk
from edgefl.wire.messages import Begin, Ranges, Receipt, Status, Task

ANNOUNCE_REPEAT_S = 4.0
"""An announcement without an answer is repeated after so many seconds."""
QUEUE_REPEAT_S = 20.0
"""A client that waits for an upload slot announces its update again after so many seconds."""


@dataclass(frozen=True)
class TrainedUpdate:
    """What a client sends as its answer to a task.

    Attributes:
        blob: the encoded tensors.
        num_samples: how many samples they count for.
        metrics: what the client measured.
    """

    blob: bytes
    num_samples: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class _Upload:
    task: Task
    begin: Begin
    blob: bytes


class VirtualClient:
    """One client of a simulated fleet.

    Each method returns the events that the round server shall receive. The caller trains when
    `training_task` is not None, and calls `finish_training` when the training is complete.

    Args:
        client_id: the client.
        num_samples: number of its training samples.

    Attributes:
        is_online: whether the client is connected.
        wants_training: the task that the client is to train for, None when it has none.
        done: the nonce of the last task whose update the server accepted or rejected.
    """

    def __init__(self, client_id: str, num_samples: int) -> None:
        self.client_id = client_id
        self.is_online = False
        self.training_task: Task | None = None
        self.done_nonce = ""
        self._num_samples = num_samples
        self._boots = 0
        self._upload: _Upload | None = None
        self._answer: _Upload | None = None
        self._next_task: Task | None = None
        self._announce_at = math.inf

    def connect(self, now: float) -> list[Event]:
        """Come online."""
        self._boots += 1
        self.is_online = True
        if self._upload:
            self._announce_at = now + ANNOUNCE_REPEAT_S
        return [self._make_status()]

    def disconnect(self) -> list[Event]:
        """Go offline. The broker publishes the client's last will."""
        self.is_online = False
        self._announce_at = math.inf
        return [self._make_status()]

    def restart(self) -> None:
        """Lose everything that is in memory: the task, and an update that was not acknowledged."""
        self.training_task = None
        self._upload = None
        self._answer = None
        self._next_task = None
        self._announce_at = math.inf

    def _make_status(self) -> StatusReceived:
        boot = f"{self.client_id}-{self._boots}"
        status = Status(self.client_id, boot, self.is_online, 0.0, self._num_samples, "virtual", 0.0)
        return StatusReceived(status)

    def receive_task(self, task: Task, now: float) -> list[Event]:
        """Receive a task.

        A repeated task is answered again. A client that is training finishes the training before it
        performs another task.
        """
        upload = self._upload
        if upload and upload.task.nonce == task.nonce:
            return self._announce(now, follows=task.granted)
        if self.training_task:
            if self.training_task.nonce != task.nonce:
                self._next_task = task
            return []
        if upload and _is_still_valid(upload.task, task):
            self._next_task = task
            return self._announce(now, follows=False)
        self._upload = None
        self._announce_at = math.inf
        if self.done_nonce != task.nonce or not self._answer:
            self.training_task = task
            return []
        self._upload = self._answer
        return self._announce(now, follows=task.granted)

    def finish_training(self, update: TrainedUpdate, now: float) -> list[Event]:
        """Announce the update of the task in `training_task`, unless it is not wanted any more."""
        task = self.training_task
        assert task is not None, "no task asked for training"
        self.training_task = None
        if self._next_task and not _is_still_valid(task, self._next_task):
            self.training_task = self._next_task
            self._next_task = None
            return []
        begin = Begin(
            self.client_id,
            task.session,
            task.round,
            task.plan,
            hashlib.sha256(update.blob).hexdigest(),
            len(update.blob),
            count_chunks(len(update.blob), task.chunk_bytes),
            task.chunk_bytes,
            update.num_samples,
            update.metrics,
            task.nonce,
            0.0,
        )
        self._upload = self._answer = _Upload(task, begin, update.blob)
        return self._announce(now, follows=task.granted)

    def _announce(self, now: float, *, follows: bool) -> list[Event]:
        upload = self._upload
        if upload is None or not self.is_online:
            return []
        self._announce_at = now + ANNOUNCE_REPEAT_S
        events: list[Event] = [BeginReceived(replace(upload.begin, follows=follows))]
        if follows:
            events += self._iterate_chunks(upload, ((0, upload.begin.count),))
        return events

    def _iterate_chunks(self, upload: _Upload, ranges: Ranges) -> Iterator[Event]:
        begin = upload.begin
        for low, high in ranges:
            for index in range(low, high):
                payload = slice_chunk(upload.blob, index, begin.chunk_bytes)
                yield ChunkReceived(self.client_id, begin.sha256, index, payload)

    def receive_receipt(self, receipt: Receipt, now: float) -> Sequence[Event]:
        """Take the server's answer to the update."""
        upload = self._upload
        if upload is None or receipt.sha256 != upload.begin.sha256 or not self.is_online:
            return []
        if receipt.nonce not in (upload.begin.nonce, ""):
            return []
        if receipt.outcome == "missing":
            self._announce_at = now + ANNOUNCE_REPEAT_S
            end = EndReceived(self.client_id, upload.begin.sha256)
            return [*self._iterate_chunks(upload, receipt.missing), end]
        if receipt.outcome == "wait":
            self._announce_at = now + QUEUE_REPEAT_S
            return []
        self._upload = None
        self._announce_at = math.inf
        self.done_nonce = upload.task.nonce
        self.training_task, self._next_task = self._next_task, None
        return []

    def forget_answer(self) -> None:
        """Free the memory of an acknowledged update. Another task for it trains again."""
        if self._upload is None:
            self._answer = None

    def skip_task(self) -> None:
        """Leave the task in `training_task`: its models are not on offer any more."""
        self.training_task, self._next_task = self._next_task, None

    def handle_timer(self, now: float) -> list[Event]:
        """Repeat an announcement that is due."""
        return self._announce(now, follows=False) if now >= self._announce_at else []

    def get_timer(self) -> float:
        """Return the time at which `handle_timer` is due, or infinity."""
        return self._announce_at


def _is_still_valid(before: Task, after: Task) -> bool:
    """Return whether an update that answers a task still counts when a later task is out."""
    same = (before.session, before.phase) == (after.session, after.phase)
    return same and 0 <= after.round - before.round <= before.max_staleness

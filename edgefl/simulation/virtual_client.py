"""The protocol of one client, without I/O and without a clock.

The client behaves like the device service. It answers a task with an update, announces the update until it
gets a receipt, and sends the chunks that the server lacks. `docs/protocol.md` describes the messages.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from edgefl.server.events import BeginReceived, ChunkReceived, EndReceived, Event, StatusReceived
from edgefl.wire.chunks import count_chunks, slice_chunk
from edgefl.wire.messages import Begin, Ranges, Receipt, Status, Task

ANNOUNCE_REPEAT_S = 4.0
"""Seconds after which an announcement without an answer is repeated."""
QUEUE_REPEAT_S = 20.0
"""Seconds after which a client that waits for an upload slot announces its update again."""


@dataclass(frozen=True)
class TrainedUpdate:
    """The update with which a client answers a task.

    Attributes:
        blob: the encoded tensors.
        num_samples: number of samples that the client trained on.
        metrics: metrics of the client, by name.
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

    Methods return events that the caller passes to the round server. When `training_task` is not None, the
    caller trains for this task, and then calls `finish_training`.

    Args:
        client_id: the client.
        num_samples: number of its training samples.

    Attributes:
        client_id: the client.
        is_online: whether the client is connected.
        training_task: the task that the client trains for, or None.
        done_nonce: the nonce of the last task whose update the server accepted or rejected. Empty before.
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
        """Connect to the broker and publish the status.

        Args:
            now: the time in seconds.
        """
        self._boots += 1
        self.is_online = True
        if self._upload:
            self._announce_at = now + ANNOUNCE_REPEAT_S
        return [self._make_status()]

    def disconnect(self) -> list[Event]:
        """Disconnect from the broker, which publishes the client's last will."""
        self.is_online = False
        self._announce_at = math.inf
        return [self._make_status()]

    def restart(self) -> None:
        """Simulate a restart: lose the tasks and all updates in memory, acknowledged or not."""
        self.training_task = None
        self._upload = None
        self._answer = None
        self._next_task = None
        self._announce_at = math.inf

    def _make_status(self) -> StatusReceived:
        boot = f"{self.client_id}-{self._boots}"
        status = Status(
            client_id=self.client_id,
            boot_id=boot,
            online=self.is_online,
            born=0.0,
            num_samples=self._num_samples,
            version="virtual",
            ts=0.0,
        )
        return StatusReceived(status)

    def receive_task(self, task: Task, now: float) -> list[Event]:
        """Receive a task.

        A repeated task is answered again. A client that is training finishes the training before it begins
        another task.

        Args:
            task: the task.
            now: the time in seconds.
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
        self._next_task = None
        self._announce_at = math.inf
        if self.done_nonce != task.nonce or not self._answer:
            self.training_task = task
            return []
        self._upload = self._answer
        return self._announce(now, follows=task.granted)

    def finish_training(self, update: TrainedUpdate, now: float) -> list[Event]:
        """Announce the update for `training_task`, unless a newer task has made it invalid.

        An invalid update is dropped, and `training_task` is then the newer task.

        Args:
            update: the trained update.
            now: the time in seconds.

        Raises:
            AssertionError: `training_task` is None.
        """
        task = self.training_task
        assert task is not None, "no task asked for training"
        self.training_task = None
        if self._next_task and not _is_still_valid(task, self._next_task):
            self.training_task = self._next_task
            self._next_task = None
            return []
        begin = Begin(
            client_id=self.client_id,
            session=task.session,
            round=task.round,
            plan=task.plan,
            sha256=hashlib.sha256(update.blob).hexdigest(),
            size=len(update.blob),
            count=count_chunks(len(update.blob), task.chunk_bytes),
            chunk_bytes=task.chunk_bytes,
            num_samples=update.num_samples,
            metrics=update.metrics,
            nonce=task.nonce,
            ts=0.0,
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
                yield ChunkReceived(
                    client_id=self.client_id, sha256=begin.sha256, index=index, payload=payload
                )

    def receive_receipt(self, receipt: Receipt, now: float) -> Sequence[Event]:
        """Receive the server's answer to the update. A receipt for another update is ignored.

        Args:
            receipt: the receipt.
            now: the time in seconds.

        Returns:
            The missing chunks and the end of the upload if the server asks for chunks, else nothing.
        """
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
        """Free the memory of an acknowledged update. If its task is repeated, the client trains again."""
        if self._upload is None:
            self._answer = None

    def skip_task(self) -> None:
        """Drop the task in `training_task`, because its models are not available any more."""
        self.training_task, self._next_task = self._next_task, None

    def handle_timer(self, now: float) -> list[Event]:
        """Repeat the announcement if it is due.

        Args:
            now: the time in seconds.
        """
        return self._announce(now, follows=False) if now >= self._announce_at else []

    def get_timer(self) -> float:
        """Return the time in seconds at which `handle_timer` is due, or infinity."""
        return self._announce_at


def _is_still_valid(before: Task, after: Task) -> bool:
    """Return whether an update for the task `before` still counts after the task `after` was sent."""
    same = (before.session, before.phase) == (after.session, after.phase)
    return same and 0 <= after.round - before.round <= before.max_staleness

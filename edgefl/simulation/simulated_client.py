"""Drives one client machine of a simulation: its messages become events of the round server.

The client does not train. The caller trains for the action `training`, and then calls `finish_training`.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from edgefl.protocol.device.events import (
    Answer,
    CacheRead,
    ClientAction,
    ClientEvent,
    ForgetPendingTask,
    OpenPlan,
    PlanOpened,
    PublishChunk,
    ReadCache,
    SavedClient,
    SaveOrder,
    SavePendingTask,
    SaveRound,
    StopClient,
    Train,
    Trained,
)
from edgefl.protocol.device.machine import ClientMachine, ClientSettings
from edgefl.protocol.device.masked_rounds import EMPTY_ANSWER
from edgefl.protocol.server.events import (
    BeginReceived,
    ChunkReceived,
    EndReceived,
    Event,
    StatusReceived,
    WantReceived,
)
from edgefl.protocol.wire.chunks import MAX_BLOB_BYTES, slice_chunk
from edgefl.protocol.wire.machine_events import LinkLoad, LinkRestored, Publish, TimePassed
from edgefl.protocol.wire.messages import Begin, End, Status, Want
from edgefl.protocol.wire.topics import FederationTopics


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


class SimulatedClient:
    """One client of a simulated fleet.

    Methods return events that the caller passes to the round server.

    Args:
        num_samples: number of its training samples.
        find_blob: returns a blob that the client need not fetch, or None.
        observe_action: receives every action of the machine. Returns the reply to an action that this class
            does not answer, otherwise None.

    Attributes:
        client_id: the client.
        is_online: whether the client is connected.
        machine: the client machine.
        training: the action `Train` that the caller must perform, or None.
        saved: the data that survive a restart.
    """

    def __init__(
        self,
        topics: FederationTopics,
        client_id: str,
        num_samples: int,
        find_blob: Callable[[str], bytes | None],
        observe_action: Callable[[ClientAction], ClientEvent | None] = lambda action: None,
    ) -> None:
        self.client_id = client_id
        self.is_online = False
        self.training: Train | None = None
        self.saved = SavedClient()
        self._topics = topics
        self._num_samples = num_samples
        self._find_blob = find_blob
        self._observe_action = observe_action
        self._content: dict[str, bytes] = {}
        self._boots = 0
        self._is_new = True
        self.restart()

    def restart(self) -> None:
        """Simulate a restart: everything that was not stored is lost."""
        self._boots += 1
        self._is_new = True
        self.training = None
        status = Status(
            client_id=self.client_id,
            boot_id=f"{self.client_id}-{self._boots}",
            online=True,
            born=0.0,
            num_samples=self._num_samples,
            version="virtual",
            ts=0.0,
        )
        self._will = replace(status, online=False)
        self.machine = ClientMachine(self._topics, status, ClientSettings(), self.saved)

    def connect(self, now: float) -> list[Event]:
        """Connect to the broker and publish the status.

        Args:
            now: the time in seconds.
        """
        self.is_online = True
        if self._is_new:
            self._is_new = False
            return self._execute(self.machine.start(now), now)
        return self.handle(LinkRestored(), now)

    def disconnect(self) -> list[Event]:
        """Disconnect from the broker, which publishes the client's last will."""
        self.is_online = False
        return [StatusReceived(self._will)]

    def handle(self, event: ClientEvent, now: float) -> list[Event]:
        """Let the machine handle an event.

        Args:
            now: the time in seconds.
        """
        return self._execute(self.machine.handle(event, now), now)

    def finish_training(self, update: TrainedUpdate, now: float) -> list[Event]:
        """Pass the update of `training` to the machine.

        Args:
            now: the time in seconds.

        Raises:
            AssertionError: `training` is None.
        """
        training, self.training = self.training, None
        assert training is not None, "no task asked for training"
        sha256 = self.add_content(update.blob)
        answer = Answer(
            sha256=sha256, size=len(update.blob), num_samples=update.num_samples, metrics=update.metrics
        )
        return self.handle(Trained(training.task, answer), now)

    def add_content(self, content: bytes) -> str:
        """Keep the bytes of an answer until it is sent, and return their sha256.

        Args:
            content: the answer.
        """
        sha256 = hashlib.sha256(content).hexdigest()
        self._content[sha256] = content
        return sha256

    def read_content(self, sha256: str) -> bytes:
        """Return the bytes of an answer.

        Args:
            sha256: digest of the answer in hex. The digest of no bytes is allowed.
        """
        return b"" if sha256 == EMPTY_ANSWER.sha256 else self._content[sha256]

    def handle_timer(self, now: float) -> list[Event]:
        """Let the machine repeat what is due.

        Args:
            now: the time in seconds.
        """
        return self.handle(TimePassed(), now) if now >= self.machine.get_timer() else []

    def forget_answer(self) -> None:
        """Free the memory of an answer that is not requested again."""
        if not self.machine.uploading_sha256:
            self._content = {}

    def _execute(self, actions: Iterable[ClientAction], now: float) -> list[Event]:
        """Carry out actions, and return the messages as events of the server."""
        events: list[Event] = []
        waiting = deque(actions)
        replies: deque[ClientEvent] = deque()
        while waiting or replies or self.machine.is_sending:
            if not waiting:
                event = replies.popleft() if replies else LinkLoad(0)
                waiting.extend(self.machine.handle(event, now))
                continue
            action = waiting.popleft()
            if reply := self._observe_action(action):
                replies.append(reply)
            match action:
                case Publish() | PublishChunk():
                    events.append(self._read_message(action))
                case ReadCache(digests):
                    replies.append(CacheRead(digests, dict(self._find_blobs(digests))))
                case OpenPlan(sha256):
                    replies.append(PlanOpened(sha256, MAX_BLOB_BYTES))
                case Train():
                    self.training = action
                case SaveRound(answered):
                    sha256 = answered.answer.sha256
                    self._content = {sha256: self._content[sha256]}
                    self.saved = replace(self.saved, answered=answered)
                case SavePendingTask(task):
                    self.saved = replace(self.saved, pending=task)
                case ForgetPendingTask():
                    self.saved = replace(self.saved, pending=None)
                case SaveOrder(newest):
                    self.saved = replace(self.saved, newest=newest)
                case StopClient(error):
                    raise error
        return events if self.is_online else []

    def _find_blobs(self, digests: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        for sha256 in digests:
            blob = self._find_blob(sha256)
            if blob is not None:
                yield sha256, blob

    def _read_message(self, action: Publish | PublishChunk) -> Event:
        """Return a message of this client as the driver of the server reads it."""
        if isinstance(action, PublishChunk):
            payload = slice_chunk(self.read_content(action.sha256), action.index, action.chunk_bytes)
            return ChunkReceived(
                client_id=self.client_id, sha256=action.sha256, index=action.index, payload=payload
            )
        match action.message:
            case Status() as status:
                return StatusReceived(status)
            case Begin() as begin:
                return BeginReceived(begin)
            case End() as end:
                return EndReceived(self.client_id, end.sha256)
            case Want() as want:
                return WantReceived(self.client_id, want)
        raise AssertionError(f"a client publishes no {type(action.message).__name__}")

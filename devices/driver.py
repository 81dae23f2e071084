"""Drives a client machine over a link: makes events from messages, and carries out actions.

The driver computes nothing. A worker trains in another thread, and passes its result to `add_event`.
"""

import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping
from queue import SimpleQueue
from typing import Protocol

from devices.messages import read_client_event
from devices.telemetry import make_telemetry
from edgefl.base.errors import WireError
from edgefl.protocol.device.events import (
    AnswerStep,
    AvailabilityChanged,
    BeginAttempt,
    CacheRead,
    ClientAction,
    ClientEvent,
    EndParticipation,
    OpenPlan,
    PublishChunk,
    PublishMetrics,
    ReadCache,
    StopClient,
    Subscribe,
    Train,
    Unsubscribe,
    WriteClientLog,
)
from edgefl.protocol.device.machine import ClientMachine
from edgefl.protocol.device.upload import MAX_UPLOAD_CHUNKS_IN_FLIGHT
from edgefl.protocol.security.trust import Trust
from edgefl.protocol.transport.link import Connected, Link, Message
from edgefl.protocol.transport.reconnects import Reconnects
from edgefl.protocol.wire.chunks import slice_chunk
from edgefl.protocol.wire.machine_events import LinkLoad, LinkRestored, Publish, TimePassed
from edgefl.protocol.wire.strict_json import encode_json
from edgefl.protocol.wire.topics import FederationTopics

LOGGER = logging.getLogger("edgefl.device")
LONGEST_WAIT_S = 0.5
"""Longest wait for a message, in seconds. The owner's conditions are looked at after each wait."""
SUBACK_TIMEOUT_S = 60.0
Work = OpenPlan | Train | BeginAttempt | AnswerStep
"""The actions that a worker carries out."""


def draw_pause_factor() -> float:
    """Return the factor by which the next pause between repeated messages is longer.

    It is drawn at random, so that a whole fleet does not repeat its messages at the same time.
    """
    return random.uniform(1.4, 1.8)


class ClientStorage(Protocol):
    """Stores what a client must remember."""

    def find_blobs(self, digests: Iterable[str]) -> Mapping[str, bytes]:
        """Return the blobs that are stored, by sha256.

        Args:
            digests: digests of the blobs in hex.
        """

    def read_answer(self, sha256: str) -> bytes:
        """Return the bytes of the newest answer.

        Args:
            sha256: digest of the answer in hex.
        """

    def apply(self, action: ClientAction) -> None:
        """Perform a storage action. Ignore other actions.

        Args:
            action: an action of the client machine.
        """


class ClientDriver:
    """Drives one client over a link.

    Args:
        trust: signs messages and checks signatures.
        storage: performs the storage actions of the machine.
        begin_work: begins the work of an action. Its result comes through `add_event`.
        find_pause_reason: returns why the owner's conditions forbid tasks now, empty if they do not. With
            `refresh`, the conditions are read even if they were read a moment ago.
        pause_reason: the reason with which the machine started.
        read_drift_figures: returns the figures of `edgefl export drift`, which describe the model in use.
    """

    def __init__(
        self,
        machine: ClientMachine,
        link: Link,
        topics: FederationTopics,
        trust: Trust,
        storage: ClientStorage,
        begin_work: Callable[[Work], None],
        find_pause_reason: Callable[[bool], str] = lambda refresh: "",
        pause_reason: str = "",
        read_drift_figures: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        self._machine = machine
        self._link = link
        self._topics = topics
        self._trust = trust
        self._storage = storage
        self._begin_work = begin_work
        self._find_pause_reason = find_pause_reason
        self._pause_reason = pause_reason
        self._read_drift_figures = read_drift_figures
        self._posted: SimpleQueue[ClientEvent] = SimpleQueue()
        self._reconnects = Reconnects()
        self._end: EndParticipation | None = None
        self._is_stopping = False

    def add_event(self, event: ClientEvent) -> None:
        """Let the machine handle an event of this process. Any thread may call this."""
        self._posted.put(event)
        self._link.wake()

    def stop(self) -> None:
        """Let `run` return soon. Any thread may call this."""
        self._is_stopping = True
        self._link.wake()

    def run(self) -> EndParticipation | None:
        """Take part until the federation is done.

        Returns:
            The end of the federation, or None after `stop`.

        Raises:
            DuplicateIdError: another device uses the id.
            FederationDivergedError: the aggregator stopped, because the training diverged.
            LinkError: the link failed, or no federation ran in time.
            StateError: the state directory cannot be read or written.
        """
        self._execute(self._machine.start(time.monotonic()))
        while self._end is None and not self._is_stopping:
            self._pump()
        return self._end

    def publish_offline(self) -> None:
        """Publish that the client is offline, after `run` has returned."""
        self._execute(self._machine.stop())

    def _pump(self) -> None:
        """Handle one event of the link or the next timer of the machine, whichever comes first."""
        self._check_conditions(refresh=False)
        wait_s = min(LONGEST_WAIT_S, max(0.0, self._machine.get_timer() - time.monotonic()))
        if self._machine.is_sending:
            if self._link.wait_in_flight(MAX_UPLOAD_CHUNKS_IN_FLIGHT, wait_s):
                self._handle(LinkLoad(self._link.in_flight))
            wait_s = 0.0
        received = self._link.get(wait_s)
        while not self._posted.empty():
            # The conditions are read before the machine announces an answer, so that the aggregator receives
            # a pause before it draws the next cohort
            self._check_conditions(refresh=True)
            self._handle(self._posted.get())
        if isinstance(received, Connected):
            LOGGER.log(*self._reconnects.describe(received.url, time.monotonic()))
            self._handle(LinkRestored())
        elif received is not None and (event := self._read_event(received)):
            self._handle(event)
        if self._machine.get_timer() <= time.monotonic():
            self._handle(TimePassed())

    def _read_event(self, message: Message) -> ClientEvent | None:
        try:
            return read_client_event(message, self._trust, self._machine.client_id, self._machine.state)
        except WireError as error:
            LOGGER.warning(f"ignored: {error}")
            return None

    def _check_conditions(self, *, refresh: bool) -> None:
        reason = self._find_pause_reason(refresh)
        if reason != self._pause_reason:
            self._pause_reason = reason
            self._handle(AvailabilityChanged(reason))

    def _handle(self, event: ClientEvent) -> None:
        self._execute(self._machine.handle(event, time.monotonic()))

    def _execute(self, actions: list[ClientAction]) -> None:
        """Carry out actions in their order. Empty the list, because an action may hold many megabytes."""
        actions.reverse()
        while actions:
            action = actions.pop()
            self._storage.apply(action)
            match action:
                case Publish():
                    payload = self._trust.encode_now(action.message, action.receiver)
                    self._link.publish(action.topic, payload, qos=action.qos, retain=action.is_retained)
                case PublishChunk():
                    content = self._storage.read_answer(action.sha256)
                    self._link.publish(action.topic, slice_chunk(content, action.index, action.chunk_bytes))
                case PublishMetrics(round, metrics):
                    self._publish_metrics(round, {**metrics, **self._read_drift_figures()})
                case Subscribe(filters, qos, is_acknowledged):
                    timeout_s = SUBACK_TIMEOUT_S if is_acknowledged else 0.0
                    self._link.subscribe(*filters, qos=qos, timeout_s=timeout_s)
                case Unsubscribe(filters):
                    self._link.unsubscribe(*filters)
                case ReadCache(digests):
                    cached = CacheRead(digests, self._storage.find_blobs(digests))
                    actions[:0] = reversed(self._machine.handle(cached, time.monotonic()))
                case OpenPlan() | Train() | BeginAttempt() | AnswerStep():
                    self._begin_work(action)
                case WriteClientLog(line, level, fields):
                    LOGGER.log(level, line, extra=dict(fields))
                case EndParticipation():
                    self._end = action
                case StopClient(error):
                    raise error

    def _publish_metrics(self, round: int, metrics: Mapping[str, float]) -> None:
        """Publish metrics with QoS 0. A lost message is not sent again."""
        client_id = self._machine.client_id
        message = make_telemetry(client_id, round, metrics)
        self._link.publish(self._topics.format_device(client_id, "metrics"), encode_json(message), qos=0)

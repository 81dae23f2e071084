"""Messages of the broker that wait for the service's thread."""

import queue
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

MAX_WAITING_EVENTS = 20_000
ROOM_BYTES = 1024 * 1024
"""Messages are acknowledged as they come while no more than this waits. It is four chunks: with one or two,
rounds of ten devices took 3 to 8% longer.
"""
OVERHEAD_BYTES = 32 * 1024
"""What a message counts for in addition to its payload. A fleet sends hundreds of small messages at once, and
the memory of their Python objects is not given back. 32 of them fill the room.
"""
MAX_WAITING_BYTES = 64 * 1024 * 1024
"""Payload bytes that may wait. A broker that sends more without an acknowledgement (QoS 0, or a large window)
loses messages. The protocol repairs a lost chunk: its sender hears what is missing and sends it again.
"""
SMALL_MESSAGE_BYTES = 2 * 1024
"""Messages up to this size are never dropped for their bytes: a device says its status once. Their number is
bounded by LIMIT.
"""


@dataclass(frozen=True, slots=True)
class Message:
    """One message from the broker.

    Attributes:
        oversize: the bytes of a payload above the limit, which is then left out.
    """

    topic: str
    payload: bytes
    retained: bool = False
    oversize: int = 0


@dataclass(frozen=True, slots=True)
class Connected:
    """The link came up again: subscriptions are made, retained messages of one's own must be published again.

    Attributes:
        url: where.
    """

    url: str = ""


class _Entry(NamedTuple):
    event: Message | Connected | None
    size: int = 0
    acknowledge: Callable[[], None] | None = None


class ReceiveQueue:
    """At most 20,000 events with at most 64 MiB of payload, in order; one thread takes them.

    The broker sends a new message of QoS 1 only while few of them are unacknowledged. So a message that comes
    while more than `ROOM_BYTES` wait is acknowledged when the service takes it. A fleet's messages then stay
    with the broker, and pings and acknowledgements of the broker are read all the same. Acknowledgements
    keep the order of the messages (MQTT 3.1.1, MQTT-4.6.0-2).

    The network's thread alone calls `receive`, the service's thread alone calls `get`, and each counter below
    is written by one of the two, so that no lock is needed.
    """

    def __init__(self) -> None:
        self.dropped = 0
        """How many messages did not fit."""
        self._entries: queue.SimpleQueue[_Entry] = queue.SimpleQueue()
        self._bytes_received = self._bytes_consumed = 0
        self._payload_received = self._payload_consumed = 0
        self._deferred = self._deferred_consumed = 0

    def __len__(self) -> int:
        """How many events wait."""
        return self._entries.qsize()

    @property
    def waiting_bytes(self) -> int:
        """What the messages count for that wait, in bytes."""
        return self._bytes_received - self._bytes_consumed

    def put(self, event: Message | Connected) -> None:
        """Add an event of this process's own; any thread may."""
        self._entries.put(_Entry(event))

    def receive(self, message: Message | None, acknowledge: Callable[[], None] | None = None) -> None:
        """Add a message of the broker's, or count it as dropped.

        Args:
            message: the message; None for one that is of no interest and only needs its acknowledgement.
            acknowledge: acknowledges it to the broker; None when it needs no acknowledgement.
        """
        if message is not None and not self._has_room_for(message):
            self.dropped += 1
            message = None
        size = 0
        if message is not None:
            size = len(message.payload) + OVERHEAD_BYTES
            self._payload_received += len(message.payload)
            self._bytes_received += size
        has_room = self.waiting_bytes <= ROOM_BYTES and self._deferred == self._deferred_consumed
        if acknowledge is not None and has_room:
            acknowledge()
            acknowledge = None
        if acknowledge is not None:
            self._deferred += 1
        if message is not None or acknowledge is not None:
            self._entries.put(_Entry(message, size, acknowledge))

    def _has_room_for(self, message: Message) -> bool:
        payload = len(message.payload)
        waiting = self._payload_received - self._payload_consumed
        is_too_much = payload > SMALL_MESSAGE_BYTES and waiting + payload > MAX_WAITING_BYTES
        return not is_too_much and self._entries.qsize() < MAX_WAITING_EVENTS

    def get(self, timeout_s: float) -> Message | Connected | None:
        """Return the next event, or None after `timeout_s`."""
        while True:
            try:
                entry = self._entries.get(timeout=timeout_s) if timeout_s > 0 else self._entries.get_nowait()
            except queue.Empty:
                return None
            self._bytes_consumed += entry.size
            self._payload_consumed += (
                len(entry.event.payload) if isinstance(entry.event, Message) and entry.size else 0
            )
            if entry.acknowledge is not None:
                entry.acknowledge()
                self._deferred_consumed += 1
            if entry.event is not None:
                return entry.event

"""Queues messages of the broker for the thread of the service."""

import queue
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

MAX_WAITING_EVENTS = 20_000
ROOM_BYTES = 1024 * 1024
"""Queue size in bytes up to which messages are acknowledged on arrival.

It is four chunks. With one or two chunks, rounds of ten devices took 3 to 8% longer.
"""
OVERHEAD_BYTES = 32 * 1024
"""Bytes that a message counts for in addition to its payload.

A fleet sends hundreds of small messages at once, and Python does not release the memory of their objects. 32
of them fill `ROOM_BYTES`.
"""
MAX_WAITING_BYTES = 64 * 1024 * 1024
"""Maximum size of the queued payloads in bytes.

Messages above it are lost. A broker exceeds it only by sending without acknowledgements (QoS 0, or a large
window). mosquitto before 2.0.13, as in Debian 12, can exceed it: for each acknowledgement it sends up to a
window of the messages that it stores. The protocol repairs a lost chunk: a receipt names it, and its sender
sends it again.
"""
SMALL_MESSAGE_BYTES = 2 * 1024
"""Maximum size in bytes of a message that is never dropped for its size.

A device sends its status only once. `MAX_WAITING_EVENTS` limits the number of small messages.
"""


@dataclass(frozen=True, slots=True)
class Message:
    """One message from the broker.

    Attributes:
        retained: whether the broker sent it as a retained message, or whether the broker should retain it.
        oversize: size in bytes of a payload above the limit. The payload is then empty.
    """

    topic: str
    payload: bytes
    retained: bool = False
    oversize: int = 0


@dataclass(frozen=True, slots=True)
class Connected:
    """The event of a restored connection.

    Subscriptions are already restored. The service must publish its own retained messages again.

    Attributes:
        url: url of the broker, without password.
    """

    url: str = ""


class _Entry(NamedTuple):
    event: Message | Connected | None
    size: int = 0
    acknowledge: Callable[[], None] | None = None
    is_wake: bool = False


class ReceiveQueue:
    """An ordered queue of at most 20,000 events with at most 64 MiB of payload.

    The broker sends a new message of QoS 1 only while few of them are unacknowledged. A message that arrives
    while more than `ROOM_BYTES` are queued is acknowledged when the service takes it. A fleet's messages then
    stay at the broker. The network thread still reads pings and acknowledgements. Acknowledgements keep the
    order of the messages.

    Only the network thread calls `receive`, and only the thread of the service calls `get`. Each counter is
    written by one of the two threads, so no lock is needed.

    Attributes:
        dropped: number of messages that did not fit into the queue.

    Source: MQTT 3.1.1, MQTT-4.6.0-2 for the order of acknowledgements.
    """

    def __init__(self) -> None:
        self.dropped = 0
        self._entries: queue.SimpleQueue[_Entry] = queue.SimpleQueue()
        self._bytes_received = self._bytes_consumed = 0
        self._payload_received = self._payload_consumed = 0
        self._deferred = self._deferred_consumed = 0

    def __len__(self) -> int:
        """Return the number of queued events."""
        return self._entries.qsize()

    @property
    def waiting_bytes(self) -> int:
        """Size of the queued messages in bytes, `OVERHEAD_BYTES` included."""
        return self._bytes_received - self._bytes_consumed

    def put(self, event: Message | Connected) -> None:
        """Add an event of this process. Any thread may call this."""
        self._entries.put(_Entry(event))

    def wake(self) -> None:
        """Let `get` return None after the queued events. Any thread may call this."""
        self._entries.put(_Entry(None, is_wake=True))

    def receive(self, message: Message | None, acknowledge: Callable[[], None] | None = None) -> None:
        """Add a message from the broker, or count it as dropped.

        Args:
            message: the message, or None if it is of no interest and only needs its acknowledgement.
            acknowledge: acknowledges the message to the broker. None if it needs no acknowledgement.
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
        """Return the next event, or None after `timeout_s` or a `wake`.

        The message is acknowledged now if `receive` deferred its acknowledgement.

        Args:
            timeout_s: how long to wait for an event, in seconds. 0 does not wait.
        """
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
            if entry.event is not None or entry.is_wake:
                return entry.event

"""Messages of the broker that wait for the service's thread."""

import contextlib
import queue
import time
from collections.abc import Callable
from dataclasses import dataclass

LIMIT = 20_000
ROOM_BYTES = 1024 * 1024
"""Four chunks. With one or two, ten devices' rounds took 3 to 8% longer: each chunk then wakes the network's
thread for the next.
"""
EACH_BYTES = 32 * 1024
"""What a message counts for beside its payload. Of small ones a fleet sends hundreds at once, and each is a
dozen of Python's objects, whose memory is not given back: 32 may wait.
"""
PATIENCE_S = 0.25
SENDING_S = 0.001
MAX_WAITING_BYTES = 64 * 1024 * 1024
"""Payload bytes that may wait while the service's thread computes. A larger backlog drops messages, and the
protocol repairs a lost chunk: its sender hears what is missing and sends it again.
"""
SMALL_BYTES = 2 * 1024
"""Messages up to this size are never dropped for their bytes: a device says its status once. Their number is
bounded by LIMIT.
"""


@dataclass(frozen=True, slots=True)
class Message:
    """One message from the broker.

    `oversize`: the bytes of a payload above the limit, which is then left out.
    """

    topic: str
    payload: bytes
    retained: bool = False
    oversize: int = 0


@dataclass(frozen=True, slots=True)
class Connected:
    """The link came up again: subscriptions are made, retained messages of one's own must be published again.

    `url`: where.
    """

    url: str = ""


class Inbox:
    """At most 20,000 events with at most 64 MiB of payload, in order; one thread takes them.

    What exceeds that is dropped and counted.

    While more than its room waits, the network thread does not read, so that what a fleet sends at once stays
    with the broker. It reads on when nothing was taken for a quarter of a second: it may be an answer that
    the service is waiting for.
    """

    def __init__(self) -> None:
        self.dropped = 0
        self._events: queue.SimpleQueue[tuple[Message | Connected, int]] = queue.SimpleQueue()
        self._came = self._taken = 0
        self._payload_came = self._payload_taken = 0  # two counters, each written by one thread alone
        # no Event: its lock is Python's, and would stay locked for good when a signal ends the service's
        # thread in the midst of `set`
        self._woken: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._held_up = False
        self._since = 0.0

    def __len__(self) -> int:
        """How many events wait."""
        return self._events.qsize()

    @property
    def waiting_bytes(self) -> int:
        """What the messages count for that wait, in bytes."""
        return self._came - self._taken

    def put(self, event: Message | Connected) -> None:
        """Add an event of this process's own; any thread may."""
        self._events.put((event, 0))

    def receive(self, message: Message) -> None:
        """Add a message of the broker's, or count it as dropped; the network's thread alone may."""
        payload = len(message.payload)
        is_too_much = (
            payload > SMALL_BYTES and self._payload_came - self._payload_taken + payload > MAX_WAITING_BYTES
        )
        if is_too_much or self._events.qsize() >= LIMIT:  # receipts and resends make up for a dropped message
            self.dropped += 1
            return
        size = payload + EACH_BYTES
        self._payload_came += payload
        self._came += size
        self._events.put((message, size))

    def may_read(self, is_sending: Callable[[], bool]) -> bool:
        """Return whether more may be read, after a wait for room; False is to be asked again.

        The network's thread alone may.

        `is_sending`: whether there is something to send, which must not wait for room; what comes to be so
        ends the wait (`wake`).
        """
        if self._came - self._taken <= ROOM_BYTES:
            return True
        self._since = self._since or time.monotonic()
        if time.monotonic() - self._since >= PATIENCE_S:
            return True
        self._held_up = True  # said before anything is asked, so that no word of the other thread's is missed
        if self.waiting_bytes > ROOM_BYTES:
            with contextlib.suppress(queue.Empty):
                self._woken.get(timeout=SENDING_S if is_sending() else PATIENCE_S)
        self._held_up = False
        return self.waiting_bytes <= ROOM_BYTES

    def wake(self) -> None:
        """End the wait for room, if there is one: something is to be sent."""
        if self._held_up:
            self._woken.put(None)

    def get(self, timeout_s: float) -> Message | Connected | None:
        """Return the next event, or None after `timeout_s`."""
        try:
            event, size = self._events.get(timeout=timeout_s) if timeout_s > 0 else self._events.get_nowait()
        except queue.Empty:
            return None
        self._taken += size
        self._payload_taken += len(event.payload) if isinstance(event, Message) and size else 0
        self._since = 0.0
        if self._held_up and self.waiting_bytes <= ROOM_BYTES:
            self._woken.put(None)
        return event

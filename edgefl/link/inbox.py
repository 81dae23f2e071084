"""What came from the broker and waits for the service's thread."""

import queue

from edgefl.link.events import Connected, Message

LIMIT = 20_000
ROOM_BYTES = 1024 * 1024
"""With half of it ten devices' round took 5 to 7% longer, for a thread that stands still sends nothing either."""
EACH_BYTES = 512
"""What a message takes beside its payload, about."""
PATIENCE_S = 0.25


class Inbox:
    """At most 20,000 events, in order; one thread takes them.

    While a mebibyte waits, the network thread stands still, so that what a fleet sends at once stays with the broker. It goes on
    when nothing was taken for a quarter of a second: the same thread brings the answers that the service may be waiting for.
    """

    def __init__(self) -> None:
        self.dropped = 0
        self._events: queue.SimpleQueue[tuple[Message | Connected, int]] = queue.SimpleQueue()
        self._came = self._taken = 0
        # no Event: its lock is Python's, and would stay locked for good when a signal ends the service's thread in the midst of `set`
        self._room: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._held_up = self._gave_up = False

    def __len__(self) -> int:
        """How many events wait."""
        return self._events.qsize()

    @property
    def waiting_bytes(self) -> int:
        """How many bytes the messages take that wait."""
        return self._came - self._taken

    def put(self, event: Message | Connected) -> None:
        """Add an event of this process's own; any thread may."""
        self._events.put((event, 0))

    def receive(self, message: Message) -> None:
        """Add a message of the broker's, or count it as dropped, and wait for room; the network's thread alone may."""
        if self._events.qsize() >= LIMIT:  # receipts and resends make up for a dropped message; unbounded memory has no cure
            self.dropped += 1
            return
        size = len(message.payload) + EACH_BYTES
        self._came += size
        self._events.put((message, size))
        if self.waiting_bytes <= ROOM_BYTES:
            return
        self._held_up = True
        while self.waiting_bytes > ROOM_BYTES and not self._gave_up:
            try:
                self._room.get(timeout=PATIENCE_S)
            except queue.Empty:
                self._gave_up = True
        self._held_up = False

    def get(self, timeout_s: float) -> Message | Connected | None:
        """Return the next event, or None after `timeout_s`."""
        try:
            event, size = self._events.get(timeout=timeout_s) if timeout_s > 0 else self._events.get_nowait()
        except queue.Empty:
            return None
        self._taken += size
        self._gave_up = False
        if self._held_up:
            self._room.put(None)
        return event

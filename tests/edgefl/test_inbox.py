"""What waits for the service's thread: in order, bounded, and never at the cost of an answer."""

import queue
import threading

from edgefl.link import inbox
from edgefl.link.events import Connected, Message
from edgefl.link.inbox import Inbox

DEADLINE_S = 30.0


def receiving(box, messages):
    """Start a thread that receives as the network's does."""
    thread = threading.Thread(target=lambda: [box.receive(each) for each in messages], daemon=True)
    thread.start()
    return thread


def test_what_waits_stays_below_the_room_and_one_message_while_somebody_takes(monkeypatch):
    monkeypatch.setattr(inbox, "PATIENCE_S", DEADLINE_S)
    box, most = Inbox(), 0
    messages = [Message(f"t/{i}", bytes(240_000)) for i in range(50)]
    thread = receiving(box, messages)
    for each in messages:
        assert box.get(DEADLINE_S) == each
        most = max(most, box.waiting_bytes)
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    assert box.waiting_bytes == 0 and most <= inbox.ROOM_BYTES + 240_000 + inbox.EACH_BYTES


def test_who_takes_nothing_holds_up_the_network_once():
    """A hundred messages above the room: the first of them waits, and after one was taken the next."""

    class Room(queue.SimpleQueue):
        waits = 0

        def get(self, timeout):
            self.waits += 1
            raise queue.Empty

    box = Inbox()
    box._room = Room()
    for i in range(100):
        box.receive(Message(f"t/{i}", bytes(240_000)))
    assert box._room.waits == 1 and len(box) == 100
    assert box.get(0) == Message("t/0", bytes(240_000))
    box.receive(Message("t/100", b""))
    assert box._room.waits == 2


def test_many_small_messages_count_too(monkeypatch):
    monkeypatch.setattr(inbox, "PATIENCE_S", 0.0)
    box = Inbox()
    for _i in range(3000):
        box.receive(Message("t", b"x"))
    assert box.waiting_bytes == 3000 * (1 + inbox.EACH_BYTES) > inbox.ROOM_BYTES


def test_above_the_limit_messages_are_dropped_and_counted_and_own_events_are_not(monkeypatch):
    monkeypatch.setattr(inbox, "LIMIT", 2)
    box = Inbox()
    for i in range(4):
        box.receive(Message(f"t/{i}", b""))
    box.put(Connected("mqtt://here"))
    assert (len(box), box.dropped) == (3, 2)
    assert [box.get(0) for _ in range(4)] == [Message("t/0", b""), Message("t/1", b""), Connected("mqtt://here"), None]

"""What waits for the service's thread: in order, bounded, and never at the cost of an answer."""

import queue
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.transport import receive_queue as inbox
from edgefl.transport.receive_queue import Connected, Inbox, Message

DEADLINE_S = 30.0


@pytest.fixture
def patient(monkeypatch):
    """No wait ends by itself in the time that a test has."""
    monkeypatch.setattr(inbox, "PATIENCE_S", 2 * DEADLINE_S)
    monkeypatch.setattr(inbox, "SENDING_S", 2 * DEADLINE_S)


def full():
    """Return an inbox with more in it than its room."""
    box = Inbox()
    for name in ("a", "b"):
        box.receive(Message(name, bytes(inbox.ROOM_BYTES)))
    return box


def asking(box, is_sending=lambda: False):
    """Ask as the network's thread does, on one; returns the thread and what it heard."""
    heard = queue.SimpleQueue()
    threading.Thread(target=lambda: heard.put(box.may_read(is_sending)), daemon=True).start()
    return heard


def until_held_up(box):
    deadline = time.monotonic() + DEADLINE_S
    while not box._held_up:
        assert time.monotonic() < deadline


def test_while_there_is_room_nobody_waits(patient):
    box = Inbox()
    assert box.may_read(lambda: False)
    box.receive(Message("t", bytes(inbox.ROOM_BYTES - inbox.EACH_BYTES)))
    assert box.waiting_bytes == inbox.ROOM_BYTES and box.may_read(lambda: False)


def test_without_room_reading_waits_until_enough_was_taken(patient):
    box = full()
    heard = asking(box)
    until_held_up(box)
    # "b" alone, with what it takes beside its payload, is too much
    assert box.get(0).topic == "a" and heard.empty()
    assert box.get(0).topic == "b"
    assert heard.get(timeout=DEADLINE_S) is True and box.waiting_bytes == 0


def test_what_is_to_be_sent_ends_the_wait_and_reading_does_not_begin(patient):
    box = full()
    heard = asking(box)
    until_held_up(box)
    box.wake()
    assert heard.get(timeout=DEADLINE_S) is False
    assert len(box) == 2


def test_who_has_something_to_send_is_asked_again_soon(monkeypatch):
    monkeypatch.setattr(inbox, "PATIENCE_S", 2 * DEADLINE_S)
    assert asking(full(), lambda: True).get(timeout=DEADLINE_S) is False


def test_a_wake_while_nobody_waits_is_not_remembered(patient):
    box = full()
    box.wake()
    heard = asking(box)
    until_held_up(box)
    assert heard.empty()
    box.wake()
    assert heard.get(timeout=DEADLINE_S) is False


def test_who_takes_nothing_holds_up_the_network_once(monkeypatch):
    """After a quarter of a second all is read, for it may be an answer; once something was taken, there is a
    wait again.
    """
    now = [100.0]
    monkeypatch.setattr(inbox.time, "monotonic", lambda: now[0])

    class Woken(queue.SimpleQueue):
        waits = 0

        def get(self, timeout):
            self.waits += 1
            now[0] += timeout
            raise queue.Empty

    box = full()
    box._woken = Woken()
    assert box.may_read(lambda: False) is False and box._woken.waits == 1
    for _ in range(100):
        assert box.may_read(lambda: False)
        box.receive(Message("t", b""))
    assert box._woken.waits == 1
    assert box.get(0).topic == "a"
    assert box.may_read(lambda: False) is False and box._woken.waits == 2


def test_of_small_messages_few_may_wait(patient):
    box = Inbox()
    while box.may_read(lambda: False) and box.waiting_bytes + 1 + inbox.EACH_BYTES <= inbox.ROOM_BYTES:
        box.receive(Message("t", b"x"))
    assert len(box) == 31
    box.receive(Message("t", b"x"))
    heard = asking(box)
    until_held_up(box)
    assert box.get(0).payload == b"x" and heard.get(timeout=DEADLINE_S) is True


def test_above_the_limit_messages_are_dropped_and_counted_and_own_events_are_not(monkeypatch):
    monkeypatch.setattr(inbox, "LIMIT", 2)
    box = Inbox()
    for i in range(4):
        box.receive(Message(f"t/{i}", b""))
    box.put(Connected("mqtt://here"))
    assert (len(box), box.dropped) == (3, 2)
    assert [box.get(0) for _ in range(4)] == [
        Message("t/0", b""),
        Message("t/1", b""),
        Connected("mqtt://here"),
        None,
    ]


def test_above_the_limit_of_bytes_large_messages_are_dropped_and_a_status_is_not(monkeypatch):
    """8,000 bytes may wait: the third chunk of 3,000 is too much, until one was taken."""
    monkeypatch.setattr(inbox, "MAX_WAITING_BYTES", 8_000)
    box = Inbox()
    for i in range(3):
        box.receive(Message(f"chunk/{i}", bytes(3_000)))
    box.receive(Message("status", bytes(inbox.SMALL_BYTES)))
    assert (len(box), box.dropped) == (3, 1)
    assert box.get(0).topic == "chunk/0"
    box.receive(Message("chunk/3", bytes(2_952)))  # 3,000 + 2,048 + 2,952 = 8,000
    box.receive(Message("chunk/4", bytes(inbox.SMALL_BYTES + 1)))
    assert box.dropped == 2
    assert [box.get(0).topic for _ in range(3)] == ["chunk/1", "status", "chunk/3"]


@given(st.lists(st.integers(0, 5_000) | st.none(), max_size=60))
def test_payload_that_waits_is_bounded_whatever_comes_and_is_taken(steps):
    """None takes an event, a number is a message of so many bytes."""
    box = Inbox()
    waiting = []
    dropped = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inbox, "MAX_WAITING_BYTES", 8_000)
        for step in steps:
            if step is None:
                event = box.get(0)
                assert (event and len(event.payload)) == (waiting.pop(0) if waiting else None)
            elif step > inbox.SMALL_BYTES and sum(waiting) + step > 8_000:
                box.receive(Message("t", bytes(step)))
                dropped += 1
            else:
                box.receive(Message("t", bytes(step)))
                waiting.append(step)
            assert (len(box), box.dropped) == (len(waiting), dropped)

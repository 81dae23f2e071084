"""What waits for the service's thread: in order, bounded, and acknowledged no faster than it is taken."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.transport import receive_queue
from edgefl.transport.receive_queue import Connected, Message, ReceiveQueue

CHUNK = Message("chunk", bytes(receive_queue.ROOM_BYTES // 2))
"""With its overhead, two of them are more than the room."""


class Broker:
    """Sends numbered messages and notes which are acknowledged."""

    def __init__(self, box):
        self.box = box
        self.sent = 0
        self.acknowledged = []

    def send(self, message=CHUNK):
        self.sent += 1
        number = self.sent
        self.box.receive(message, lambda: self.acknowledged.append(number))


def test_messages_are_acknowledged_at_once_while_there_is_room():
    broker = Broker(ReceiveQueue())
    broker.send()
    assert broker.acknowledged == [1]
    assert broker.box.waiting_bytes == len(CHUNK.payload) + receive_queue.OVERHEAD_BYTES


def test_without_room_a_message_is_acknowledged_when_it_is_taken():
    broker = Broker(ReceiveQueue())
    for _ in range(3):
        broker.send()
    assert broker.acknowledged == [1]
    assert broker.box.get(0) == CHUNK
    assert broker.acknowledged == [1]  # the first one was taken, the second waits
    assert broker.box.get(0) == CHUNK
    assert broker.acknowledged == [1, 2]
    assert broker.box.get(0) == CHUNK
    assert broker.acknowledged == [1, 2, 3]
    broker.send()
    assert broker.acknowledged == [1, 2, 3, 4]


def test_a_message_waits_for_the_acknowledgements_before_it_although_there_is_room():
    broker = Broker(ReceiveQueue())
    broker.send()
    broker.send()
    assert broker.box.get(0) == CHUNK and broker.box.waiting_bytes < receive_queue.ROOM_BYTES
    broker.send(Message("status", b""))
    broker.send(None)
    assert broker.acknowledged == [1]
    assert [broker.box.get(0) for _ in range(3)] == [CHUNK, Message("status", b""), None]
    assert broker.acknowledged == [1, 2, 3, 4]


def test_a_message_of_no_interest_is_acknowledged_and_not_kept():
    broker = Broker(ReceiveQueue())
    broker.send(None)
    assert broker.acknowledged == [1] and len(broker.box) == 0


def test_a_message_that_is_dropped_is_acknowledged(monkeypatch):
    monkeypatch.setattr(receive_queue, "MAX_WAITING_EVENTS", 0)
    broker = Broker(ReceiveQueue())
    broker.send()
    assert broker.acknowledged == [1] and broker.box.dropped == 1 and broker.box.get(0) is None


@given(st.lists(st.integers(0, 2 * receive_queue.ROOM_BYTES) | st.none(), max_size=40))
def test_acknowledgements_keep_the_order_and_all_come(steps):
    """Each step sends a message of that many bytes, or takes one event (None)."""
    broker = Broker(ReceiveQueue())
    for step in steps:
        if step is None:
            broker.box.get(0)
        else:
            broker.send(Message("chunk", bytes(step)))
        assert broker.acknowledged == list(range(1, len(broker.acknowledged) + 1))
    while broker.box.get(0) is not None:
        pass
    assert broker.acknowledged == list(range(1, broker.sent + 1))


def test_above_the_limit_messages_are_dropped_and_counted_and_own_events_are_not(monkeypatch):
    monkeypatch.setattr(receive_queue, "MAX_WAITING_EVENTS", 2)
    box = ReceiveQueue()
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
    monkeypatch.setattr(receive_queue, "MAX_WAITING_BYTES", 8_000)
    box = ReceiveQueue()
    for i in range(3):
        box.receive(Message(f"chunk/{i}", bytes(3_000)))
    box.receive(Message("status", bytes(receive_queue.SMALL_MESSAGE_BYTES)))
    assert (len(box), box.dropped) == (3, 1)
    assert box.get(0).topic == "chunk/0"
    box.receive(Message("chunk/3", bytes(2_952)))  # 3,000 + 2,048 + 2,952 = 8,000
    box.receive(Message("chunk/4", bytes(receive_queue.SMALL_MESSAGE_BYTES + 1)))
    assert box.dropped == 2
    assert [box.get(0).topic for _ in range(3)] == ["chunk/1", "status", "chunk/3"]


@given(st.lists(st.integers(0, 5_000) | st.none(), max_size=60))
def test_payload_that_waits_is_bounded_whatever_comes_and_is_taken(steps):
    """None takes an event, a number is a message of so many bytes."""
    box = ReceiveQueue()
    waiting = []
    dropped = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(receive_queue, "MAX_WAITING_BYTES", 8_000)
        for step in steps:
            if step is None:
                event = box.get(0)
                assert (event and len(event.payload)) == (waiting.pop(0) if waiting else None)
            elif step > receive_queue.SMALL_MESSAGE_BYTES and sum(waiting) + step > 8_000:
                box.receive(Message("t", bytes(step)))
                dropped += 1
            else:
                box.receive(Message("t", bytes(step)))
                waiting.append(step)
            assert (len(box), box.dropped) == (len(waiting), dropped)

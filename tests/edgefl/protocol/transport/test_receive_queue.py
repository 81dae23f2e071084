"""The queue of messages for the service thread: ordered, bounded, and acknowledged when there is room."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.protocol.transport import receive_queue
from edgefl.protocol.transport.receive_queue import Connected, Message, ReceiveQueue

CHUNK = Message(topic="chunk", payload=bytes(receive_queue.ROOM_BYTES // 2))
"""With overhead, two of these messages exceed `ROOM_BYTES`."""


class Broker:
    """Sends numbered messages and records which of them are acknowledged."""

    def __init__(self, queue):
        self.queue = queue
        self.sent = 0
        self.acknowledged = []

    def send(self, message=CHUNK):
        self.sent += 1
        number = self.sent
        self.queue.receive(message, lambda: self.acknowledged.append(number))


def test_messages_are_acknowledged_at_once_while_there_is_room():
    broker = Broker(ReceiveQueue())
    broker.send()
    assert broker.acknowledged == [1]
    assert broker.queue.waiting_bytes == len(CHUNK.payload) + receive_queue.OVERHEAD_BYTES


def test_message_without_room_is_acknowledged_when_it_is_consumed():
    broker = Broker(ReceiveQueue())
    for _ in range(3):
        broker.send()
    assert broker.acknowledged == [1]
    assert broker.queue.get(0) == CHUNK
    assert broker.acknowledged == [1]  # the first message was consumed, the second waits
    assert broker.queue.get(0) == CHUNK
    assert broker.acknowledged == [1, 2]
    assert broker.queue.get(0) == CHUNK
    assert broker.acknowledged == [1, 2, 3]
    broker.send()
    assert broker.acknowledged == [1, 2, 3, 4]


def test_message_with_room_waits_for_earlier_acknowledgements():
    broker = Broker(ReceiveQueue())
    broker.send()
    broker.send()
    assert broker.queue.get(0) == CHUNK and broker.queue.waiting_bytes < receive_queue.ROOM_BYTES
    broker.send(Message(topic="status", payload=b""))
    broker.send(None)
    assert broker.acknowledged == [1]
    assert [broker.queue.get(0) for _ in range(3)] == [CHUNK, Message(topic="status", payload=b""), None]
    assert broker.acknowledged == [1, 2, 3, 4]


def test_ignored_message_is_acknowledged_and_not_queued():
    broker = Broker(ReceiveQueue())
    broker.send(None)
    assert broker.acknowledged == [1] and len(broker.queue) == 0


def test_dropped_message_is_acknowledged(monkeypatch):
    monkeypatch.setattr(receive_queue, "MAX_WAITING_EVENTS", 0)
    broker = Broker(ReceiveQueue())
    broker.send()
    assert broker.acknowledged == [1] and broker.queue.dropped == 1 and broker.queue.get(0) is None


@given(st.lists(st.integers(0, 2 * receive_queue.ROOM_BYTES) | st.none(), max_size=40))
def test_all_messages_are_acknowledged_in_order(steps):
    """Each step sends a message of this many bytes, or consumes one event (None)."""
    broker = Broker(ReceiveQueue())
    for step in steps:
        if step is None:
            broker.queue.get(0)
        else:
            broker.send(Message(topic="chunk", payload=bytes(step)))
        assert broker.acknowledged == list(range(1, len(broker.acknowledged) + 1))
    while broker.queue.get(0) is not None:
        pass
    assert broker.acknowledged == list(range(1, broker.sent + 1))


def test_messages_above_the_limit_are_dropped_but_local_events_are_not(monkeypatch):
    monkeypatch.setattr(receive_queue, "MAX_WAITING_EVENTS", 2)
    queue = ReceiveQueue()
    for i in range(4):
        queue.receive(Message(topic=f"t/{i}", payload=b""))
    queue.put(Connected("mqtt://here"))
    assert (len(queue), queue.dropped) == (3, 2)
    assert [queue.get(0) for _ in range(4)] == [
        Message(topic="t/0", payload=b""),
        Message(topic="t/1", payload=b""),
        Connected("mqtt://here"),
        None,
    ]


def test_large_messages_above_byte_limit_are_dropped_but_small_are_not(monkeypatch):
    """8,000 bytes may wait. The third chunk of 3,000 bytes exceeds them, until a chunk is consumed."""
    monkeypatch.setattr(receive_queue, "MAX_WAITING_BYTES", 8_000)
    queue = ReceiveQueue()
    for i in range(3):
        queue.receive(Message(topic=f"chunk/{i}", payload=bytes(3_000)))
    queue.receive(Message(topic="status", payload=bytes(receive_queue.SMALL_MESSAGE_BYTES)))
    assert (len(queue), queue.dropped) == (3, 1)
    assert queue.get(0).topic == "chunk/0"
    queue.receive(Message(topic="chunk/3", payload=bytes(2_952)))  # 3,000 + 2,048 + 2,952 = 8,000
    queue.receive(Message(topic="chunk/4", payload=bytes(receive_queue.SMALL_MESSAGE_BYTES + 1)))
    assert queue.dropped == 2
    assert [queue.get(0).topic for _ in range(3)] == ["chunk/1", "status", "chunk/3"]


@given(st.lists(st.integers(0, 5_000) | st.none(), max_size=60))
def test_waiting_payload_is_bounded_under_any_sequence_of_events(steps):
    """Each step receives a message of this many bytes, or consumes one event (None)."""
    queue = ReceiveQueue()
    waiting = []
    dropped = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(receive_queue, "MAX_WAITING_BYTES", 8_000)
        for step in steps:
            if step is None:
                event = queue.get(0)
                assert (event and len(event.payload)) == (waiting.pop(0) if waiting else None)
            elif step > receive_queue.SMALL_MESSAGE_BYTES and sum(waiting) + step > 8_000:
                queue.receive(Message(topic="t", payload=bytes(step)))
                dropped += 1
            else:
                queue.receive(Message(topic="t", payload=bytes(step)))
                waiting.append(step)
            assert (len(queue), queue.dropped) == (len(waiting), dropped)

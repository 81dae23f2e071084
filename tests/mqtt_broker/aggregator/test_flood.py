"""A fleet sends more than its aggregator takes: the rest stays with the broker, and the aggregator can still
speak.
"""

import time

import pytest

from edgefl.security.enrolment import load_enrolment
from edgefl.transport import receive_queue as inbox
from edgefl.transport.link import Link, Message
from edgefl.wire.topics import Topics

DEADLINE_S = 60.0
MESSAGES = 150
SIZE = 100_000
TOPICS = Topics("flooded")


@pytest.fixture
def over_tls(secured_broker, tmp_path):
    leader = secured_broker.link(load_enrolment(secured_broker.directory / "aggregator.enrol"))
    return leader, secured_broker.link(secured_broker.enrol("pi-1", tmp_path / "pi-1"))


@pytest.fixture
def plain(mosquitto_url):
    return Link(mosquitto_url, "flooded"), Link(mosquitto_url, "pi-1")


@pytest.mark.parametrize("ends", ["plain", "over_tls"])
def test_while_nothing_is_taken_only_the_room_is_filled_and_words_go_out(ends, request, monkeypatch):
    monkeypatch.setattr(inbox, "PATIENCE_S", 2 * DEADLINE_S)
    aggregator, device = request.getfixturevalue(ends)
    up = [TOPICS.upload("pi-1", "0" * 64, i) for i in range(MESSAGES)]
    try:
        aggregator.subscribe(TOPICS.upload("+", "+", "+"))
        device.subscribe(TOPICS.device("pi-1", "task"))
        for topic in up:
            device.publish(topic, bytes(SIZE))
            assert device.wait_in_flight(8, DEADLINE_S)
        assert device.wait_in_flight(1, DEADLINE_S)  # all is with the broker
        deadline = time.monotonic() + DEADLINE_S
        while aggregator._inbox.waiting_bytes <= inbox.ROOM_BYTES:
            assert time.monotonic() < deadline
        for word in range(5):
            aggregator.publish(TOPICS.device("pi-1", "task"), b"%d" % word)
            assert device.get(DEADLINE_S).payload == b"%d" % word
        assert aggregator._inbox.waiting_bytes <= inbox.ROOM_BYTES + SIZE + inbox.EACH_BYTES
        assert [aggregator.get(DEADLINE_S).topic for _ in up] == up
        assert aggregator.dropped == 0
    finally:
        for link in (aggregator, device):
            link.close(1.0)


def test_paho_hands_messages_on_as_they_are(mosquitto_url):
    """Were paho to call it by another name, messages would come by its own callback. Of one at QoS 0 nothing
    is kept.
    """
    link = Link(mosquitto_url, "one")
    try:
        link._client.on_message = None
        link.subscribe("a")
        link.publish("a", b"lightly", qos=0)
        assert link.in_flight == 0
        link.publish("a", b"here")
        assert [link.get(DEADLINE_S), link.get(DEADLINE_S)] == [
            Message("a", b"lightly"),
            Message("a", b"here"),
        ]
        assert link.wait_in_flight(1, DEADLINE_S)
        assert not link._acknowledgements._early
    finally:
        link.close()

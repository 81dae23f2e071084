"""A fleet sends more than its aggregator takes: the rest stays with the broker, and the aggregator can still
speak.
"""

import time

import pytest

from edgefl.security.enrolment import load_enrolment
from edgefl.transport.link import Link
from edgefl.transport.receive_queue import OVERHEAD_BYTES, ROOM_BYTES
from edgefl.wire.topics import FederationTopics

DEADLINE_S = 60.0
MESSAGES = 150
SIZE = 100_000
WINDOW = 20
"""How many messages the broker sends without an acknowledgement."""
TOPICS = FederationTopics("flooded")


@pytest.fixture
def over_tls(secured_broker, tmp_path):
    leader = secured_broker.link(load_enrolment(secured_broker.directory / "aggregator.enrol"))
    return leader, secured_broker.link(secured_broker.enrol("pi-1", tmp_path / "pi-1"))


@pytest.fixture
def plain(mosquitto_url):
    return Link(mosquitto_url, "flooded"), Link(mosquitto_url, "pi-1")


@pytest.mark.parametrize("ends", ["plain", "over_tls"])
def test_while_nothing_is_taken_the_broker_keeps_the_rest_and_messages_go_out(ends, request):
    aggregator, device = request.getfixturevalue(ends)
    up = [TOPICS.format_upload("pi-1", "0" * 64, i) for i in range(MESSAGES)]
    try:
        aggregator.subscribe(TOPICS.format_upload("+", "+", "+"))
        device.subscribe(TOPICS.format_device("pi-1", "task"))
        for topic in up:
            device.publish(topic, bytes(SIZE))
            assert device.wait_in_flight(8, DEADLINE_S)
        assert device.wait_in_flight(1, DEADLINE_S)  # all is with the broker
        deadline = time.monotonic() + DEADLINE_S
        while aggregator._received.waiting_bytes <= ROOM_BYTES:
            assert time.monotonic() < deadline
        for word in range(5):
            aggregator.publish(TOPICS.format_device("pi-1", "task"), b"%d" % word)
            assert device.get(DEADLINE_S).payload == b"%d" % word
        assert aggregator._received.waiting_bytes <= ROOM_BYTES + (WINDOW + 1) * (SIZE + OVERHEAD_BYTES)
        assert [aggregator.get(DEADLINE_S).topic for _ in up] == up
        assert aggregator.dropped == 0
    finally:
        for link in (aggregator, device):
            link.close(1.0)

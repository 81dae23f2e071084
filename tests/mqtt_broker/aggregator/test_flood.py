"""A fleet sends more than its aggregator reads: the broker stores the rest, and the aggregator can still
publish.
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
"""Number of messages that the broker sends without an acknowledgement."""
TOPICS = FederationTopics("flooded")


@pytest.fixture
def over_tls(secured_broker, tmp_path):
    leader = secured_broker.link(load_enrolment(secured_broker.directory / "aggregator.enrol"))
    return leader, secured_broker.link(secured_broker.enrol("pi-1", tmp_path / "pi-1"))


@pytest.fixture
def plain(mosquitto_url):
    return Link(mosquitto_url, "flooded"), Link(mosquitto_url, "pi-1")


@pytest.mark.parametrize("connections", ["plain", "over_tls"])
def test_unread_messages_stay_with_the_broker_and_publishing_continues(connections, request):
    aggregator, device = request.getfixturevalue(connections)
    upload_topics = [TOPICS.format_upload("pi-1", "0" * 64, i) for i in range(MESSAGES)]
    try:
        aggregator.subscribe(TOPICS.format_upload("+", "+", "+"))
        device.subscribe(TOPICS.format_device("pi-1", "task"))
        for topic in upload_topics:
            device.publish(topic, bytes(SIZE))
            assert device.wait_in_flight(8, DEADLINE_S)
        assert device.wait_in_flight(1, DEADLINE_S)  # the broker has all messages
        deadline = time.monotonic() + DEADLINE_S
        while aggregator._received.waiting_bytes <= ROOM_BYTES:
            assert time.monotonic() < deadline
        for number in range(5):
            aggregator.publish(TOPICS.format_device("pi-1", "task"), b"%d" % number)
            assert device.get(DEADLINE_S).payload == b"%d" % number
        assert aggregator._received.waiting_bytes <= ROOM_BYTES + (WINDOW + 1) * (SIZE + OVERHEAD_BYTES)
        assert [aggregator.get(DEADLINE_S).topic for _ in upload_topics] == upload_topics
        assert aggregator.dropped == 0
    finally:
        for link in (aggregator, device):
            link.close(1.0)

"""A fleet sends more than its aggregator reads: the broker stores the rest, and the aggregator can still
publish.
"""

import time

import pytest

from edgefl.protocol.security.enrolment import load_enrolment
from edgefl.protocol.transport.link import Link
from edgefl.protocol.transport.receive_queue import OVERHEAD_BYTES, ROOM_BYTES
from edgefl.protocol.wire.topics import FederationTopics

DEADLINE_S = 60.0
MESSAGES = 150
SIZE = 100_000
WINDOW = 20
"""Number of messages that the broker sends without an acknowledgement."""
FILLING = ROOM_BYTES // (SIZE + OVERHEAD_BYTES) + 1
"""Number of messages that fill the queue, so that no further message is acknowledged."""
TOPICS = FederationTopics("flooded")


@pytest.fixture
def over_tls(secured_broker, tmp_path):
    leader = secured_broker.link(load_enrolment(secured_broker.directory / "aggregator.enrol"))
    return leader, secured_broker.link(secured_broker.enrol("pi-1", tmp_path / "pi-1"))


@pytest.fixture
def plain(mosquitto_url):
    return Link(mosquitto_url, "flooded"), Link(mosquitto_url, "pi-1")


def publish(device, topics):
    """Publish a message to each topic, and wait until the broker has all of them."""
    for topic in topics:
        device.publish(topic, bytes(SIZE))
        assert device.wait_in_flight(8, DEADLINE_S)
    assert device.wait_in_flight(1, DEADLINE_S)


def exchange(aggregator, device, payload):
    """Send a message from the aggregator to the device."""
    aggregator.publish(TOPICS.format_device("pi-1", "task"), payload)
    assert device.get(DEADLINE_S).payload == payload


@pytest.mark.parametrize("connections", ["plain", "over_tls"])
def test_unread_messages_stay_with_the_broker_and_publishing_continues(connections, request):
    aggregator, device = request.getfixturevalue(connections)
    upload_topics = [TOPICS.format_upload("pi-1", "0" * 64, i) for i in range(MESSAGES)]
    try:
        aggregator.subscribe(TOPICS.format_upload("+", "+", "+"))
        device.subscribe(TOPICS.format_device("pi-1", "task"))
        publish(device, upload_topics[:FILLING])
        deadline = time.monotonic() + DEADLINE_S
        while aggregator._received.waiting_bytes <= ROOM_BYTES:
            assert time.monotonic() < deadline
        # The broker has the acknowledgements too once the next message of this connection has passed it.
        # mosquitto before 2.0.13 sends up to a window of queued messages for each acknowledgement, so none
        # may be on its way while messages wait in the broker.
        exchange(aggregator, device, b"first")
        publish(device, upload_topics[FILLING:])
        for number in range(5):
            exchange(aggregator, device, b"%d" % number)
        assert aggregator._received.waiting_bytes <= ROOM_BYTES + (WINDOW + 1) * (SIZE + OVERHEAD_BYTES)
        assert [aggregator.get(DEADLINE_S).topic for _ in upload_topics] == upload_topics
        assert aggregator.dropped == 0
    finally:
        for link in (aggregator, device):
            link.close(1.0)

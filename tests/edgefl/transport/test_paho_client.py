"""A message is handed on as paho would hand it on, and what is none is refused."""

import paho.mqtt.client as paho
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.enums import MQTTErrorCode

from edgefl.transport.paho_client import PacedClient
from edgefl.transport.receive_queue import Inbox

TOPIC = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=40)


def told(head, packet, handle, protocol=paho.MQTTv311):
    """What `take` is told of a packet, what is acknowledged, and what paho's loop is told."""
    taken = []
    numbers = []
    client = PacedClient(
        Inbox(), lambda *message: taken.append(message), lambda *_: None, client_id="a", protocol=protocol
    )
    client._send_puback = lambda number: numbers.append(number) or MQTTErrorCode.MQTT_ERR_SUCCESS
    client._in_packet |= {"command": head, "packet": bytearray(packet)}
    return handle(client), taken, numbers


@given(
    TOPIC,
    st.binary(max_size=200),
    st.integers(1, 65_535),
    st.sampled_from([0, 1]),
    st.booleans(),
    st.booleans(),
)
def test_as_paho_does(topic, payload, number, qos, retained, again):
    name = topic.encode()
    head = 0x30 | again << 3 | qos << 1 | retained
    packet = len(name).to_bytes(2, "big") + name + (number.to_bytes(2, "big") if qos else b"") + payload
    ours = told(head, packet, PacedClient._handle_publish)
    assert ours == told(head, packet, paho.Client._handle_publish)
    assert ours == (MQTTErrorCode.MQTT_ERR_SUCCESS, [(topic, payload, retained)], [number] * qos)


@pytest.mark.parametrize(
    "packet", [b"", b"\0", b"\0\1", b"\0\5four", b"\0\0", b"\0\0\0\7abc", b"\0\1\xff\0\7", b"\0\1a\7"]
)
def test_what_is_no_message_ends_the_connection(packet):
    assert told(0x32, packet, PacedClient._handle_publish) == (MQTTErrorCode.MQTT_ERR_PROTOCOL, [], [])


def test_with_mqtt_5_messages_come_by_paho():
    said = told(0x32, b"\0\1a\0\7\0here", PacedClient._handle_publish, paho.MQTTv5)
    assert said == (MQTTErrorCode.MQTT_ERR_SUCCESS, [("a", b"here", False)], [7])
    said = told(0x32, b"\0\1\xff\0\7\0here", PacedClient._handle_publish, paho.MQTTv5)
    assert said == (MQTTErrorCode.MQTT_ERR_PROTOCOL, [], [])


@given(st.binary(max_size=12), st.integers(0x30, 0x3F))
def test_no_packet_ends_the_thread(packet, head):
    try:
        told(head, packet, PacedClient._handle_publish)
    except paho.MalformedPacket:  # of QoS 2, which is not subscribed to; paho's loop takes it
        assert head & 4

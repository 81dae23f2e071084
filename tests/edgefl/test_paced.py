"""A message comes and is handed on as with paho alone, and what is none is refused."""

import socket

import paho.mqtt.client as paho
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.enums import MQTTErrorCode

from edgefl.link.inbox import Inbox
from edgefl.link.paced import MOST_AT_ONCE, PacedClient
from edgefl.link.sockets import RECORD

TOPIC = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=40)


def told(head, packet, handle):
    """What `take` is told of a packet, what is acknowledged, and what paho's loop is told."""
    taken, numbers = [], []
    client = PacedClient(Inbox(), lambda *message: taken.append(message), lambda *_: None, client_id="a", protocol=paho.MQTTv311)
    client._send_puback = lambda number: numbers.append(number) or MQTTErrorCode.MQTT_ERR_SUCCESS
    client._in_packet |= {"command": head, "packet": bytearray(packet)}
    return handle(client), taken, numbers


@given(TOPIC, st.binary(max_size=200), st.integers(1, 65_535), st.sampled_from([0, 1]), st.booleans(), st.booleans())
def test_as_paho_does(topic, payload, number, qos, retained, again):
    name, head = topic.encode(), 0x30 | again << 3 | qos << 1 | retained
    packet = len(name).to_bytes(2, "big") + name + (number.to_bytes(2, "big") if qos else b"") + payload
    ours = told(head, packet, PacedClient._handle_publish)
    assert ours == told(head, packet, paho.Client._handle_publish)
    assert ours == (MQTTErrorCode.MQTT_ERR_SUCCESS, [(topic, payload, retained)], [number] * qos)


@pytest.mark.parametrize("packet", [b"", b"\0", b"\0\1", b"\0\5four", b"\0\0", b"\0\0\0\7abc", b"\0\1\xff\0\7", b"\0\1a\7"])
def test_what_is_no_message_ends_the_connection(packet):
    assert told(0x32, packet, PacedClient._handle_publish) == (MQTTErrorCode.MQTT_ERR_PROTOCOL, [], [])


def frame(topic, payload):
    body = len(topic).to_bytes(2, "big") + topic + payload
    left, digits = len(body), bytearray()
    while left or not digits:
        left, digit = left >> 7, left & 127
        digits.append(digit | 128 * (left > 0))
    return b"\x30" + bytes(digits) + body


SIZES = st.integers(0, 300) | st.sampled_from(
    [RECORD - 3, RECORD - 2, 3 * RECORD + 7, MOST_AT_ONCE - 3, MOST_AT_ONCE - 2, MOST_AT_ONCE + 70_000]
)


@given(st.lists(SIZES, min_size=1, max_size=5), st.lists(st.sampled_from([1, 2, 5, 700, 20_000, 150_000]), min_size=1, max_size=4))
def test_packets_of_any_size_come_whole_however_they_come(sizes, pieces):
    payloads = [bytes([number]) * size for number, size in enumerate(sizes)]
    stream, taken, turn, least = b"".join(frame(b"a", payload) for payload in payloads), [], 0, len(sizes) * 400
    client = PacedClient(Inbox(), lambda *message: taken.append(message), lambda *_: None, client_id="a", protocol=paho.MQTTv311)
    mine, peer = socket.socketpair()
    with mine, peer:
        mine.setblocking(False)
        client._sock = mine
        while stream:
            piece = max(pieces[turn % len(pieces)], len(stream) // least)
            peer.sendall(stream[:piece])
            stream, turn = stream[piece:], turn + 1
            while (code := client._packet_read()) == MQTTErrorCode.MQTT_ERR_SUCCESS:
                pass
            assert code == MQTTErrorCode.MQTT_ERR_AGAIN
        assert taken == [("a", payload, False) for payload in payloads]
        peer.close()
        assert client._packet_read() == MQTTErrorCode.MQTT_ERR_CONN_LOST


@pytest.mark.parametrize(
    "sent", [b"", b"\x30", frame(b"a", bytes(9))[:4], frame(b"a", bytes(3 * RECORD))[:-1], frame(b"a", bytes(3 * RECORD))[:4]]
)
def test_a_connection_that_ends_within_a_packet_is_lost(sent):
    client = PacedClient(Inbox(), lambda *_: pytest.fail("no packet came whole"), lambda *_: None, client_id="a", protocol=paho.MQTTv311)
    mine, peer = socket.socketpair()
    with mine:
        mine.setblocking(False)
        client._sock = mine
        with peer:
            peer.sendall(sent)
            assert client._packet_read() == MQTTErrorCode.MQTT_ERR_AGAIN
        assert client._packet_read() == MQTTErrorCode.MQTT_ERR_CONN_LOST


def test_what_a_packet_claims_to_be_is_not_made_room_for_unless_it_is_small():
    client = PacedClient(Inbox(), lambda *_: None, lambda *_: None, client_id="a", protocol=paho.MQTTv311)
    mine, peer = socket.socketpair()
    with mine, peer:
        mine.setblocking(False)
        client._sock = mine
        peer.sendall(b"\x30\xff\xff\xff\x7f\0")  # 256 MiB
        assert client._packet_read() == MQTTErrorCode.MQTT_ERR_AGAIN
        assert client._in_packet["packet"] == b"\0"


@given(st.binary(max_size=12), st.integers(0x30, 0x3F))
def test_no_packet_ends_the_thread(packet, head):
    try:
        told(head, packet, PacedClient._handle_publish)
    except paho.MalformedPacket:  # of QoS 2, which is not subscribed to; paho's loop takes it
        assert head & 4

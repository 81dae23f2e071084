"""Brokers that deliver no messages of 240 KiB: some drop them, others close the connection."""

import secrets

import pytest

from edgefl.base.errors import LinkError
from edgefl.protocol.transport import message_size
from edgefl.protocol.transport.link import Link, Message
from edgefl.protocol.transport.message_size import find_message_size
from mqtt_broker.broker.dev_broker import LOOPBACK_HOST, find_mosquitto
from tests.mqtt_broker.test_doctor import run_doctor
from tests.support.broker import mosquitto
from tests.support.ports import choose_port

pytestmark = pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")
CHUNK_BYTES = 245_760
TOPIC = "edgefl/v2/lab/device/doctor/claim"
LIMITS = ("message_size_limit 131072", "max_packet_size 131072")


@pytest.fixture
def limited_url():
    """Start a broker with these settings and return its URL."""
    opened = []

    def make(settings):
        port = choose_port()
        broker = mosquitto(port, settings)
        broker.__enter__()
        opened.append(broker)
        return f"mqtt://{LOOPBACK_HOST}:{port}"

    yield make
    for broker in opened:
        broker.__exit__(None, None, None)


@pytest.mark.parametrize("protocol", ["", "?protocol=5"], ids=["mqtt-3.1.1", "mqtt-5"])
@pytest.mark.parametrize(
    ("settings", "largest", "size"),
    [
        ("", CHUNK_BYTES, CHUNK_BYTES),
        (f"message_size_limit {CHUNK_BYTES}", CHUNK_BYTES, CHUNK_BYTES),
        (LIMITS[0], CHUNK_BYTES, 122_880),
        (LIMITS[1], CHUNK_BYTES, 122_880),
        (f"max_packet_size {CHUNK_BYTES}", CHUNK_BYTES, 122_880),
        ("message_size_limit 70000", CHUNK_BYTES, 61_440),
        ("max_packet_size 70000", 100 * 1024, 50 * 1024),
        ("max_packet_size 20000", CHUNK_BYTES, 0),
        ("max_packet_size 20000", 10 * 1024, 10 * 1024),
        ("message_size_limit 20000", 20 * 1024, 0),
    ],
)
def test_largest_delivered_size_is_found(limited_url, settings, largest, size, protocol):
    url = limited_url(settings) + protocol
    found = find_message_size(lambda: Link(url, f"size-{secrets.token_hex(4)}"), lambda _: TOPIC, largest)
    assert found == size


@pytest.mark.parametrize("settings", LIMITS, ids=["drops", "disconnects"])
def test_federation_uses_messages_that_the_broker_delivers(federate, limited_url, toys, settings):
    """The model has 280 KB: one message of 240 KiB and a smaller one without the limit."""
    federation = federate(limited_url(settings), rounds=1, algorithm="fedavg", wide=True)
    aggregator = federation.aggregator()
    devices = [federation.device(f"pi-{number}", toys.shard(number)) for number in range(2)]
    assert [process.end() for process in (aggregator, *devices)] == [0, 0, 0], aggregator.err
    assert f"{federation.url} does not deliver messages of 245760 bytes (chunk_bytes)" in aggregator.err
    assert "set chunk_bytes = 122880 in [federation]" in aggregator.err


def test_fitting_chunk_bytes_and_doctor_say_the_same(federate, limited_url):
    url = limited_url(LIMITS[0])
    aggregator = federate(url, chunk_bytes=122_880).aggregator()
    aggregator.wait_for("waiting for devices")
    assert "does not deliver" not in aggregator.err
    code, checks = run_doctor("--broker", url)
    assert (code, checks["packets"]["level"]) == (0, "warn")
    assert "the aggregator sends messages of 122880 bytes instead" in checks["packets"]["found"]
    assert "set chunk_bytes = 122880 in [federation]" in checks["packets"]["remedy"]


def test_broker_for_tiny_messages_ends_the_aggregator_with_remedy(federate, limited_url):
    aggregator = federate(limited_url("max_packet_size 20000")).aggregator()
    assert aggregator.end() == 1
    assert "does not deliver messages of 245760 bytes (chunk_bytes); raise its limit" in aggregator.err


def test_broker_without_qos_1_is_not_reported_as_a_limit_of_chunks(limited_url):
    url = limited_url("max_qos 0")
    with pytest.raises(LinkError, match=rf"{url} closes .* QoS 1 on {TOPIC}; allow QoS 1"):
        find_message_size(lambda: Link(url, f"size-{secrets.token_hex(4)}"), lambda _: TOPIC, CHUNK_BYTES)


def test_broker_that_drops_all_messages_is_not_waited_for_long(limited_url, tmp_path, monkeypatch):
    monkeypatch.setattr(message_size, "FIRST_TIMEOUT_S", 0.5)
    (tmp_path / "acl").write_text("topic read #\n")
    url = limited_url(f"user {tmp_path.owner()}\nacl_file {tmp_path}/acl")
    with pytest.raises(LinkError, match=rf"message on {TOPIC} within 0.5 s; .* access list"):
        find_message_size(lambda: Link(url, f"size-{secrets.token_hex(4)}"), lambda _: TOPIC, CHUNK_BYTES)


@pytest.mark.parametrize(
    ("settings", "remedy"),
    [("retain_available false", "retain_available true"), ("max_qos 0", "max_qos 1 or 2")],
)
def test_broker_without_retained_messages_or_qos_1_is_named_with_mqtt_5(limited_url, settings, remedy):
    url = limited_url(settings)
    will = Message(topic=TOPIC, payload=b"", retained=True)
    with pytest.raises(LinkError, match=rf"not supported; allow .*{remedy}"):
        Link(f"{url}?protocol=5", "will", will=will)
    with pytest.raises(LinkError, match=r"did not answer in MQTT .*\?protocol=5 in the url"):
        Link(url, "will", will=will, timeout_s=1.0)
    code, checks = run_doctor("--broker", f"{url}?protocol=5")
    assert (code, checks["broker"]["level"]) == (1, "fail")
    assert remedy in checks["broker"]["remedy"]


def test_unreachable_broker_is_an_error():
    port = choose_port()
    with pytest.raises(LinkError, match="Connection refused"):
        find_message_size(
            lambda: Link(f"mqtt://{LOOPBACK_HOST}:{port}", "size"), lambda _: TOPIC, CHUNK_BYTES
        )

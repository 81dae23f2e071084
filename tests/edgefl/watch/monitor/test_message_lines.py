"""Messages as lines. No message raises an error, and no line moves the cursor."""

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgefl.base.errors import ConfigError
from edgefl.protocol.wire.messages import Metrics, Receipt, Status
from edgefl.protocol.wire.strict_json import encode_json
from edgefl.protocol.wire.topics import FederationTopics
from edgefl.watch.monitor.message_lines import (
    build_topic_filter,
    decode_message,
    format_json_line,
    format_text_line,
)

TOPICS = FederationTopics("kitchen")
SHA = "ab" * 32
NOON = time.mktime((2026, 11, 22, 12, 0, 0, 0, 0, -1))


def format_line(topic, payload, retained=False, oversize=0):
    return format_text_line(decode_message(topic, payload, oversize), NOON, retained)


def test_messages_are_formatted_as_text_lines():
    metrics = encode_json(
        Metrics(
            client_id="pi-1",
            round=3,
            values={"loss": 0.51234567},
            rss_mb=45.0,
            peak_rss_mb=70.25,
            temperature_c=float("nan"),
            seconds=1.5,
            ts=1000.0,
        )
    )
    assert format_line(TOPICS.format_device("pi-1", "metrics"), metrics) == (
        "12:00:00  kitchen/device/pi-1/metrics  client_id=pi-1 round=3 values={loss=0.5123} rss_mb=45 "
        "peak_rss_mb=70.25 temperature_c=- seconds=1.5 ts=1000"
    )
    status = encode_json(
        Status(
            client_id="pi-1",
            boot_id="b1",
            online=True,
            born=900.0,
            num_samples=40,
            version="0.1.0",
            ts=1000.0,
        )
    )
    assert format_line(TOPICS.format_device("pi-1", "status"), status, retained=True) == (
        "12:00:00* kitchen/device/pi-1/status  client_id=pi-1 boot_id=b1 online=yes born=900 num_samples=40 "
        "version=0.1.0 ts=1000 draining=no"
    )
    receipt = encode_json(
        Receipt(round=3, sha256=SHA, outcome="missing", missing=((0, 2),), reason="", nonce="n", ts=5.0)
    )
    assert format_line(TOPICS.format_device("pi-1", "receipt"), receipt).endswith(
        "round=3 sha256=abababab.. outcome=missing missing=[[0 2]] nonce=n ts=5"
    )
    assert (
        format_line(TOPICS.format_upload("pi-1", SHA, 7), b"x" * 122880)
        == "12:00:00  kitchen/device/pi-1/up/abababab../7  (122,880 bytes)"
    )
    assert format_line(TOPICS.state, b"") == "12:00:00  kitchen/state  (cleared)"
    assert format_line(TOPICS.state, b"{").startswith(
        "12:00:00  kitchen/state  (broken, 1 bytes: State is not JSON"
    )
    assert format_line(TOPICS.format_blob(SHA, 0), b"", oversize=300_000).startswith(
        "12:00:00  kitchen/blob/abababab../0  (broken, 300000 bytes: "
    )


def test_escape_sequences_in_messages_do_not_move_the_cursor():
    status = encode_json(
        Status(
            client_id="pi-1",
            boot_id="b1",
            online=True,
            born=900.0,
            num_samples=40,
            version="\x1b[2J\x1b]0;owned\x07",
            ts=1000.0,
        )
    )
    for text in (
        format_line(TOPICS.format_device("pi-1", "status"), status),
        format_line("edgefl/v2/f/\x1b[2J", b"\x1b"),
        format_line("x\ny", b""),
    ):
        assert text.isprintable()


def test_message_is_formatted_as_a_json_line():
    payload = encode_json(
        Metrics(
            client_id="pi-1",
            round=3,
            values={"loss": 0.5},
            rss_mb=45.0,
            peak_rss_mb=70.0,
            temperature_c=float("nan"),
            seconds=1.5,
            ts=1000.0,
        )
    )
    tree = json.loads(
        format_json_line(decode_message(TOPICS.format_device("pi-1", "metrics"), payload), 12.5, True)
    )
    assert tree == {
        "received": 12.5,
        "retained": True,
        "topic": "edgefl/v2/kitchen/device/pi-1/metrics",
        "kind": "metrics",
        "message": {
            "client_id": "pi-1",
            "round": 3,
            "values": {"loss": 0.5},
            "rss_mb": 45.0,
            "peak_rss_mb": 70.0,
            "temperature_c": None,
            "seconds": 1.5,
            "ts": 1000.0,
        },
    }
    assert (
        json.loads(format_json_line(decode_message(TOPICS.format_blob(SHA, 1), b"abc"), 1.0, False))["bytes"]
        == 3
    )


@pytest.mark.parametrize(
    ("topic", "federation", "expected"),
    [
        ("device/+/metrics", "", "edgefl/v2/+/device/+/metrics"),
        ("device/+/metrics", "kitchen", "edgefl/v2/kitchen/device/+/metrics"),
        ("#", "", "edgefl/v2/+/#"),
        ("edgefl/v2/hall/state", "kitchen", "edgefl/v2/hall/state"),
    ],
)
def test_topic_filter_is_relative_to_the_federation(topic, federation, expected):
    assert build_topic_filter(topic, federation) == expected


@pytest.mark.parametrize("bad", ["", "a#", "#/a", "device/pi+/status", "/state", "a\0"])
def test_an_invalid_filter_is_rejected_with_an_example(bad):
    with pytest.raises(ConfigError, match=r"expected one below .* such as 'device/\+/metrics'"):
        build_topic_filter(bad, "")


ANY_TOPIC = st.text(max_size=40) | st.sampled_from(
    [
        TOPICS.state,
        TOPICS.clusters,
        TOPICS.format_summary(1),
        TOPICS.format_device("a", "task"),
        TOPICS.format_upload("a", SHA, 0),
        TOPICS.format_manifest(SHA),
    ]
)


@settings(max_examples=200)
@given(
    ANY_TOPIC, st.binary(max_size=80) | st.text(max_size=40).map(str.encode), st.sampled_from([0, 300_000])
)
def test_any_message_is_formatted_as_one_line(topic, payload, oversize):
    tree = decode_message(topic, payload, oversize)
    assert format_text_line(tree, NOON, False).isprintable()
    assert json.loads(format_json_line(tree, NOON, False))["topic"] == topic

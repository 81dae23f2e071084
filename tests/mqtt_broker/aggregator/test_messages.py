"""The events that an aggregator reads from messages."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.base.errors import WireError
from edgefl.protocol.security.trust import Trust
from edgefl.protocol.server.events import (
    BeginReceived,
    ChunkReceived,
    ClientExcluded,
    EndReceived,
    ManifestReceived,
    MessageInvalid,
    StateOverwritten,
    StatusReceived,
    WantReceived,
)
from edgefl.protocol.transport.link import Message
from edgefl.protocol.wire.chunks import CHUNK_BYTES
from edgefl.protocol.wire.messages import JOINING_PHASE, STOPPED_PHASE, Begin, Manifest, State, Status, Want
from edgefl.protocol.wire.strict_json import encode_json
from edgefl.protocol.wire.topics import FederationTopics
from mqtt_broker.aggregator.messages import OtherAggregatorError, read_event

TOPICS = FederationTopics("f")
A = "a" * 64
OPEN = Trust(federation="f")
STATUS = Status(client_id="pi-1", boot_id="boot", online=True, born=0.0, num_samples=10, version="0", ts=0.0)
BEGIN = Begin(
    client_id="pi-1",
    session="s",
    round=1,
    plan="p",
    sha256=A,
    size=7,
    count=1,
    chunk_bytes=CHUNK_BYTES,
    num_samples=4,
    metrics={},
    nonce="n",
    ts=0.0,
)
WANT = Want(A, ((0, 1),), 0.0)
MANIFEST = Manifest(sha256=A, size=7, count=1, chunk_bytes=CHUNK_BYTES, ts=0.0, retained=True, session="s")


def read(topic, payload, trust=OPEN):
    return read_event(Message(topic=topic, payload=payload), "s", trust)


def encode_state(session, phase, started=0):
    return encode_json(
        State(
            federation="f",
            session=session,
            phase=phase,
            round=0,
            rounds=1,
            cohort_size=0,
            deadline_s=1.0,
            plan="p",
            ts=0.0,
            started=started,
        )
    )


@pytest.mark.parametrize(
    ("topic", "payload", "event"),
    [
        (TOPICS.format_device("pi-1", "status"), encode_json(STATUS), StatusReceived(STATUS)),
        (TOPICS.format_device("pi-1", "status"), b"", None),
        (TOPICS.format_device("pi-1", "want"), encode_json(WANT), WantReceived("pi-1", WANT)),
        (TOPICS.format_upload("pi-1", A, "begin"), encode_json(BEGIN), BeginReceived(BEGIN)),
        (
            TOPICS.format_upload("pi-1", A, 3),
            b"bytes",
            ChunkReceived(client_id="pi-1", sha256=A, index=3, payload=b"bytes"),
        ),
        (TOPICS.format_upload("pi-1", A, "end"), b"{}", EndReceived("pi-1", A)),
        (TOPICS.format_manifest(A), encode_json(MANIFEST), ManifestReceived(MANIFEST)),
        (TOPICS.format_manifest(A), b"", None),
        (TOPICS.state, b"", None),
        (TOPICS.state, encode_state("s", JOINING_PHASE), None),
        (TOPICS.state, encode_state("s", STOPPED_PHASE), StateOverwritten()),
    ],
)
def test_message_is_read_as_its_event(topic, payload, event):
    assert read(topic, payload) == event


@pytest.mark.parametrize(
    ("session", "started", "leads"),
    [
        ("other", 7, True),
        ("other", 6, True),
        ("other", 4, False),
        ("s", 6, True),
        ("a", 5, True),
        ("z", 5, False),
    ],
)
@pytest.mark.parametrize("phase", [JOINING_PHASE, STOPPED_PHASE])
def test_later_of_two_aggregators_leads(session, started, leads, phase):
    """This run has the session s and started at 5."""
    message = Message(topic=TOPICS.state, payload=encode_state(session, phase, started))
    if leads:
        with pytest.raises(OtherAggregatorError, match="'f' now; run one at a time"):
            read_event(message, "s", OPEN, 5)
    else:
        assert read_event(message, "s", OPEN, 5) == StateOverwritten()


@given(*(st.tuples(st.integers(0, 9), st.sampled_from("abc")) for _ in range(2)))
def test_exactly_one_of_two_aggregators_leads(one, other):
    def leads(mine, theirs):
        message = Message(topic=TOPICS.state, payload=encode_state(theirs[1], JOINING_PHASE, theirs[0]))
        try:
            read_event(message, mine[1], OPEN, mine[0])
        except OtherAggregatorError:
            return False
        return True

    assert one == other or leads(one, other) != leads(other, one)


@pytest.mark.parametrize(
    ("topic", "payload", "reason", "sha256"),
    [
        (TOPICS.format_device("pi-1", "status"), encode_json(replace(STATUS, client_id="pi-2")), "pi-2", ""),
        (TOPICS.format_device("pi-1", "status"), b"{", "", ""),
        (TOPICS.format_upload("pi-1", A, "begin"), encode_json(replace(BEGIN, client_id="pi-2")), "pi-2", A),
        (TOPICS.format_upload("pi-1", A, "begin"), encode_json(replace(BEGIN, sha256="b" * 64)), "", A),
    ],
)
def test_invalid_client_message_is_attributed_to_the_client(topic, payload, reason, sha256):
    event = read(topic, payload)
    assert isinstance(event, MessageInvalid)
    assert (event.client_id, event.sha256) == ("pi-1", sha256)
    assert reason in event.reason


def test_oversize_chunk_is_rejected_with_its_size():
    event = read_event(
        Message(topic=TOPICS.format_upload("pi-1", A, 0), payload=b"", oversize=300_000), "s", OPEN
    )
    assert (event.client_id, event.sha256) == ("pi-1", A) and "300000 bytes" in event.reason


@pytest.mark.parametrize(
    ("topic", "payload"),
    [
        ("edgefl/v2/f/nonsense", b""),
        (TOPICS.state, b"{"),
        (TOPICS.format_manifest("b" * 64), encode_json(MANIFEST)),
    ],
)
def test_invalid_message_without_a_client_is_an_error(topic, payload):
    with pytest.raises(WireError):
        read(topic, payload)


def test_message_of_an_unenrolled_client_excludes_it():
    def refuse_key(client_id):
        raise WireError(f"{client_id} was revoked; enrol it")

    trust = Trust(federation="f", find_key=refuse_key)
    assert read(TOPICS.format_device("pi-1", "status"), b"{", trust) == ClientExcluded(
        "pi-1", "pi-1 was revoked; enrol it"
    )
    assert read(TOPICS.format_upload("pi-1", A, "begin"), b"{", trust).sha256 == A

"""No message breaks a view or fills memory, and messages may arrive in any order."""

import json
import math
import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st

from edgefl.protocol.wire.messages import Begin, Clusters, Metrics, Receipt, State, Status, Summary, Task
from edgefl.protocol.wire.strict_json import encode_json
from edgefl.protocol.wire.topics import FederationTopics
from edgefl.watch.monitor.device_view import MAX_TRACE_ROUNDS
from edgefl.watch.monitor.view import (
    MAX_CLUSTERINGS,
    MAX_DEVICES,
    MAX_HISTORY_ROUNDS,
    FederationView,
    snapshot,
)

TOPICS = FederationTopics("kitchen")
SHA = "ab" * 32


def status(client_id="pi-1"):
    return TOPICS.format_device(client_id, "status"), encode_json(
        Status(
            client_id=client_id,
            boot_id="b1",
            online=True,
            born=90.0,
            num_samples=40,
            version="0.1.0",
            ts=90.0,
        )
    )


def metrics(round=1):
    values = {"loss": 0.5, "gate_0": 1.0}
    return TOPICS.format_device("pi-1", "metrics"), encode_json(
        Metrics(
            client_id="pi-1",
            round=round,
            values=values,
            rss_mb=45.0,
            peak_rss_mb=70.0,
            temperature_c=math.nan,
            seconds=1.5,
            ts=112.0,
        )
    )


def summary(round=1):
    return TOPICS.format_summary(round), encode_json(
        Summary(
            round=round,
            phase="federate",
            updates=2,
            loss=0.5,
            accuracy_mean=math.nan,
            accuracy_p10=0.8,
            accuracy_p90=1.0,
            bytes_up=300,
            bytes_down=700,
            seconds=2.5,
            dropped=("pi-1",),
            ts=113.0,
        )
    )


def clusters(round=1):
    return TOPICS.clusters, encode_json(
        Clusters(
            session="s1",
            round=round,
            assignment={"a": round},
            layer="",
            clients=(),
            matrix=(),
            linkage=(),
            cut=math.nan,
            ts=114.0,
        )
    )


STATE = (
    TOPICS.state,
    encode_json(
        State(
            federation="kitchen",
            session="s1",
            phase="federate",
            round=1,
            rounds=20,
            cohort_size=2,
            deadline_s=60.0,
            plan=SHA,
            ts=100.0,
        )
    ),
)
TASK = Task(
    session="s1",
    round=1,
    phase="federate",
    plan=SHA,
    models={"global": SHA},
    scalars={},
    seed=1,
    deadline_s=60.0,
    codec="fp32",
    max_staleness=0,
    budget_s=0.0,
    nonce="n",
    ts=100.0,
)
BEGIN = Begin(
    client_id="pi-1",
    session="s1",
    round=1,
    plan=SHA,
    sha256=SHA,
    size=1000,
    count=1,
    chunk_bytes=65536,
    num_samples=40,
    metrics={"loss": 0.5},
    nonce="n",
    ts=110.0,
)
VALID_MESSAGES = [
    STATE,
    status(),
    (TOPICS.format_device("pi-1", "task"), encode_json(TASK)),
    (TOPICS.format_upload("pi-1", SHA, "begin"), encode_json(BEGIN)),
    (
        TOPICS.format_device("pi-1", "receipt"),
        encode_json(Receipt(round=1, sha256=SHA, outcome="ok", missing=(), reason="", nonce="n", ts=111.0)),
    ),
    metrics(),
    summary(),
    clusters(),
]
NUMBERS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
ANY_TOPIC = st.sampled_from([topic for topic, _ in VALID_MESSAGES]) | st.text(max_size=40)


@st.composite
def draw_almost_valid_message(draw):
    """Draw a protocol message with one wrong field."""
    topic, payload = draw(st.sampled_from(VALID_MESSAGES))
    fields = json.loads(payload)
    fields[draw(st.sampled_from(sorted(fields)))] = draw(
        NUMBERS | st.lists(NUMBERS, max_size=3) | st.dictionaries(st.text(max_size=4), NUMBERS)
    )
    return topic, json.dumps(fields).encode()


@settings(max_examples=300)
@given(
    st.lists(
        st.sampled_from(VALID_MESSAGES)
        | draw_almost_valid_message()
        | st.tuples(ANY_TOPIC, st.binary(max_size=60)),
        max_size=25,
    ),
    st.floats(0, 1e10),
)
def test_arbitrary_messages_give_a_json_snapshot(messages, now):
    view = FederationView("kitchen")
    for topic, payload in messages:
        view.take(topic, payload, now)
    assert (
        json.loads(json.dumps(snapshot(view, now), allow_nan=False))["broken"] == view.broken <= len(messages)
    )


@given(st.permutations(VALID_MESSAGES))
def test_messages_may_arrive_in_any_order(messages):
    view = FederationView("kitchen")
    for topic, payload in messages:
        view.take(topic, payload, 115.0)
    tree = snapshot(view, 120.0)
    assert (tree["round"], tree["broken"], tree["clusters"]["rounds"]) == (
        1,
        0,
        [{"round": 1, "assignment": {"a": 1}}],
    )
    assert [(device["id"], device["state"]) for device in tree["devices"]] in (
        [("pi-1", "sent")],
        [("pi-1", "training")],
    )


def test_memory_of_a_view_is_bounded():
    view = FederationView("kitchen")
    view.take(*STATE, 1.0)
    tracemalloc.start()
    try:
        for i in range(MAX_DEVICES + 500):
            view.take(*status(f"pi-{i}"), 1.0)
        full = tracemalloc.get_traced_memory()[0]
        for i in range(3 * MAX_HISTORY_ROUNDS):
            view.take(*summary(i), 1.0)
            view.take(*clusters(i), 1.0)
            view.take(*metrics(i), 1.0)
        grown = tracemalloc.get_traced_memory()[0] - full
    finally:
        tracemalloc.stop()
    tree = snapshot(view, 1.0)
    assert (len(tree["devices"]), tree["broken"]) == (MAX_DEVICES, 500)
    assert (
        len(tree["history"]),
        len(tree["clusters"]["rounds"]),
        max(len(device["trace"]) for device in tree["devices"]),
    ) == (
        MAX_HISTORY_ROUNDS,
        MAX_CLUSTERINGS,
        MAX_TRACE_ROUNDS,
    )
    assert grown < 2_000_000

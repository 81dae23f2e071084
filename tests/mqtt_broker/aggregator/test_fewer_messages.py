"""How a round saves messages: some updates are granted before they are announced, and the broker retains
blobs.
"""

from dataclasses import replace

import pytest

from edgefl.base.config import FederationConfig
from edgefl.base.rng import derive_rng
from edgefl.learning.algorithms import complete_algorithm_options, make_algorithm
from edgefl.protocol.server.tasks import GRANTED_BYTES, RoundTasks
from edgefl.protocol.server.uploads import MAX_UPLOAD_IDLE_S, Uploads
from edgefl.protocol.wire.chunks import CHUNK_BYTES, slice_chunk
from edgefl.protocol.wire.messages import Begin, Manifest
from edgefl.protocol.wire.strict_json import encode_json
from edgefl.protocol.wire.tensors import encode_models

A = "a" * 64
B = "b" * 64


def make_begin(client_id, sha256=A, follows=True):
    return Begin(
        client_id=client_id,
        session="s",
        round=1,
        plan="p",
        sha256=sha256,
        size=100,
        count=1,
        chunk_bytes=CHUNK_BYTES,
        num_samples=4,
        metrics={},
        nonce="n",
        ts=0.0,
        follows=follows,
    )


def list_outcomes(receipts):
    return [(client_id, receipt.outcome) for client_id, receipt in receipts]


def test_granted_upload_needs_no_receipt_and_no_slot():
    uploads = Uploads(slots=1)
    assert list_outcomes(uploads.begin(make_begin("a", follows=False), 1000, 0.0)) == [("a", "missing")]
    assert list_outcomes(uploads.begin(make_begin("b"), 1000, 0.0, follows=True)) == []
    assert uploads.add_chunk("b", A, 0, bytes(100), 0.0) == make_begin("b")
    assert list_outcomes(uploads.begin(make_begin("c", follows=False), 1000, 0.0)) == [("c", "wait")]
    assert list_outcomes(uploads.begin(make_begin("c"), 1000, 0.0, follows=True)) == []
    assert uploads.close("a", 0.0) == [], "who was granted a place has left the queue"


def test_repeated_granted_upload_gets_its_missing_chunks_on_request():
    uploads = Uploads(slots=1)
    uploads.begin(make_begin("a"), 1000, 0.0, follows=True)
    assert uploads.begin(make_begin("a"), 1000, 1.0, follows=True) == []
    assert [each.missing for _, each in uploads.begin(make_begin("a", follows=False), 1000, 2.0)] == [
        ((0, 1),)
    ]
    uploads.begin(make_begin("b", follows=False), 1000, 2.0)
    assert list_outcomes(uploads.expire(2.1 + MAX_UPLOAD_IDLE_S)) == [("b", "missing")]


@pytest.mark.parametrize(("features", "granted"), [(4, 5), (400_000, 0), (170_000, 1)])
def test_granted_uploads_fit_the_byte_limit(features, granted, toys):
    plan = toys.plan(features)
    config = FederationConfig(algorithm="fedavg")
    algorithm = make_algorithm("fedavg", None, complete_algorithm_options("fedavg", {}))
    state = algorithm.init(toys.weights(features), derive_rng(1, 0, "init"))
    tasks = RoundTasks(
        algorithm,
        state,
        config,
        session="s",
        plan=plan.id,
        nonces={1: "n"},
        max_staleness=0,
        offer=lambda *blob: None,
    )
    client_tasks = [tasks.prepare(f"pi-{i}") for i in range(5)]
    assert [brief.task.granted for brief in client_tasks] == [i < granted for i in range(5)]
    assert sum(brief.limit for brief in client_tasks if brief.task.granted) <= GRANTED_BYTES


def test_granted_update_has_one_receipt_and_lost_chunk_is_requested(federate, any_url, toys, puppet):
    federation = federate(any_url, rounds=1, min_clients=2, wide=True)
    aggregator = federation.aggregator()
    complete = puppet(federation, "pi-1")
    incomplete = puppet(federation, "pi-2")
    blob = encode_models({"global": toys.weights(10_000)})
    for client, lost_chunks in ((complete, ()), (incomplete, (1,))):
        task = client.next("task")
        assert task.granted
        announcement = client.begin(task, blob, follows=True)
        for index in range(announcement.count):
            if index not in lost_chunks:
                client.publish(announcement.sha256, index, slice_chunk(blob, index))
        if lost_chunks:
            client.begin(task, blob)
            receipt = client.next("receipt")
            assert (receipt.outcome, receipt.missing) == ("missing", ((1, 2),))
            client.publish(announcement.sha256, 1, slice_chunk(blob, 1))
        assert client.next("receipt").outcome == "ok"
    for client in (complete, incomplete):
        assert client.send(client.next("task"), encode_models({})).outcome == "ok"
    assert aggregator.end() == 0, aggregator.err


def test_forged_manifest_makes_the_aggregator_publish_nothing(federate, mosquitto_url, toys, listen, puppet):
    """The session is public. Neither an unlimited count nor the name of another topic makes the
    aggregator publish anything for it.
    """
    federation = federate(mosquitto_url, rounds=1, min_clients=1)
    listener = listen(federation)
    aggregator = federation.aggregator()
    client = puppet(federation, "pi-1")
    task = client.next("task")
    forged = Manifest(
        sha256=A,
        size=10**15,
        count=10**9,
        chunk_bytes=CHUNK_BYTES,
        ts=0.0,
        retained=True,
        session=task.session,
    )
    for each in (
        forged,
        replace(forged, count=-1),
        replace(forged, sha256="#", count=1),
        replace(forged, sha256=B, count=1),
    ):
        client.link.publish(federation.topics.format_manifest(A), encode_json(each))
    assert client.send(task, encode_models({"global": toys.weights()})).outcome == "ok"
    assert client.send(client.next("task"), encode_models({})).outcome == "ok"
    assert aggregator.end() == 0, aggregator.err
    topics = [message.topic for message in listener.wait_for_phase("done", federation.topics.state)]
    assert not [topic for topic in topics if f"/blob/{A}/" in topic and not topic.endswith("/manifest")]
    assert not [topic for topic in topics if f"/blob/{B}/" in topic]

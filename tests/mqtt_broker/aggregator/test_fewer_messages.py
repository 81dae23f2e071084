"""What saves a round its messages: updates that are granted before they are announced, and blobs that the
broker keeps.
"""

from dataclasses import replace

import pytest

from edgefl.algorithms import complete_algorithm_options, make_algorithm
from edgefl.config import FederationConfig
from edgefl.rng import derive_rng
from edgefl.server.tasks import GRANTED_BYTES, RoundTasks
from edgefl.server.uploads import MAX_UPLOAD_IDLE_S, Uploads
from edgefl.wire.chunks import CHUNK_BYTES, slice_chunk
from edgefl.wire.messages import Begin, Manifest
from edgefl.wire.strict_json import encode_json
from edgefl.wire.tensors import encode_models

A = "a" * 64
B = "b" * 64


def begin(client_id, sha256=A, follows=True):
    return Begin(client_id, "s", 1, "p", sha256, 100, 1, CHUNK_BYTES, 4, {}, "n", 0.0, follows=follows)


def said(receipts):
    return [(client_id, receipt.outcome) for client_id, receipt in receipts]


def test_what_was_granted_needs_no_receipt_and_no_slot():
    uploads = Uploads(slots=1)
    assert said(uploads.begin(begin("a", follows=False), 1000, 0.0)) == [("a", "missing")]
    assert said(uploads.begin(begin("b"), 1000, 0.0, follows=True)) == []
    assert uploads.add_chunk("b", A, 0, bytes(100), 0.0) == begin("b")
    assert said(uploads.begin(begin("c", follows=False), 1000, 0.0)) == [("c", "wait")]
    assert said(uploads.begin(begin("c"), 1000, 0.0, follows=True)) == []
    assert uploads.close("a", 0.0) == [], "who was granted a place has left the queue"


def test_a_granted_update_that_comes_again_says_what_it_lacks_when_it_asks():
    uploads = Uploads(slots=1)
    uploads.begin(begin("a"), 1000, 0.0, follows=True)
    assert uploads.begin(begin("a"), 1000, 1.0, follows=True) == []
    assert [each.missing for _, each in uploads.begin(begin("a", follows=False), 1000, 2.0)] == [((0, 1),)]
    uploads.begin(begin("b", follows=False), 1000, 2.0)
    assert said(uploads.expire(2.1 + MAX_UPLOAD_IDLE_S)) == [("b", "missing")]


@pytest.mark.parametrize(("features", "granted"), [(4, 5), (400_000, 0), (170_000, 1)])
def test_so_many_are_granted_as_fit(features, granted, toys):
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
    briefs = [tasks.prepare(f"pi-{i}") for i in range(5)]
    assert [brief.task.granted for brief in briefs] == [i < granted for i in range(5)]
    assert sum(brief.limit for brief in briefs if brief.task.granted) <= GRANTED_BYTES


def test_a_granted_update_has_one_receipt_and_a_lost_chunk_is_asked_for(federate, any_url, toys, puppet):
    federation = federate(any_url, rounds=1, min_clients=2, wide=True)
    aggregator = federation.aggregator()
    whole = puppet(federation, "pi-1")
    partly = puppet(federation, "pi-2")
    blob = encode_models({"global": toys.weights(10_000)})
    for client, lost in ((whole, ()), (partly, (1,))):
        task = client.next("task")
        assert task.granted
        told = client.begin(task, blob, follows=True)
        for index in range(told.count):
            if index not in lost:
                client.publish(told.sha256, index, slice_chunk(blob, index))
        if lost:
            client.begin(task, blob)
            receipt = client.next("receipt")
            assert (receipt.outcome, receipt.missing) == ("missing", ((1, 2),))
            client.publish(told.sha256, 1, slice_chunk(blob, 1))
        assert client.next("receipt").outcome == "ok"
    for client in (whole, partly):
        assert client.send(client.next("task"), encode_models({})).outcome == "ok"
    assert aggregator.end() == 0, aggregator.said


def test_a_forged_manifest_makes_an_aggregator_publish_nothing(federate, mosquitto_url, toys, listen, puppet):
    """Its session is no secret. Neither a count without end nor another topic's name gets the aggregator to
    say anything of it.
    """
    federation = federate(mosquitto_url, rounds=1, min_clients=1)
    heard = listen(federation)
    aggregator = federation.aggregator()
    client = puppet(federation, "pi-1")
    task = client.next("task")
    forged = Manifest(A, 10**15, 10**9, CHUNK_BYTES, 0.0, True, task.session)
    for each in (
        forged,
        replace(forged, count=-1),
        replace(forged, sha256="#", count=1),
        replace(forged, sha256=B, count=1),
    ):
        client.link.publish(federation.topics.format_manifest(A), encode_json(each))
    assert client.send(task, encode_models({"global": toys.weights()})).outcome == "ok"
    assert client.send(client.next("task"), encode_models({})).outcome == "ok"
    assert aggregator.end() == 0, aggregator.said
    topics = [message.topic for message in heard.until_phase("done", federation.topics.state)]
    assert not [topic for topic in topics if f"/blob/{A}/" in topic and not topic.endswith("/manifest")]
    assert not [topic for topic in topics if f"/blob/{B}/" in topic]

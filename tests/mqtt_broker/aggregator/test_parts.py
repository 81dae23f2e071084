"""The aggregator's parts without a network: presence, blobs on demand, upload slots, results, and where a
plan comes from.
"""

import json
import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.config import FederationConfig
from edgefl.errors import ConfigError, LinkError, PlanError, WireError
from edgefl.plan.spec import save_plan
from edgefl.server import rounds
from edgefl.server.blobs import CHUNK_REPEAT_S, MANIFEST_REPEAT_S, MAX_WANT_WAIT_S, WANT_WINDOW_S, BlobServer
from edgefl.server.events import DroppedClient
from edgefl.server.spread import average_loss
from edgefl.server.uploads import MAX_UPLOAD_IDLE_S, Uploads
from edgefl.verdict import judge_federation
from edgefl.wire.chunks import CHUNK_BYTES, count_chunks, slice_chunk
from edgefl.wire.messages import Begin, Summary, Want
from edgefl.wire.strict_json import decode_json, encode_json
from mqtt_broker.aggregator.plan_source import build_plan_in_child, open_built_plan
from mqtt_broker.aggregator.results import (
    make_client_rows,
    make_result,
    save_result,
    summarize_round,
)
from mqtt_broker.broker import dev_broker as embedded
from tests.support.ports import choose_port

A = "a" * 64
B = "b" * 64


def test_chunks_that_several_want_go_out_once_after_a_moment():
    blobs = BlobServer(0)
    blobs.offer(A, bytes(CHUNK_BYTES + 1))
    assert blobs.make_manifest(A).count == 2
    assert blobs.record_want(Want(A, (), 0.0), now=10.0)
    assert blobs.take_next_chunk(10.0) is None
    assert blobs.record_want(Want(A, ((1, 2),), 0.0), now=10.01)
    later = 10.011 + WANT_WINDOW_S
    assert blobs.take_next_chunk(later) == (A, 0, bytes(CHUNK_BYTES))
    assert blobs.take_next_chunk(later) == (A, 1, b"\0")
    assert blobs.take_next_chunk(later) is None
    assert not blobs.is_busy


def test_a_blob_goes_out_at_once_when_all_who_were_told_of_it_have_asked():
    blobs = BlobServer(0)
    blobs.offer(A, b"x")
    blobs.expect(A, "pi-1")
    blobs.expect(A, "pi-2")
    blobs.record_want(Want(A, (), 0.0), 10.0, "pi-1")
    assert blobs.take_next_chunk(10.0) is None
    blobs.record_want(Want(A, (), 0.0), 10.001, "pi-2")
    assert blobs.take_next_chunk(10.001) == (A, 0, b"x")


def test_one_who_was_told_and_never_asks_holds_the_others_up_for_a_moment_only():
    blobs = BlobServer(0)
    blobs.offer(A, b"x")
    blobs.expect(A, "pi-1")
    blobs.expect(A, "silent")
    blobs.record_want(Want(A, (), 0.0), 10.0, "pi-1")
    assert blobs.take_next_chunk(10.0 + WANT_WINDOW_S / 2) is None
    assert blobs.take_next_chunk(10.001 + WANT_WINDOW_S) == (A, 0, b"x")


def test_a_blob_waits_for_those_who_keep_asking_but_not_for_ever():
    blobs = BlobServer(0)
    blobs.offer(A, b"x")
    step = WANT_WINDOW_S / 2
    asks = round(2 * MAX_WANT_WAIT_S / WANT_WINDOW_S)
    for i in range(asks + 1):
        blobs.expect(A, f"pi-{i}")
    sent = []
    for i in range(asks):
        blobs.record_want(Want(A, (), 0.0), 10.0 + i * step, f"pi-{i}")
        if blobs.take_next_chunk(10.0 + i * step):
            sent.append(i * step)
    assert sent == [] or sent[0] >= MAX_WANT_WAIT_S - step
    assert blobs.take_next_chunk(10.0 + asks * step + 0.001)


def test_a_manifest_is_published_again_for_those_who_ask_again_and_not_once_for_each():
    blobs = BlobServer(0)
    blobs.offer(A, b"x")
    assert [blobs.is_manifest_due(A, 10.0 + i / 1000) for i in range(3)] == [False] * 3
    later = 10.001 + MANIFEST_REPEAT_S
    assert [blobs.is_manifest_due(A, later), blobs.is_manifest_due(A, later + 0.1)] == [True, False]


def test_who_asks_late_gets_a_chunk_again_when_the_others_had_time_to_leave():
    blobs = BlobServer(0)
    blobs.offer(A, b"x")
    blobs.record_want(Want(A, (), 0.0), now=1.0)
    sent = 1.01 + WANT_WINDOW_S
    assert blobs.take_next_chunk(sent)
    blobs.record_want(Want(A, (), 0.0), now=sent + 0.05)
    assert blobs.take_next_chunk(sent + CHUNK_REPEAT_S / 2) is None
    assert blobs.take_next_chunk(sent + 0.01 + CHUNK_REPEAT_S)
    blobs.record_want(Want(A, (), 0.0), now=sent + 0.02 + CHUNK_REPEAT_S)
    assert blobs.take_next_chunk(sent + 0.01 + 2.9 * CHUNK_REPEAT_S) is None
    assert blobs.take_next_chunk(sent + 0.02 + 3 * CHUNK_REPEAT_S)


def test_a_blob_that_is_gone_or_a_range_outside_it():
    blobs = BlobServer(0)
    blobs.offer(A, b"x")
    blobs.offer(B, b"y")
    blobs.record_want(Want(A, (), 0.0), now=0.0)
    assert blobs.keep_only({B}) == [A]
    assert not blobs.is_busy
    assert not blobs.record_want(Want(A, (), 0.0), now=0.0)
    with pytest.raises(WireError, match="the blob has 1 chunks"):
        blobs.record_want(Want(B, ((0, 2),), 0.0), now=0.0)


def begin(client_id, blob=b"x" * 100, **changes):
    made = {
        "session": "s",
        "round": 1,
        "plan": "p",
        "sha256": A,
        "size": len(blob),
        "count": count_chunks(len(blob)),
        "nonce": "n",
    }
    told = {"num_samples": 4, "metrics": {}, "ts": 0.0}
    return Begin(client_id=client_id, chunk_bytes=CHUNK_BYTES, **{**made, **told, **changes})


def said(receipts):
    return [(client_id, receipt.outcome) for client_id, receipt in receipts]


def test_slots_are_granted_in_turn():
    uploads = Uploads(slots=1)
    assert said(uploads.begin(begin("a"), 1000, 0.0)) == [("a", "missing")]
    assert said(uploads.begin(begin("b"), 1000, 0.0)) == [("b", "wait")]
    assert said(uploads.begin(begin("c"), 1000, 0.0)) == [("c", "wait")]
    assert said(uploads.begin(begin("a"), 1000, 0.0)) == [("a", "missing")]
    assert said(uploads.close("a", 0.0)) == [("b", "missing")]
    assert uploads.expire(MAX_UPLOAD_IDLE_S) == []
    assert said(uploads.expire(MAX_UPLOAD_IDLE_S + 0.1)) == [("c", "missing")]
    assert uploads.end("b", A, 0.0) == []


def test_an_update_above_the_limit_takes_neither_slot_nor_memory():
    uploads = Uploads(slots=1)
    with pytest.raises(WireError, match="expected at most 1000"):
        uploads.begin(begin("a", size=10**12, count=10**12 // CHUNK_BYTES + 1), 1000, 0.0)
    assert said(uploads.begin(begin("b"), 1000, 0.0)) == [("b", "missing")]


@given(st.data())
def test_any_order_of_clients_and_chunks_ends_with_every_update_and_never_more_slots_than_there_are(data):
    slots = data.draw(st.integers(1, 3))
    sizes = data.draw(st.lists(st.integers(0, 3 * CHUNK_BYTES), min_size=1, max_size=4))
    waiting = {f"c{i}": bytes([i]) * size for i, size in enumerate(sizes)}
    uploads = Uploads(slots)
    granted = {}
    done = set()
    import hashlib

    def take(receipts):
        for client_id, receipt in receipts:
            if receipt.outcome == "missing":
                granted[client_id] = receipt.missing

    begins = {c: begin(c, blob, sha256=hashlib.sha256(blob).hexdigest()) for c, blob in waiting.items()}
    for client_id in data.draw(st.permutations(sorted(waiting))):
        take(uploads.begin(begins[client_id], 10**6, 0.0))
    while len(done) < len(waiting):
        open_now = sorted(set(granted) - done)
        assert 1 <= len(open_now) <= slots
        client_id = data.draw(st.sampled_from(open_now))
        blob = waiting[client_id]
        made = begins[client_id]
        order = data.draw(st.permutations(range(made.count)))
        finished = [uploads.add_chunk(client_id, made.sha256, i, slice_chunk(blob, i), 0.0) for i in order][
            -1
        ]
        assert finished == made
        assert uploads.read_blob(client_id) == blob
        done.add(client_id)
        take(uploads.close(client_id, 0.0))


def test_a_summary_by_hand_and_a_result_that_is_strict_json(tmp_path):
    closed = rounds.open_round(1, ("a", "b", "c", "d"), quorum=0.5, deadline_s=9.0, grace_s=0.0, now=0.0)
    for client_id in ("a", "b"):
        closed, _ = rounds.receive_update(closed, 1, client_id, "x")
    closed = rounds.mark_offline(rounds.mark_failed(closed, "c", "NaN"), "d", 1.0)
    begins = [
        begin("a", metrics={"loss": 1.0, "accuracy": 0.5, "auc": 0.25}, num_samples=1),
        begin("b", metrics={"loss": 3.0, "accuracy": 1.0, "auc": 0.75}, num_samples=3),
    ]
    assert average_loss(begins) == 2.5
    assert math.isnan(average_loss([begin("a")]))
    dropped = [DroppedClient(1, "c", "NaN"), DroppedClient(1, "d", "offline")]
    summary = summarize_round(closed, "federate", begins, dropped, 10, 20, 1.5)
    assert (summary.updates, summary.accuracy_mean, summary.dropped) == (2, 0.75, ("c", "d"))
    assert (summary.accuracy_p10, summary.accuracy_p90) == (pytest.approx(0.55), pytest.approx(0.95))
    spreads = {
        "accuracy_mean": 0.75,
        "accuracy_p10": 0.55,
        "accuracy_p90": 0.95,
        "auc_mean": 0.5,
        "auc_p10": 0.3,
        "auc_p90": 0.7,
    }
    assert summary.metrics == pytest.approx(spreads)
    assert decode_json(Summary, encode_json(summary)).metrics == summary.metrics
    older = {name: value for name, value in json.loads(encode_json(summary)).items() if name != "metrics"}
    assert decode_json(Summary, json.dumps(older).encode()).accuracy_mean == 0.75
    rows = make_client_rows([begin("a", metrics={"accuracy_mixture": math.nan, "n_train": 4.0})])
    result = make_result(
        FederationConfig(), "p", "s", rows, dropped, [2.5, math.nan], 1.234, judge_federation(rows)
    )
    path = save_result(result, tmp_path / "out")
    back = json.loads(path.read_text(), parse_constant=lambda _: pytest.fail("NaN is no JSON"))
    assert back["clients"] == [{"id": "a", "accuracy_mixture": None, "n_train": 4.0}]
    assert (back["losses"], back["seconds"]) == ([2.5, None], 1.23)
    assert (back["verdict"]["devices"], back["verdict"]["means"]["shipped"]) == (1, None)


def test_a_plan_of_another_algorithm_or_without_weights_is_refused(toys, tmp_path):
    plan = toys.plan()
    save_plan(plan, tmp_path)
    config = FederationConfig(algorithm="pfl-mfe")
    with pytest.raises(PlanError, match="no initial weights"):
        open_built_plan(tmp_path, config)
    toys.save_initial(tmp_path)
    made, initial = open_built_plan(tmp_path, config)
    assert made.id == plan.id
    np.testing.assert_array_equal(initial["trunk/kernel"], np.eye(4))
    with pytest.raises(PlanError, match="for pfl-mfe, the configuration says fedavg"):
        open_built_plan(tmp_path, FederationConfig())
    with pytest.raises(PlanError, match="no plan in"):
        open_built_plan(tmp_path / "none", config)


def test_a_plan_that_cannot_be_built_says_why(tmp_path):
    config = tmp_path / "federation.toml"
    config.write_text('[model]\nname = "no-such-model"\n')
    with pytest.raises(PlanError, match="no-such-model"):
        build_plan_in_child(config, tmp_path / "plan")


def test_a_port_in_use_and_a_broker_that_is_not_installed(monkeypatch):
    import socket

    with (
        socket.create_server((embedded.LOOPBACK_HOST, 0)) as taken,
        pytest.raises(LinkError, match="cannot be used"),
    ):
        embedded.check_port(taken.getsockname()[1])
    monkeypatch.setattr(embedded, "find_mosquitto", lambda: None)
    with pytest.raises(ConfigError, match="apt install mosquitto"):
        embedded.choose_kind("mosquitto")
    assert embedded.choose_kind("auto") == "amqtt"


def test_a_broker_that_does_not_answer_is_given_up(monkeypatch):
    began = time.monotonic()
    with pytest.raises(LinkError, match="did not answer on port"):
        embedded.wait_until_up(choose_port(), lambda: True, 0.2)
    assert time.monotonic() - began < 5

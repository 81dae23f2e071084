"""Parts of the aggregator without a network: requested blobs, upload slots, results, plan sources and the
dev broker.
"""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.base.config import FederationConfig
from edgefl.base.errors import ConfigError, LinkError, PlanError, StateError, WireError
from edgefl.base.storage.aggregator_directory import AggregatorFiles
from edgefl.base.verdict import judge_federation
from edgefl.program.plan.spec import save_plan
from edgefl.protocol.server import rounds
from edgefl.protocol.server.blobs import (
    CHUNK_REPEAT_S,
    MANIFEST_REPEAT_S,
    MAX_WANT_WAIT_S,
    WANT_WINDOW_S,
    BlobServer,
)
from edgefl.protocol.server.events import DroppedClient
from edgefl.protocol.server.uploads import MAX_UPLOAD_IDLE_S, Uploads
from edgefl.protocol.wire.chunks import CHUNK_BYTES, count_chunks, slice_chunk
from edgefl.protocol.wire.messages import Begin, Summary, Want
from edgefl.protocol.wire.strict_json import decode_json, encode_json
from mqtt_broker.aggregator.plan_source import build_plan_in_child, open_built_plan
from mqtt_broker.aggregator.results import (
    describe_round,
    load_result,
    make_client_rows,
    make_result,
    save_result,
    summarize_round,
)
from mqtt_broker.aggregator.run_log import append_round
from mqtt_broker.broker import dev_broker as embedded
from tests.support.ports import choose_port

A = "a" * 64
B = "b" * 64


def test_chunks_requested_by_several_clients_are_sent_once():
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


def test_blob_is_sent_at_once_when_all_expected_clients_asked():
    blobs = BlobServer(0)
    blobs.offer(A, b"x")
    blobs.expect(A, "pi-1")
    blobs.expect(A, "pi-2")
    blobs.record_want(Want(A, (), 0.0), 10.0, "pi-1")
    assert blobs.take_next_chunk(10.0) is None
    blobs.record_want(Want(A, (), 0.0), 10.001, "pi-2")
    assert blobs.take_next_chunk(10.001) == (A, 0, b"x")


def test_silent_client_delays_a_blob_only_briefly():
    blobs = BlobServer(0)
    blobs.offer(A, b"x")
    blobs.expect(A, "pi-1")
    blobs.expect(A, "silent")
    blobs.record_want(Want(A, (), 0.0), 10.0, "pi-1")
    assert blobs.take_next_chunk(10.0 + WANT_WINDOW_S / 2) is None
    assert blobs.take_next_chunk(10.001 + WANT_WINDOW_S) == (A, 0, b"x")


def test_blob_waits_for_further_requests_up_to_a_limit():
    blobs = BlobServer(0)
    blobs.offer(A, b"x")
    step = WANT_WINDOW_S / 2
    num_requests = round(2 * MAX_WANT_WAIT_S / WANT_WINDOW_S)
    for i in range(num_requests + 1):
        blobs.expect(A, f"pi-{i}")
    sent = []
    for i in range(num_requests):
        blobs.record_want(Want(A, (), 0.0), 10.0 + i * step, f"pi-{i}")
        if blobs.take_next_chunk(10.0 + i * step):
            sent.append(i * step)
    assert sent == [] or sent[0] >= MAX_WANT_WAIT_S - step
    assert blobs.take_next_chunk(10.0 + num_requests * step + 0.001)


def test_manifest_is_published_again_at_most_once_per_interval():
    blobs = BlobServer(0)
    blobs.offer(A, b"x")
    assert [blobs.is_manifest_due(A, 10.0 + i / 1000) for i in range(3)] == [False] * 3
    later = 10.001 + MANIFEST_REPEAT_S
    assert [blobs.is_manifest_due(A, later), blobs.is_manifest_due(A, later + 0.1)] == [True, False]


def test_late_request_gets_a_chunk_again_after_an_interval():
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


def test_removed_blob_and_invalid_range_are_not_served():
    blobs = BlobServer(0)
    blobs.offer(A, b"x")
    blobs.offer(B, b"y")
    blobs.record_want(Want(A, (), 0.0), now=0.0)
    assert blobs.keep_only({B}) == [A]
    assert not blobs.is_busy
    assert not blobs.record_want(Want(A, (), 0.0), now=0.0)
    with pytest.raises(WireError, match="the blob has 1 chunks"):
        blobs.record_want(Want(B, ((0, 2),), 0.0), now=0.0)


def make_begin(client_id, blob=b"x" * 100, **changes):
    made = {
        "session": "s",
        "round": 1,
        "plan": "p",
        "sha256": A,
        "size": len(blob),
        "count": count_chunks(len(blob)),
        "nonce": "n",
    }
    more_fields = {"num_samples": 4, "metrics": {}, "ts": 0.0}
    return Begin(client_id=client_id, chunk_bytes=CHUNK_BYTES, **{**made, **more_fields, **changes})


def list_outcomes(receipts):
    return [(client_id, receipt.outcome) for client_id, receipt in receipts]


def test_upload_slots_are_granted_in_turn():
    uploads = Uploads(slots=1)
    assert list_outcomes(uploads.begin(make_begin("a"), 1000, 0.0)) == [("a", "missing")]
    assert list_outcomes(uploads.begin(make_begin("b"), 1000, 0.0)) == [("b", "wait")]
    assert list_outcomes(uploads.begin(make_begin("c"), 1000, 0.0)) == [("c", "wait")]
    assert list_outcomes(uploads.begin(make_begin("a"), 1000, 0.0)) == [("a", "missing")]
    assert list_outcomes(uploads.close("a", 0.0)) == [("b", "missing")]
    assert uploads.expire(MAX_UPLOAD_IDLE_S) == []
    assert list_outcomes(uploads.expire(MAX_UPLOAD_IDLE_S + 0.1)) == [("c", "missing")]
    assert uploads.end("b", A) == []


def test_messages_without_a_new_chunk_keep_no_slot():
    blob = b"x" * (2 * CHUNK_BYTES)
    uploads = Uploads(slots=1)
    uploads.begin(make_begin("a", blob), 10**6, 0.0)
    uploads.begin(make_begin("b"), 10**6, 0.0)
    uploads.add_chunk("a", A, 0, slice_chunk(blob, 0), 5.0)
    for second in range(6, 15):
        uploads.add_chunk("a", A, 0, slice_chunk(blob, 0), float(second))
        uploads.begin(make_begin("a", blob), 10**6, float(second))
        uploads.end("a", A)
        assert uploads.expire(float(second)) == []
    assert list_outcomes(uploads.expire(5.1 + MAX_UPLOAD_IDLE_S)) == [("b", "missing")]


def test_oversized_update_uses_no_slot_and_no_memory():
    uploads = Uploads(slots=1)
    with pytest.raises(WireError, match="expected at most 1000"):
        uploads.begin(make_begin("a", size=10**12, count=10**12 // CHUNK_BYTES + 1), 1000, 0.0)
    assert list_outcomes(uploads.begin(make_begin("b"), 1000, 0.0)) == [("b", "missing")]


@given(st.data())
def test_any_upload_order_completes_all_updates_within_the_slots(data):
    slots = data.draw(st.integers(1, 3))
    sizes = data.draw(st.lists(st.integers(0, 3 * CHUNK_BYTES), min_size=1, max_size=4))
    waiting = {f"c{i}": bytes([i]) * size for i, size in enumerate(sizes)}
    uploads = Uploads(slots)
    granted = {}
    done = set()
    import hashlib

    def record_grants(receipts):
        for client_id, receipt in receipts:
            if receipt.outcome == "missing":
                granted[client_id] = receipt.missing

    begins = {c: make_begin(c, blob, sha256=hashlib.sha256(blob).hexdigest()) for c, blob in waiting.items()}
    for client_id in data.draw(st.permutations(sorted(waiting))):
        record_grants(uploads.begin(begins[client_id], 10**6, 0.0))
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
        record_grants(uploads.close(client_id, 0.0))


def test_round_summary_is_correct_and_result_is_strict_json(tmp_path):
    closed = rounds.open_round(1, ("a", "b", "c", "d"), quorum=0.5, deadline_s=9.0, grace_s=0.0, now=0.0)
    for client_id in ("a", "b"):
        closed, _ = rounds.receive_update(closed, 1, client_id, "x")
    closed = rounds.mark_offline(rounds.mark_failed(closed, "c", "NaN"), "d", 1.0)
    begins = [
        make_begin("a", metrics={"loss": 1.0, "accuracy": 0.5, "auc": 0.25}, num_samples=1),
        make_begin("b", metrics={"loss": 3.0, "accuracy": 1.0, "auc": 0.75}, num_samples=3),
    ]
    dropped = [DroppedClient(1, "c", "NaN"), DroppedClient(1, "d", "offline")]
    summary = summarize_round(closed, "federate", begins, dropped, 10, 20, 1.5)
    assert (summary.updates, summary.accuracy_mean, summary.dropped) == (2, 0.75, ("c", "d"))
    assert summary.loss == 2.0
    assert (summary.accuracy_p10, summary.accuracy_p90) == (pytest.approx(0.55), pytest.approx(0.95))
    spreads = {
        "accuracy_mean": 0.75,
        "accuracy_median": 0.75,
        "accuracy_p10": 0.55,
        "accuracy_p90": 0.95,
        "auc_mean": 0.5,
        "auc_median": 0.5,
        "auc_p10": 0.3,
        "auc_p90": 0.7,
    }
    assert summary.metrics == pytest.approx(spreads)
    assert decode_json(Summary, encode_json(summary)).metrics == summary.metrics
    many = [DroppedClient(1, f"{number:064d}", "offline") for number in range(5000)]
    crowded = summarize_round(closed, "federate", begins, many, 10, 20, 1.5)
    assert decode_json(Summary, encode_json(crowded)).dropped == tuple(c.client_id for c in many[:256])
    older = {name: value for name, value in json.loads(encode_json(summary)).items() if name != "metrics"}
    assert decode_json(Summary, json.dumps(older).encode()).accuracy_mean == 0.75
    assert "accuracy 75.0% (p10 55.0%, p90 95.0%)" in describe_round(summary, closed, "federate", 3)
    begins = [make_begin("a", metrics={"r2": 0.5}), make_begin("b", metrics={"r2": 1.0})]
    regression = summarize_round(closed, "federate", begins, [], 10, 20, 1.5)
    assert "R2 75.0% (p10 55.0%, p90 95.0%)" in describe_round(regression, closed, "federate", 3)
    begins = [make_begin("a", metrics={"auc_shipped": 0.75, "r2_shipped": 0.5})]
    anomaly = summarize_round(closed, "personalize", begins, [], 10, 20, 1.5)
    assert "AUC 75.0% (p10" in describe_round(anomaly, closed, "personalize", 3)
    rows = make_client_rows([make_begin("a", metrics={"accuracy_mixture": math.nan, "n_train": 4.0})])
    result = make_result(
        FederationConfig(),
        "p",
        "s",
        rows,
        dropped,
        {"b": 2},
        [2.5, math.nan],
        1.234,
        judge_federation(rows),
        {"normalization": {"mean": [0.5], "std": [2.0]}, "learning_rate": 0.03},
    )
    path = save_result(result, tmp_path / "out")
    parsed = json.loads(path.read_text(), parse_constant=lambda _: pytest.fail("NaN is no JSON"))
    assert parsed["clients"] == [{"id": "a", "accuracy_mixture": None, "n_train": 4.0}]
    assert (parsed["losses"], parsed["seconds"]) == ([2.5, None], 1.23)
    assert parsed["normalization"] == {"mean": [0.5], "std": [2.0]} and parsed["learning_rate"] == 0.03
    assert parsed["left_out"] == [{"round": 2, "id": "b"}]
    assert (parsed["verdict"]["devices"], parsed["verdict"]["means"]["shipped"]) == (1, None)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"{}", b'{"clients": 5}', b'{"clients": [5]}', b'{"clients": [{}]}', b"[" * 10_000],
)
def test_damaged_result_is_an_error_with_a_remedy(content, tmp_path):
    path = AggregatorFiles(tmp_path).result
    path.write_bytes(content)
    with pytest.raises(StateError, match=rf"cannot read {path}: .*; restore it from a backup, .* --fresh"):
        load_result(tmp_path)


def test_figure_with_the_name_of_an_own_field_replaces_nothing_in_the_results(tmp_path):
    begins = [make_begin("a", metrics={"id": 5.0, "num_samples": 1e6, "loss": 1.0}), make_begin("b")]
    assert [row["id"] for row in make_client_rows(begins)] == ["a", "b"]
    closed = rounds.open_round(1, ["a", "b"], quorum=1.0, deadline_s=10, grace_s=1, now=0)
    append_round(summarize_round(closed, "federate", begins, [], 10, 20, 1.5), begins, tmp_path)
    updates = json.loads(AggregatorFiles(tmp_path).rounds.read_text())["updates"]
    assert {client_id: row["num_samples"] for client_id, row in updates.items()} == {"a": 4.0, "b": 4.0}


def test_plan_of_another_algorithm_or_without_weights_is_refused(toys, tmp_path):
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


def test_failed_plan_build_reports_the_reason(tmp_path):
    config = tmp_path / "federation.toml"
    config.write_text('[model]\nname = "no-such-model"\n')
    with pytest.raises(PlanError, match="no-such-model"):
        build_plan_in_child(config, tmp_path / "plan")


def test_used_port_and_missing_mosquitto_are_errors(monkeypatch):
    import socket

    with (
        socket.create_server((embedded.LOOPBACK_HOST, 0)) as occupied,
        pytest.raises(LinkError, match="cannot be used"),
    ):
        embedded.check_port(occupied.getsockname()[1])
    monkeypatch.setattr(embedded, "find_mosquitto", lambda: None)
    with pytest.raises(ConfigError, match="apt install mosquitto"):
        embedded.choose_kind("mosquitto")
    assert embedded.choose_kind("auto") == "amqtt"


def test_broker_that_does_not_answer_times_out(monkeypatch):
    with pytest.raises(LinkError, match="did not answer on port"):
        embedded.wait_until_up(choose_port(), lambda: True, 0.2)

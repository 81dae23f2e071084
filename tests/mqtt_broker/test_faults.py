"""Faults over a real broker: each gives a clear error or a receipt with the reason, and the federation
continues.
"""

import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import save

from edgefl.protocol.wire.chunks import CHUNK_BYTES
from edgefl.protocol.wire.messages import State
from edgefl.protocol.wire.strict_json import decode_json
from edgefl.protocol.wire.tensors import encode_models


def make_update(toys, **changes):
    return encode_models(
        {"global": {**{name: np.zeros_like(a) for name, a in toys.weights().items()}, **changes}}
    )


def test_bad_update_is_rejected_with_reason_and_round_continues(federate, any_url, toys, puppet):
    federation = federate(any_url, rounds=1, quorum=1.0)
    aggregator = federation.aggregator()
    # the second client sends no update at first, so that the round stays open
    bad = puppet(federation, "bad")
    good = puppet(federation, "good")
    task = bad.next("task")
    good_task = good.next("task")
    fine = make_update(toys)

    def check_rejected(blob, reason, **changes):
        receipt = bad.send(task, blob, **changes)
        assert receipt.outcome == "rejected"
        assert reason in receipt.reason, receipt.reason
        assert bad.client_id in aggregator.err

    check_rejected(
        make_update(toys, **{"head/bias": np.zeros(4, np.float32)}),
        "global/head/bias of bad is (4,), expected (3,); it runs another plan",
    )
    check_rejected(
        make_update(toys, **{"head/bias": np.float32([0, np.nan, 0])}),
        "global/head/bias of bad holds 1 NaN or infinite values",
    )
    check_rejected(bytes(save({"global/head/bias": np.zeros(3)})), "expected")
    check_rejected(encode_models({"local": toys.weights()}), "unknown model 'local', expected global")
    check_rejected(encode_models({}), "it holds no model, expected global")
    check_rejected(b"not tensors", "not safetensors")
    check_rejected(fine, "runs the plan 00000000", plan="0" * 64)
    check_rejected(fine, "num_samples is 0", num_samples=0)
    check_rejected(fine, "expected at most", size=10**9, count=15259)
    check_rejected(fine, f"expected 1 of {CHUNK_BYTES}", count=7)
    check_rejected(fine, "a replayed update", nonce="abc")
    check_rejected(fine, "of session 'other'", session="other")
    check_rejected(fine, "an update of round 9, round 1 is open", round=9)
    check_rejected(fine, "a device speaks for itself only", client_id="good")

    assert bad.send(task, fine).outcome == "ok"
    assert bad.send(task, fine).outcome == "ok"
    check_rejected(
        make_update(toys, **{"head/bias": np.ones(3, np.float32)}), "duplicate: round 1 had update"
    )
    assert good.send(good_task, fine).outcome == "ok"
    late = good.next("task")
    assert (late.round, late.phase) == (2, "personalize")
    check_rejected(fine, "stale: an update of round 1, round 2 is open")

    # the last answer contains only metrics: a device that sends its personal weights is rejected
    task = bad.next("task")
    nothing = encode_models({})
    check_rejected(encode_models({"local": toys.weights()}), "expected at most")
    check_rejected(bytes(save({"a": np.zeros(1, np.float32)})), "expected at most 64")
    assert bad.send(task, nothing).outcome == "ok"
    assert good.send(late, nothing).outcome == "ok"
    assert aggregator.end() == 0, aggregator.err


def test_messages_outside_the_protocol_change_nothing(federate, any_url, toys, puppet):
    federation = federate(any_url, rounds=1, min_clients=1)
    aggregator = federation.aggregator()
    client = puppet(federation, "pi-1")
    task = client.next("task")
    rogue = puppet(federation, "rogue")  # not earlier, because the round opens with the first client
    sha256 = "ab" * 32
    for payload in (b"", b"{", b"[]", json.dumps({"round": 1}).encode(), b"\xff" * 1000, b'{"a":' * 5000):
        for leaf in ("begin", "end", 0, 999_999_999):
            rogue.publish(sha256, leaf, payload)
        for leaf in ("want", "metrics", "nonsense"):
            rogue.link.publish(rogue.topics.format_device("rogue", leaf), payload)
    rogue.link.publish(f"{rogue.topics.root}/device/ROGUE/status", b"{}")
    rogue.link.publish(f"{rogue.topics.root}/state/deeper", b"{}")
    assert rogue.next("receipt").outcome == "rejected"
    rogue.drop_connection()
    # 400 KB at once: mosquitto ends the connection, amqtt forwards it and the aggregator rejects it
    shouter = puppet(federation, "shouter")
    shouter.publish_unchecked(federation.topics.format_upload("shouter", sha256, 0), bytes(400_000))
    assert client.send(task, make_update(toys)).outcome == "ok"
    client.send(client.next("task"), encode_models({}))
    shouter.drop_connection()
    assert aggregator.end() == 0, aggregator.err


def test_lost_chunk_is_requested_and_sent_again(federate, mosquitto_url, toys, puppet):
    """An update of three chunks loses the second. The receipt names exactly that range."""
    federation = federate(mosquitto_url, rounds=1, min_clients=1, wide=2)
    aggregator = federation.aggregator()
    client = puppet(federation, "pi-1")
    task = client.next("task")
    blob = encode_models(
        {"global": {spec.name: np.zeros(spec.shape, np.float32) for spec in federation.plan.spec.weights}}
    )
    assert 2 * CHUNK_BYTES < len(blob) < 3 * CHUNK_BYTES
    receipt = client.send(task, blob, lose={1})
    assert (receipt.outcome, receipt.missing) == ("missing", ((1, 2),))
    receipt = client.send(task, blob, lose={0, 2})
    assert receipt.outcome == "ok"
    assert client.send(client.next("task"), encode_models({})).outcome == "ok"
    assert aggregator.end() == 0


def test_upload_slots_are_granted_in_turn_and_freed_by_leaving_client(federate, mosquitto_url, toys, puppet):
    federation = federate(mosquitto_url, rounds=1, min_clients=3, upload_slots=1, quorum=0.5)
    aggregator = federation.aggregator()
    clients = [puppet(federation, f"pi-{i}") for i in range(3)]
    tasks = [client.next("task") for client in clients]
    blob = make_update(toys)
    clients[0].begin(tasks[0], blob)
    assert clients[0].next("receipt").outcome == "missing"
    clients[1].begin(tasks[1], blob)
    assert clients[1].next("receipt").outcome == "wait"
    clients[0].drop_connection()
    assert clients[1].next("receipt").outcome == "missing"
    assert clients[1].send(tasks[1], blob).outcome == "ok"
    assert clients[2].send(tasks[2], blob).outcome == "ok"
    for client in clients[1:]:
        client.send(client.next("task"), encode_models({}))
    assert aggregator.end() == 0
    assert federation.result()["dropped"] == [{"round": 1, "id": "pi-0", "reason": "offline"}]


def test_without_quorum_tasks_are_repeated_then_silent_clients_are_named(
    federate, mosquitto_url, puppet, listen
):
    federation = federate(mosquitto_url, rounds=1, quorum=1.0, deadline_s=0.4)
    listener = listen(federation, federation.topics.state)
    aggregator = federation.aggregator()
    silent = puppet(federation, "pi-1")
    other = puppet(federation, "pi-2")
    first = silent.next("task")
    assert [silent.next("task").nonce for _ in range(3)] == [first.nonce] * 3
    assert other.next("task").nonce != first.nonce  # each client has its own nonce
    assert aggregator.end() == 1
    assert (
        "0 of 2 updates, expected 2, after 4 deadlines of 0.4 s; missing: pi-1 (silent); pi-2 (silent)"
        in aggregator.err
    )
    assert decode_json(State, listener.wait_for_phase("stopped")[-1].payload).session == first.session


def test_second_device_with_the_same_id_is_refused(federate, any_url, toys):
    federation = federate(any_url, rounds=2, min_clients=2)
    aggregator = federation.aggregator()
    first = federation.device("pi-1", toys.shard(1))
    aggregator.wait_for("pi-1 is online")
    second = federation.device("pi-1", None, "--state", federation.directory / "elsewhere")
    assert second.end() == 1
    assert "another device has the id 'pi-1'" in second.err
    other = federation.device("pi-2", toys.shard(2))
    assert aggregator.end() == 0
    assert (first.end(), other.end()) == (0, 0)
    assert federation.result()["dropped"] == []


def test_only_one_of_two_simultaneous_devices_with_same_id_stays(federate, mosquitto_url, toys):
    federation = federate(mosquitto_url, rounds=1, min_clients=2)
    aggregator = federation.aggregator()
    aggregator.wait_for("waiting for devices")
    shard = toys.shard(1)
    twins = [
        federation.device("pi-1", shard, "--state", federation.directory / f"twin-{i}") for i in range(2)
    ]
    aggregator.wait_for("pi-1 is online")
    other = federation.device("pi-2", toys.shard(2))
    assert aggregator.end() == 0
    assert sorted(twin.end() for twin in twins) == [0, 1]
    assert other.end() == 0
    assert sum("another device has the id 'pi-1'" in twin.err for twin in twins) == 1


@pytest.mark.parametrize("service", ["device", "aggregator"])
def test_missing_broker_error_names_the_url(federate, start, toys, service):
    federation = federate("mqtt://127.0.0.1:9")
    process = federation.device("pi-1", toys.shard(1)) if service == "device" else federation.aggregator()
    assert process.end() == 1
    assert "no broker at mqtt://127.0.0.1:9" in process.err
    assert "edgefl broker start" in process.err


def test_device_with_one_class_takes_part(federate, mosquitto_url, toys):
    federation = federate(mosquitto_url, rounds=2, min_clients=2)
    aggregator = federation.aggregator()
    several = federation.device("pi-1", toys.shard(1))
    shard = toys.shard(2)
    ones = np.ones_like
    one_class = federation.device(
        "pi-2", replace(shard, y_train=ones(shard.y_train), y_test=ones(shard.y_test))
    )
    assert aggregator.end() == 0, aggregator.err
    assert (several.end(), one_class.end()) == (0, 0), one_class.err
    assert "round 2/2 federate: 2 updates" in aggregator.err
    rows = {row["id"]: row for row in federation.result()["clients"]}
    assert rows["pi-2"]["accuracy_mixture"] == 1
    assert rows["pi-2"]["accuracy_shipped"] == 1


def test_diverging_device_does_not_stop_the_federation(federate, mosquitto_url, toys):
    federation = federate(mosquitto_url, rounds=1, min_clients=3, quorum=0.5, deadline_s=5.0)
    aggregator = federation.aggregator()
    others = [federation.device(f"pi-{i}", toys.shard(i)) for i in (1, 2)]
    shard = toys.shard(3)
    diverging = federation.device("pi-3", replace(shard, x_train=shard.x_train * np.float32(1e30)))
    assert aggregator.end() == 0, aggregator.err
    assert [device.end() for device in others] == [0, 0]
    assert diverging.end() == 1
    assert (
        "this device has no model, because its last task failed: pi-3, round 1: train: the loss is nan"
        in diverging.err
    )
    assert "Traceback" not in diverging.err
    assert {dropped["id"] for dropped in federation.result()["dropped"]} == {"pi-3"}


def test_unusable_shard_ends_only_its_own_device(federate, mosquitto_url, toys):
    federation = federate(mosquitto_url, rounds=1, min_clients=2)
    aggregator = federation.aggregator()
    good = toys.shard(1)
    empty = federation.device("pi-3", replace(good, x_train=good.x_train[:0], y_train=good.y_train[:0]))
    assert empty.end() == 1
    assert "is empty, expected at least one sample" in empty.err
    wide = replace(good, x_train=np.ones((30, 9), np.float32), x_test=np.ones((10, 9), np.float32))
    fine = federation.device("pi-1", good)
    # The round needs two clients: one whose shard does not fit the plan does not count
    aggregator.wait_for("pi-1 is online")
    other_task = federation.device("pi-5", wide)
    assert other_task.end() == 1
    assert "a sample of this device has the shape (9,), the plan expects (4,)" in other_task.err
    second = federation.device("pi-2", toys.shard(2))
    assert aggregator.end() == 0
    assert (fine.end(), second.end()) == (0, 0)
    assert "round 1/1 federate: 2 updates" in aggregator.err
    assert [row["id"] for row in federation.result()["clients"]] == ["pi-1", "pi-2"]

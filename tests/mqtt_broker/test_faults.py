"""What goes wrong over a real broker: each fault is a clear error or a receipt that says why, and the
federation goes on.
"""

import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import save

from edgefl.wire.chunks import CHUNK_BYTES
from edgefl.wire.messages import State
from edgefl.wire.strict_json import decode_json
from edgefl.wire.tensors import encode_models


def update(toys, **changes):
    return encode_models(
        {"global": {**{name: np.zeros_like(a) for name, a in toys.weights().items()}, **changes}}
    )


def test_each_bad_update_gets_a_receipt_that_says_why_and_the_round_goes_on(federate, any_url, toys, puppet):
    federation = federate(any_url, rounds=1, quorum=1.0)
    aggregator = federation.aggregator()
    # one more client that stays silent keeps the round open while the other one errs
    bad = puppet(federation, "bad")
    good = puppet(federation, "good")
    task = bad.next("task")
    good_task = good.next("task")
    fine = update(toys)

    def refused(blob, says, **changes):
        receipt = bad.send(task, blob, **changes)
        assert receipt.outcome == "rejected"
        assert says in receipt.reason, receipt.reason
        assert bad.client_id in aggregator.said

    refused(
        update(toys, **{"head/bias": np.zeros(4, np.float32)}),
        "global/head/bias of bad is (4,), expected (3,); it runs another plan",
    )
    refused(
        update(toys, **{"head/bias": np.float32([0, np.nan, 0])}),
        "global/head/bias of bad holds 1 NaN or infinite values",
    )
    refused(bytes(save({"global/head/bias": np.zeros(3)})), "expected")
    refused(encode_models({"local": toys.weights()}), "unknown model 'local', expected global")
    refused(encode_models({}), "without tensors")
    refused(b"not tensors", "not safetensors")
    refused(fine, "runs the plan 00000000", plan="0" * 64)
    refused(fine, "num_samples is 0", num_samples=0)
    refused(fine, "expected at most", size=10**9, count=15259)
    refused(fine, f"expected 1 of {CHUNK_BYTES}", count=7)
    refused(fine, "a replayed update", nonce="abc")
    refused(fine, "of session 'other'", session="other")
    refused(fine, "an update of round 9, round 1 is open", round=9)
    refused(fine, "a device speaks for itself only", client_id="good")

    assert bad.send(task, fine).outcome == "ok"
    assert bad.send(task, fine).outcome == "ok"
    refused(update(toys, **{"head/bias": np.ones(3, np.float32)}), "duplicate: round 1 had update")
    assert good.send(good_task, fine).outcome == "ok"
    late = good.next("task")
    assert (late.round, late.phase) == (2, "personalize")
    refused(fine, "stale: an update of round 1, round 2 is open")

    # the last answer is metrics: a device that would send its personal weights is stopped here
    task = bad.next("task")
    nothing = encode_models({})
    refused(encode_models({"local": toys.weights()}), "expected at most")
    refused(bytes(save({"a": np.zeros(1, np.float32)})), "expected at most 64")
    assert bad.send(task, nothing).outcome == "ok"
    assert good.send(late, nothing).outcome == "ok"
    assert aggregator.end() == 0, aggregator.said


def test_messages_that_are_none_of_the_protocol_change_nothing(federate, any_url, toys, puppet):
    federation = federate(any_url, rounds=1, min_clients=1)
    aggregator = federation.aggregator()
    client = puppet(federation, "pi-1")
    task = client.next("task")
    rogue = puppet(federation, "rogue")  # not before: the round opens with whoever is heard of first
    sha256 = "ab" * 32
    for payload in (b"", b"{", b"[]", json.dumps({"round": 1}).encode(), b"\xff" * 1000, b'{"a":' * 5000):
        for leaf in ("begin", "end", 0, 999_999_999):
            rogue.publish(sha256, leaf, payload)
        for leaf in ("want", "metrics", "nonsense"):
            rogue.link.publish(rogue.topics.format_device("rogue", leaf), payload)
    rogue.link.publish(f"{rogue.topics.root}/device/ROGUE/status", b"{}")
    rogue.link.publish(f"{rogue.topics.root}/state/deeper", b"{}")
    assert rogue.next("receipt").outcome == "rejected"
    rogue.close_hard()
    # 400 KB at once: mosquitto ends the connection, amqtt passes it on and the aggregator refuses it
    shouter = puppet(federation, "shouter")
    shouter.shout(federation.topics.format_upload("shouter", sha256, 0), bytes(400_000))
    assert client.send(task, update(toys)).outcome == "ok"
    client.send(client.next("task"), encode_models({}))
    shouter.close_hard()
    assert aggregator.end() == 0, aggregator.said


def test_a_lost_chunk_is_asked_for_and_sent_again(federate, mosquitto_url, toys, puppet):
    """An update of three chunks loses the second: the receipt names exactly that range."""
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


def test_upload_slots_are_granted_in_turn_and_taken_back_from_who_leaves(
    federate, mosquitto_url, toys, puppet
):
    federation = federate(mosquitto_url, rounds=1, min_clients=3, upload_slots=1, quorum=0.5)
    aggregator = federation.aggregator()
    clients = [puppet(federation, f"pi-{i}") for i in range(3)]
    tasks = [client.next("task") for client in clients]
    blob = update(toys)
    clients[0].begin(tasks[0], blob)
    assert clients[0].next("receipt").outcome == "missing"
    clients[1].begin(tasks[1], blob)
    assert clients[1].next("receipt").outcome == "wait"
    clients[0].close_hard()
    assert clients[1].next("receipt").outcome == "missing"
    assert clients[1].send(tasks[1], blob).outcome == "ok"
    assert clients[2].send(tasks[2], blob).outcome == "ok"
    for client in clients[1:]:
        client.send(client.next("task"), encode_models({}))
    assert aggregator.end() == 0
    assert federation.result()["dropped"] == [{"round": 1, "id": "pi-0", "reason": "offline"}]


def test_without_quorum_tasks_are_sent_again_and_then_the_aggregator_says_who_is_silent(
    federate, mosquitto_url, puppet, listen
):
    federation = federate(mosquitto_url, rounds=1, quorum=1.0, deadline_s=0.4)
    heard = listen(federation, federation.topics.state)
    aggregator = federation.aggregator()
    silent = puppet(federation, "pi-1")
    other = puppet(federation, "pi-2")
    first = silent.next("task")
    assert [silent.next("task").nonce for _ in range(3)] == [first.nonce] * 3
    assert other.next("task").nonce != first.nonce  # each client has its own
    assert aggregator.end() == 1
    assert (
        "0 of 2 updates, expected 2, after 4 deadlines of 0.4 s; missing: pi-1 (silent); pi-2 (silent)"
        in aggregator.said
    )
    assert decode_json(State, heard.until_phase("stopped")[-1].payload).session == first.session


def test_a_second_device_of_an_id_is_told_so_and_the_first_goes_on(federate, any_url, toys):
    federation = federate(any_url, rounds=2, min_clients=2)
    aggregator = federation.aggregator()
    first = federation.device("pi-1", toys.shard(1))
    aggregator.wait_for("pi-1 is online")
    second = federation.device("pi-1", None, "--state", federation.directory / "elsewhere")
    assert second.end() == 1
    assert "another device has the id 'pi-1'" in second.said
    other = federation.device("pi-2", toys.shard(2))
    assert aggregator.end() == 0
    assert (first.end(), other.end()) == (0, 0)
    assert federation.result()["dropped"] == []


def test_of_two_devices_that_start_at_once_with_one_id_exactly_one_stays(federate, mosquitto_url, toys):
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
    assert sum("another device has the id 'pi-1'" in twin.said for twin in twins) == 1


@pytest.mark.parametrize("service", ["device", "aggregator"])
def test_a_missing_broker_is_one_line_with_the_url(federate, start, toys, service):
    federation = federate("mqtt://127.0.0.1:9")
    process = federation.device("pi-1", toys.shard(1)) if service == "device" else federation.aggregator()
    assert process.end() == 1
    assert "no broker at mqtt://127.0.0.1:9" in process.said
    assert "edgefl broker start" in process.said


def test_a_device_with_one_class_takes_part(federate, mosquitto_url, toys):
    federation = federate(mosquitto_url, rounds=2, min_clients=2)
    aggregator = federation.aggregator()
    several = federation.device("pi-1", toys.shard(1))
    shard = toys.shard(2)
    ones = np.ones_like
    one_class = federation.device(
        "pi-2", replace(shard, y_train=ones(shard.y_train), y_test=ones(shard.y_test))
    )
    assert aggregator.end() == 0, aggregator.said
    assert (several.end(), one_class.end()) == (0, 0), one_class.said
    assert "round 2/2 federate: 2 updates" in aggregator.said
    rows = {row["id"]: row for row in federation.result()["clients"]}
    assert rows["pi-2"]["accuracy_mixture"] == 1
    assert rows["pi-2"]["accuracy_shipped"] == 1


def test_a_device_whose_training_diverges_stops_nobody_else(federate, mosquitto_url, toys):
    federation = federate(mosquitto_url, rounds=1, min_clients=3, quorum=0.5, deadline_s=5.0)
    aggregator = federation.aggregator()
    others = [federation.device(f"pi-{i}", toys.shard(i)) for i in (1, 2)]
    shard = toys.shard(3)
    wild = federation.device("pi-3", replace(shard, x_train=shard.x_train * np.float32(1e30)))
    assert aggregator.end() == 0, aggregator.said
    assert [device.end() for device in others] == [0, 0]
    assert wild.end() == 1
    assert (
        "this device has no model, because its last task failed: pi-3, round 1: train: the loss is nan"
        in wild.said
    )
    assert "Traceback" not in wild.said
    assert {dropped["id"] for dropped in federation.result()["dropped"]} == {"pi-3"}


def test_a_shard_that_cannot_be_trained_on_ends_its_device_and_nobody_elses(federate, mosquitto_url, toys):
    federation = federate(mosquitto_url, rounds=1, min_clients=2)
    aggregator = federation.aggregator()
    good = toys.shard(1)
    empty = federation.device("pi-3", replace(good, x_train=good.x_train[:0], y_train=good.y_train[:0]))
    assert empty.end() == 1
    assert "is empty, expected at least one sample" in empty.said
    wide = replace(good, x_train=np.ones((30, 9), np.float32), x_test=np.ones((10, 9), np.float32))
    fine = federation.device("pi-1", good)
    # The round needs two to open: one that does not fit the plan is not the second
    aggregator.wait_for("pi-1 is online")
    other_task = federation.device("pi-5", wide)
    assert other_task.end() == 1
    assert "a sample of this device has the shape (9,), the plan expects (4,)" in other_task.said
    second = federation.device("pi-2", toys.shard(2))
    assert aggregator.end() == 0
    assert (fine.end(), second.end()) == (0, 0)
    assert "round 1/1 federate: 2 updates" in aggregator.said
    assert [row["id"] for row in federation.result()["clients"]] == ["pi-1", "pi-2"]

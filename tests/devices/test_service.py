"""The device service against an aggregator that the test plays."""

import hashlib
import json
import os
import signal
import time
from dataclasses import replace

from edgefl.algorithms import make_algorithm
from edgefl.rng import derive_rng
from edgefl.types import Broadcast, ClientState
from edgefl.wire.messages import Status
from edgefl.wire.strict_json import encode_json
from edgefl.wire.tensors import decode_models, encode_models, encode_weights, list_specs
from tests.support.numpy_learner.softmax import SoftmaxLearner


def test_a_round_by_hand_then_the_mixture_then_the_end(federate, mosquitto_url, toys, lead):
    federation = federate(mosquitto_url)
    aggregator = lead(federation)
    shard = toys.shard(1)
    device = federation.device("pi-1", shard)
    assert aggregator.next("status").online
    aggregator.task(1)
    begin = aggregator.next("begin")
    assert (begin.client_id, begin.round, begin.num_samples, begin.nonce, begin.plan) == (
        "pi-1",
        1,
        30,
        "n1",
        federation.plan.id,
    )
    blob = aggregator.take(begin)
    assert hashlib.sha256(blob).hexdigest() == begin.sha256
    learner = SoftmaxLearner(federation.plan.spec)
    algorithm = make_algorithm("pfl-mfe", learner, federation.plan.spec.options)
    expected, _ = algorithm.local_update(
        Broadcast(1, "federate", {"global": toys.weights()}),
        ClientState(),
        shard,
        "pi-1",
        derive_rng(1, 1, "pi-1"),
    )
    assert blob == encode_models(expected.deltas)
    assert begin.metrics["loss"] == expected.metrics["loss"]

    aggregator.task(2, "personalize")
    begin = aggregator.next("begin")
    assert decode_models(aggregator.take(begin), {}, "pi-1") == {}
    assert {
        "accuracy_federated",
        "accuracy_mixture",
        "accuracy_shipped",
        "peak_rss_mb",
        "bytes_up",
        "bytes_down",
    } <= set(begin.metrics)
    aggregator.say("done", 2)
    assert device.end() == 0, device.said
    state = federation.directory / "state-pi-1"
    note = json.loads((state / "device.json").read_text())
    settled = {
        "id": "pi-1",
        "federation": federation.name,
        "data": str((federation.directory / "pi-1.npz").resolve()),
        "seed": 1,
    }
    assert note == settled | {
        "sha256": hashlib.sha256(json.dumps(settled, sort_keys=True).encode()).hexdigest()
    }
    assert (state / "mixture.safetensors").exists()
    assert {path.name for path in (state / "plan").iterdir()} == {
        "plan.json",
        "plan.tflite",
        "template.tflite",
    }
    assert not aggregator.next("status").online


def test_a_repeated_task_is_answered_with_the_same_bytes_also_after_a_kill(
    federate, mosquitto_url, toys, lead, progress
):
    federation = federate(mosquitto_url)
    aggregator = lead(federation)
    device = federation.device("pi-1", toys.shard(1))
    aggregator.next("status")
    aggregator.task(1)
    first = aggregator.next("begin")
    os.kill(device.popen.pid, signal.SIGKILL)
    assert not aggregator.next("status").online
    kept = progress(federation)
    again = federation.device("pi-1")
    assert aggregator.next("status").online
    aggregator.task(1, nonce="n2")
    second = aggregator.next("begin")
    # the seconds of training are in the metrics: had it trained again they would differ
    assert (second.sha256, second.metrics, second.nonce) == (first.sha256, first.metrics, "n2")
    assert progress(federation) == kept
    assert decode_models(aggregator.take(second), {"global": list_specs(toys.weights())}, "pi-1").keys() == {
        "global"
    }
    aggregator.task(1, nonce="n2")
    again.popen.terminate()
    assert again.end() == 0


def test_another_session_starts_afresh(federate, mosquitto_url, toys, lead, progress):
    federation = federate(mosquitto_url)
    device = federation.device("pi-1", toys.shard(1))
    shas = []
    for _ in range(2):
        aggregator = lead(federation)
        aggregator.next("status")
        aggregator.task(1)
        begin = aggregator.next("begin")
        shas.append(begin.sha256)
        aggregator.take(begin)
        assert progress(federation)["session"] == aggregator.session
    assert shas[0] == shas[1]
    device.popen.terminate()
    assert device.end() == 0


def test_a_lost_chunk_of_a_blob_is_asked_for_alone(federate, mosquitto_url, toys, lead):
    federation = federate(mosquitto_url, wide=True)
    aggregator = lead(federation)
    federation.device("pi-1", toys.shard(1))
    aggregator.next("status")
    aggregator.model = aggregator.offer(encode_weights(toys.weights(10_000)))
    aggregator.task(1)
    want = aggregator.next("want")
    while want.sha256 != aggregator.model:
        aggregator.serve(want)
        want = aggregator.next("want")
    assert want.missing == ((0, 2),)
    aggregator.serve(want, lose={1})
    want = aggregator.next("want")
    assert (want.sha256, want.missing) == (aggregator.model, ((1, 2),))
    aggregator.serve(want)
    assert aggregator.next("begin").round == 1


def test_a_blob_that_the_broker_keeps_is_not_asked_for_in_whatever_order_it_comes(
    federate, mosquitto_url, toys, lead
):
    federation = federate(mosquitto_url, wide=True)
    aggregator = lead(federation)
    federation.device("pi-1", toys.shard(1))
    aggregator.next("status")
    aggregator.model = aggregator.keep(encode_weights(toys.weights(10_000)))
    aggregator.task(1)
    assert aggregator.next("begin").round == 1


def test_a_receipt_that_is_lost_is_asked_for_again_and_a_rejection_ends_the_round(
    federate, mosquitto_url, toys, lead
):
    federation = federate(mosquitto_url)
    aggregator = lead(federation)
    device = federation.device("pi-1", toys.shard(1))
    aggregator.next("status")
    aggregator.task(1)
    first = aggregator.next("begin")
    assert aggregator.next("begin").sha256 == first.sha256
    aggregator.receipt(replace(first, nonce="of another round"), "ok")
    aggregator.receipt(first, "rejected", reason="stale: try later")
    device.wait_for("rejected the update: stale: try later")
    aggregator.task(2)
    assert aggregator.next("begin").round == 2


def test_a_newer_task_ends_the_wait_for_an_older_one(federate, mosquitto_url, toys, lead):
    federation = federate(mosquitto_url)
    aggregator = lead(federation)
    federation.device("pi-1", toys.shard(1))
    aggregator.next("status")
    aggregator.task(1)
    assert aggregator.next("begin").round == 1
    aggregator.task(2)
    begin = aggregator.next("begin")
    while begin.round == 1:
        begin = aggregator.next("begin")
    assert begin.round == 2


def test_a_status_left_by_a_dead_device_is_waited_out(federate, mosquitto_url, toys, lead):
    """The broker says online for a boot that nobody answers for: one and a half keepalive times, then the id
    is free.
    """
    federation = federate(mosquitto_url)
    aggregator = lead(federation)
    now = time.time()
    ghost = Status("pi-1", "0" * 16, True, now, 1, "0", now)
    aggregator.link.publish(
        aggregator.topics.format_device("pi-1", "status"), encode_json(ghost), retain=True
    )
    assert aggregator.next("status").boot_id == ghost.boot_id
    began = time.monotonic()
    federation.device("pi-1", toys.shard(1), "--keepalive", "2")
    assert aggregator.next("status").boot_id != ghost.boot_id
    assert time.monotonic() - began > 2.9


def test_the_state_directory_is_one_devices_own(federate, mosquitto_url, toys, lead, start):
    federation = federate(mosquitto_url)
    aggregator = lead(federation)
    device = federation.device("pi-1", toys.shard(1))
    aggregator.next("status")
    same = federation.device("pi-2", toys.shard(2), "--state", federation.directory / "state-pi-1")
    assert same.end() == 1
    assert "another device uses" in same.said
    aggregator.task(1)
    aggregator.next("begin")
    device.popen.terminate()
    assert device.end() == 0
    other = federation.device("pi-2", None, "--state", federation.directory / "state-pi-1")
    assert other.end() == 1
    assert "belongs to 'pi-1', this device is 'pi-2'" in other.said
    for name in ("device.json", "progress.json", "progress.before.json"):
        (federation.directory / "state-pi-1" / name).write_text("{")
    damaged = federation.device("pi-1")
    assert damaged.end() == 1
    assert "is damaged" in damaged.said


def test_waiting_for_a_federation_may_be_limited(federate, mosquitto_url, toys):
    federation = federate(mosquitto_url)
    device = federation.device("pi-1", toys.shard(1), "--wait", "0.5")
    assert device.end() == 1
    assert "did not run within 0.5 s" in device.said


def test_a_shard_that_does_not_fit_the_plan_ends_the_device_before_any_task(federate, mosquitto_url, toys):
    federation = federate(mosquitto_url, min_clients=2)
    aggregator = federation.aggregator()
    shard = toys.shard(1)
    device = federation.device(
        "pi-1", replace(shard, x_train=shard.x_train[:, :2], x_test=shard.x_test[:, :2])
    )
    assert device.end() == 1
    assert "the plan expects" in device.said
    aggregator.wait_for("pi-1 is offline")
    assert "round 1" not in aggregator.said

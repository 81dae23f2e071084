"""The device service against an aggregator that the test plays."""

import hashlib
import json
import os
import signal
import time
from dataclasses import replace

from edgefl.base.rng import derive_rng
from edgefl.base.storage.directory import STATE_FORMAT
from edgefl.base.types import Broadcast, ClientState
from edgefl.learning.algorithms import make_algorithm
from edgefl.protocol.wire.messages import Status
from edgefl.protocol.wire.strict_json import encode_json
from edgefl.protocol.wire.tensors import decode_models, encode_models, encode_weights, list_specs
from tests.support.numpy_learner.softmax import SoftmaxLearner


def make_status(born):
    """Return the status of another process with the id of the device."""
    return Status(
        client_id="pi-1", boot_id="0" * 16, online=True, born=born, num_samples=1, version="0", ts=born
    )


def test_device_trains_personalizes_and_ends(federate, mosquitto_url, toys, fake_aggregator):
    federation = federate(mosquitto_url)
    aggregator = fake_aggregator(federation)
    shard = toys.shard(1)
    device = federation.device("pi-1", shard)
    assert aggregator.next("status").online
    aggregator.send_task(1)
    begin = aggregator.next("begin")
    assert (begin.client_id, begin.round, begin.num_samples, begin.nonce, begin.plan) == (
        "pi-1",
        1,
        30,
        "n1",
        federation.plan.id,
    )
    blob = aggregator.accept_update(begin)
    assert hashlib.sha256(blob).hexdigest() == begin.sha256
    learner = SoftmaxLearner(federation.plan.spec)
    algorithm = make_algorithm("pfl-mfe", learner, federation.plan.spec.options)
    expected, _ = algorithm.local_update(
        Broadcast(round=1, phase="federate", models={"global": toys.weights()}),
        ClientState(),
        shard,
        "pi-1",
        derive_rng(1, 1, "pi-1"),
    )
    assert blob == encode_models(expected.deltas)
    assert begin.metrics["loss"] == expected.metrics["loss"]

    aggregator.send_task(2, "personalize")
    begin = aggregator.next("begin")
    assert decode_models(aggregator.accept_update(begin), {}, "pi-1") == {}
    assert {
        "accuracy_federated",
        "accuracy_mixture",
        "accuracy_shipped",
        "peak_rss_mb",
        "bytes_up",
        "bytes_down",
    } <= set(begin.metrics)
    aggregator.send_state("done", 2)
    assert device.end() == 0, device.err
    state = federation.directory / "state-pi-1"
    note = json.loads((state / "device.json").read_text())
    fields = {
        "id": "pi-1",
        "federation": federation.name,
        "data": str((federation.directory / "pi-1.npz").resolve()),
        "seed": 1,
        "sketch": note["sketch"],
        "format": STATE_FORMAT,
    }
    assert note["sketch"] == sorted(note["sketch"]) and len(note["sketch"]) == 32
    assert note == fields | {
        "sha256": hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
    }
    assert (state / "mixture.safetensors").exists()
    assert {path.name for path in (state / "plan").iterdir()} == {
        "plan.json",
        "plan.tflite",
        "template.tflite",
    }
    assert not aggregator.next("status").online


def test_repeated_task_gets_the_same_update_also_after_kill(
    federate, mosquitto_url, toys, fake_aggregator, read_progress
):
    federation = federate(mosquitto_url)
    aggregator = fake_aggregator(federation)
    device = federation.device("pi-1", toys.shard(1))
    aggregator.next("status")
    aggregator.send_task(1)
    first = aggregator.next("begin")
    os.kill(device.popen.pid, signal.SIGKILL)
    assert not aggregator.next("status").online
    progress_before = read_progress(federation)
    again = federation.device("pi-1")
    assert aggregator.next("status").online
    aggregator.send_task(1, nonce="n2")
    second = aggregator.next("begin")
    # the metrics contain the seconds of training, which would differ after a second training
    assert (second.sha256, second.metrics, second.nonce) == (first.sha256, first.metrics, "n2")
    assert read_progress(federation) == progress_before
    assert decode_models(
        aggregator.accept_update(second), {"global": list_specs(toys.weights())}, "pi-1"
    ).keys() == {"global"}
    aggregator.send_task(1, nonce="n2")
    again.popen.terminate()
    assert again.end() == 0


def test_new_session_trains_from_scratch(federate, mosquitto_url, toys, fake_aggregator, read_progress):
    federation = federate(mosquitto_url)
    device = federation.device("pi-1", toys.shard(1))
    hashes = []
    for _ in range(2):
        aggregator = fake_aggregator(federation)
        aggregator.next("status")
        aggregator.send_task(1)
        begin = aggregator.next("begin")
        hashes.append(begin.sha256)
        aggregator.accept_update(begin)
        assert read_progress(federation)["session"] == aggregator.session
    assert hashes[0] == hashes[1]
    device.popen.terminate()
    assert device.end() == 0


def test_device_requests_only_the_lost_chunk_of_a_blob(federate, mosquitto_url, toys, fake_aggregator):
    federation = federate(mosquitto_url, wide=True)
    aggregator = fake_aggregator(federation)
    federation.device("pi-1", toys.shard(1))
    aggregator.next("status")
    aggregator.model = aggregator.offer_blob(encode_weights(toys.weights(10_000)))
    aggregator.send_task(1)
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


def test_retained_blob_is_received_without_a_request(federate, mosquitto_url, toys, fake_aggregator):
    federation = federate(mosquitto_url, wide=True)
    aggregator = fake_aggregator(federation)
    federation.device("pi-1", toys.shard(1))
    aggregator.next("status")
    aggregator.model = aggregator.retain_blob(encode_weights(toys.weights(10_000)))
    aggregator.send_task(1)
    assert aggregator.next("begin").round == 1


def test_device_repeats_announcement_without_receipt_and_stops_when_rejected(
    federate, mosquitto_url, toys, fake_aggregator
):
    federation = federate(mosquitto_url)
    aggregator = fake_aggregator(federation)
    device = federation.device("pi-1", toys.shard(1))
    aggregator.next("status")
    aggregator.send_task(1)
    first = aggregator.next("begin")
    assert aggregator.next("begin").sha256 == first.sha256
    aggregator.send_receipt(replace(first, nonce="of another round"), "ok")
    aggregator.send_receipt(first, "rejected", reason="stale: try later")
    device.wait_for("rejected the update: stale: try later")
    aggregator.send_task(2)
    assert aggregator.next("begin").round == 2


def test_newer_task_ends_waiting_for_an_older_receipt(federate, mosquitto_url, toys, fake_aggregator):
    federation = federate(mosquitto_url)
    aggregator = fake_aggregator(federation)
    federation.device("pi-1", toys.shard(1))
    aggregator.next("status")
    aggregator.send_task(1)
    assert aggregator.next("begin").round == 1
    aggregator.send_task(2)
    begin = aggregator.next("begin")
    while begin.round == 1:
        begin = aggregator.next("begin")
    assert begin.round == 2


def test_device_waits_until_status_of_dead_device_expires(federate, mosquitto_url, toys, fake_aggregator):
    """The retained status is online but its boot is dead. The id is free after one and a half keepalive
    times.
    """
    federation = federate(mosquitto_url)
    aggregator = fake_aggregator(federation)
    now = time.time()
    stale_status = make_status(born=now)
    aggregator.link.publish(
        aggregator.topics.format_device("pi-1", "status"), encode_json(stale_status), retain=True
    )
    assert aggregator.next("status").boot_id == stale_status.boot_id
    start_time = time.monotonic()
    federation.device("pi-1", toys.shard(1), "--keepalive", "2")
    assert aggregator.next("status").boot_id != stale_status.boot_id
    assert time.monotonic() - start_time > 2.9


def test_plan_that_left_the_cache_still_trains(federate, mosquitto_url, toys, fake_aggregator):
    """The cache removes its oldest blobs, and a federation that starts again may have another seed."""
    federation = federate(mosquitto_url)
    aggregator = fake_aggregator(federation)
    device = federation.device("pi-1", toys.shard(1))
    aggregator.next("status")
    aggregator.send_task(1)
    aggregator.accept_update(aggregator.next("begin"))
    device.wait_for("round 1 federate")
    (federation.directory / "state-pi-1" / "blobs" / aggregator.plan).unlink()
    again = fake_aggregator(federation)
    again.send_task(1, seed=9)
    assert again.next("begin").session == again.session, device.err
    assert "refused" not in device.err
    device.popen.terminate()
    assert device.end() == 0


def test_round_that_was_trained_while_the_link_broke_is_stored(
    federate, mosquitto_url, toys, fake_aggregator, read_progress
):
    federation = federate(mosquitto_url, options={"epochs": 4})
    aggregator = fake_aggregator(federation)
    for sha256 in (aggregator.plan, aggregator.model):
        aggregator.retain_blob(aggregator.blobs[sha256])
    device = federation.device("pi-1", toys.shard(1, 20_000))
    aggregator.next("status")
    aggregator.send_task(1)
    device.wait_for("; learner numpy")  # the device trains now
    earlier = make_status(born=0.0)
    aggregator.link.publish(aggregator.topics.format_device("pi-1", "status"), encode_json(earlier))
    assert device.end() == 1
    assert "another device has the id 'pi-1'" in device.err
    assert read_progress(federation)["round"] == 1


def test_state_directory_belongs_to_one_device(federate, mosquitto_url, toys, fake_aggregator, start):
    federation = federate(mosquitto_url)
    aggregator = fake_aggregator(federation)
    device = federation.device("pi-1", toys.shard(1))
    aggregator.next("status")
    same = federation.device("pi-2", toys.shard(2), "--state", federation.directory / "state-pi-1")
    assert same.end() == 1
    assert "another device uses" in same.err
    aggregator.send_task(1)
    aggregator.next("begin")
    device.popen.terminate()
    assert device.end() == 0
    other = federation.device("pi-2", None, "--state", federation.directory / "state-pi-1")
    assert other.end() == 1
    assert "belongs to 'pi-1', this device is 'pi-2'" in other.err
    directory = federation.directory / "state-pi-1"
    for path in (directory / "device.json", directory / f"round-9-{'0' * 64}", *directory.glob("round-*")):
        path.write_text("{")
    damaged = federation.device("pi-1")
    assert damaged.end() == 1
    assert "is damaged" in damaged.err


def test_wait_option_limits_waiting_for_a_federation(federate, mosquitto_url, toys):
    federation = federate(mosquitto_url)
    device = federation.device("pi-1", toys.shard(1), "--wait", "0.5")
    assert device.end() == 1
    assert "did not run within 0.5 s" in device.err


def test_shard_that_does_not_fit_the_plan_ends_the_device(federate, mosquitto_url, toys):
    federation = federate(mosquitto_url, min_clients=2)
    aggregator = federation.aggregator()
    shard = toys.shard(1)
    device = federation.device(
        "pi-1", replace(shard, x_train=shard.x_train[:, :2], x_test=shard.x_test[:, :2])
    )
    assert device.end() == 1
    assert "the plan expects" in device.err
    aggregator.wait_for("pi-1 is offline")
    assert "round 1" not in aggregator.err

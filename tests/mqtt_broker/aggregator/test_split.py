"""An aggregator in several processes: the bits of one, and no device that sees a difference."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from edgefl.config import FederationConfig
from edgefl.simulation.simulate import simulate
from edgefl.storage.checkpoint import decode_server_state, decode_stored_mixture, encode_server_state
from edgefl.transport.link import Message
from edgefl.wire.chunks import chunk
from edgefl.wire.tensors import encode_models
from edgefl.wire.topics import parse_topic
from tests.support.numpy_learner.softmax import SoftmaxLearner

IDS = ("pi-0", "pi-1", "pi-2")
OPTIONS = {
    "aem": {"num_experts": 2, "local_epochs": 3, "gate_epochs": 3},
    "clustered": {"learning_rate": 0.1},
    "fedavg": {},
    "fedmix": {"num_experts": 2, "gate_epochs": 2},
    "ifca": {"num_experts": 2},
}
DEADLINE_S = 40.0


def children(process):
    """Return the processes that an aggregator has started, by their ids."""
    return [
        int(pid)
        for path in Path(f"/proc/{process.popen.pid}/task").glob("*/children")
        for pid in path.read_text().split()
    ]


def until_gone(pids):
    deadline = time.monotonic() + DEADLINE_S
    while alive := [
        pid
        for pid in pids
        if Path(f"/proc/{pid}").exists() and "(zombie)" not in Path(f"/proc/{pid}/status").read_text()
    ]:
        assert time.monotonic() < deadline, f"{alive} are still there"
        os.sched_yield()


def announce(puppet, task, blob):
    """Announce an update as a device does, again until somebody answers; return the receipt."""
    deadline = time.monotonic() + DEADLINE_S
    while not puppet.inbox["receipt"] and time.monotonic() < deadline:
        puppet.begin(task, blob)
        if isinstance(event := puppet.link.get(4.0), Message):
            puppet.inbox[parse_topic(event.topic).kind].append(event.payload)
    return puppet.next("receipt")


def check_bits(federation, toys, shards, settings):
    learner = SoftmaxLearner(federation.plan.spec)
    initial = toys.weights(more=federation.plan.spec.weights)
    end = simulate(federation.plan, initial, shards, FederationConfig(**settings), learner=learner)
    state = decode_server_state((federation.out / "server_state.safetensors").read_bytes())
    assert encode_server_state(state) == encode_server_state(end.state)
    for client_id, mixture in end.mixtures.items():
        found = decode_stored_mixture(
            (federation.directory / f"state-{client_id}" / "mixture.safetensors").read_bytes()
        ).mixture
        assert all(
            found.weights[name].tobytes() == array.tobytes() for name, array in mixture.weights.items()
        )
    assert [row["id"] for row in federation.result()["clients"]] == sorted(shards)
    assert federation.result()["dropped"] == []


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_the_bits_are_those_of_the_simulator(name, federate, any_url, toys):
    """Three devices, two of them at one worker; the models of several clusters come back, in several updates
    or in none.
    """
    codec = "int8+deflate" if name == "fedavg" else "fp32"
    settings = {"rounds": 4, "min_clients": 3, "seed": 7, "codec": codec}
    federation = federate(any_url, algorithm=name, options=OPTIONS[name], workers=2, **settings)
    shards = {client_id: toys.shard(i, 20 + 10 * i) for i, client_id in enumerate(IDS)}
    aggregator = federation.aggregator()
    devices = [federation.device(client_id, shard) for client_id, shard in shards.items()]
    aggregator.wait_for("reported")
    workers = children(aggregator)
    assert len(workers) == 2
    assert aggregator.end() == 0, aggregator.said
    assert [device.end() for device in devices] == [0, 0, 0], [device.said for device in devices]
    until_gone(workers)
    check_bits(federation, toys, shards, settings)
    assert not (federation.out / "spool").exists() or not list((federation.out / "spool").glob("*/*"))


def test_a_killed_aggregators_workers_end_and_it_goes_on_with_another_number_of_them(
    federate, mosquitto_url, toys
):
    settings = {"rounds": 6, "min_clients": 3, "seed": 5}
    federation = federate(mosquitto_url, quorum=1.0, **settings)
    shards = {client_id: toys.shard(i, 20 + 10 * i) for i, client_id in enumerate(IDS)}
    devices = [federation.device(client_id, shard) for client_id, shard in shards.items()]
    for workers, told in ((2, "round 1: "), (0, "round 3: "), (1, "round 4: ")):
        aggregator = federation.aggregator("--workers", workers)
        aggregator.wait_for(told)
        started = children(aggregator)
        aggregator.popen.kill()
        aggregator.popen.wait()
        assert len(started) == workers
        until_gone(started)
    last = federation.aggregator("--workers", 3)
    assert last.end() == 0, last.said
    assert [device.end() for device in devices] == [0, 0, 0], [device.said for device in devices]
    check_bits(federation, toys, shards, settings)


def test_a_worker_killed_in_the_middle_of_an_upload_is_started_again_and_has_it_sent_again(
    federate, mosquitto_url, toys, puppet
):
    federation = federate(
        mosquitto_url, algorithm="fedavg", rounds=1, min_clients=2, quorum=1.0, wide=True, workers=2
    )
    aggregator = federation.aggregator()
    one, other = (puppet(federation, client_id) for client_id in ("pi-0", "pi-1"))
    blob = encode_models(
        {"global": {name: np.full_like(array, 1.0) for name, array in toys.weights(10_000).items()}}
    )
    tasks = {each: each.next("task") for each in (one, other)}
    assert other.send(tasks[other], blob).outcome == "ok"
    begin = one.begin(tasks[one], blob)
    assert one.next("receipt").outcome == "missing"
    one.publish(begin.sha256, 0, chunk(blob, 0))
    for worker in children(aggregator):
        os.kill(worker, signal.SIGKILL)
    again = one.next("task")
    assert (again.round, again.nonce) == (1, tasks[one].nonce)
    assert announce(other, tasks[other], blob).outcome == "ok", (
        "what was received once is known to the worker that came after"
    )
    assert one.send(again, blob).outcome == "ok"
    for each in (one, other):
        while (task := each.next("task")).phase != "personalize":
            pass
        assert each.send(task, encode_models({})).outcome == "ok"
    assert aggregator.end() == 0, aggregator.said
    assert aggregator.said.count("it is started again") == 2
    state = decode_server_state((federation.out / "server_state.safetensors").read_bytes())
    for name, array in toys.weights(10_000).items():
        assert np.array_equal(state.models["global"][name], array + 1)


def test_what_a_worker_refuses_is_told_and_the_round_does_not_wait_for_it(
    federate, mosquitto_url, toys, puppet
):
    federation = federate(mosquitto_url, algorithm="fedavg", rounds=1, min_clients=2, quorum=0.5, workers=2)
    aggregator = federation.aggregator()
    good, bad = (puppet(federation, client_id) for client_id in ("pi-0", "pi-1"))
    fine = encode_models({"global": toys.weights()})
    task = bad.next("task")
    for changes, reason in (
        ({"nonce": "0" * 16}, "a replayed update"),
        ({"num_samples": 0}, "num_samples is 0"),
        ({"client_id": "pi-0"}, "speaks for itself"),
        ({"plan": "f" * 64}, "runs the plan"),
    ):
        assert reason in bad.send(task, fine, **changes).reason
    nan = encode_models(
        {"global": {name: array * np.float32("nan") for name, array in toys.weights().items()}}
    )
    assert "NaN" in bad.send(task, nan).reason
    assert good.send(good.next("task"), fine).outcome == "ok"
    for each in (good, bad):
        while (task := each.next("task")).phase != "personalize":
            pass
        receipt = each.send(task, encode_models({}))
        assert receipt.outcome == "ok", receipt
    assert aggregator.end() == 0, aggregator.said
    [dropped] = federation.result()["dropped"]
    assert (dropped["id"], "NaN" in dropped["reason"]) == ("pi-1", True)


def test_who_has_no_task_is_told_so(federate, mosquitto_url, toys, puppet):
    federation = federate(mosquitto_url, algorithm="fedavg", rounds=1, min_clients=1, quorum=1.0, workers=2)
    aggregator = federation.aggregator()
    one = puppet(federation, "pi-0")
    task = one.next("task")
    other = puppet(federation, "pi-1")
    aggregator.wait_for("pi-1 is online")
    blob = encode_models({"global": toys.weights()})
    told = announce(other, task, blob)
    assert (told.outcome, "is not in the cohort of round 1" in told.reason) == ("rejected", True)
    assert one.send(task, blob).outcome == "ok"
    for each in (one, other):
        while (task := each.next("task")).phase != "personalize":
            pass
        assert each.send(task, encode_models({})).outcome == "ok"
    assert aggregator.end() == 0, aggregator.said


def test_a_worker_that_cannot_keep_an_update_ends_the_aggregator_with_the_reason(
    federate, mosquitto_url, toys, puppet
):
    federation = federate(mosquitto_url, algorithm="fedavg", rounds=1, min_clients=1, workers=1)
    aggregator = federation.aggregator()
    one = puppet(federation, "pi-0")
    task = one.next("task")
    [directory] = (federation.out / "spool").glob("*/*")
    directory.rmdir()
    directory.write_text("no directory")
    begin = one.begin(task, blob := encode_models({"global": toys.weights()}))
    assert one.next("receipt").outcome == "missing"
    one.publish(begin.sha256, 0, blob)
    assert aggregator.end() == 1
    assert "cannot keep an update in" in aggregator.said
    assert "choose another --out" in aggregator.said


def test_a_worker_takes_no_update_of_who_is_not_listed(federate, mosquitto_url, toys, puppet):
    """The cohort of an open round is kept over a restart; the owner leaves out one of its clients
    meanwhile.
    """
    federation = federate(
        mosquitto_url, algorithm="fedavg", rounds=1, min_clients=2, quorum=0.5, workers=1, deadline_s=4.0
    )
    aggregator = federation.aggregator()
    listed, left_out = (puppet(federation, client_id) for client_id in ("pi-0", "pi-1"))
    task = left_out.next("task")
    blob = encode_models({"global": toys.weights()})
    listed.next("task")
    aggregator.popen.kill()
    aggregator.popen.wait()
    federation.settings["clients"] = ["pi-0", "pi-2"]
    aggregator = federation.aggregator()
    task = left_out.next("task")
    left_out.begin(task, blob)
    # Its status, and what it announced to the worker
    aggregator.wait_for("pi-1 is not one of [federation] clients", times=2)
    assert listed.send(listed.next("task"), blob).outcome == "ok"
    for each in (listed, puppet(federation, "pi-2")):
        assert each.send(each.next("task"), encode_models({})).outcome == "ok"
    assert aggregator.end() == 0, aggregator.said
    assert not left_out.inbox["receipt"]
    assert [row["id"] for row in federation.result()["clients"]] == ["pi-0", "pi-2"]
    assert [dropped["id"] for dropped in federation.result()["dropped"]] == ["pi-1"]

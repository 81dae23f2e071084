"""The accuracy of each round: it matches the simulator over a broker, and is not published when
evaluation is off.
"""

import json
import time

import numpy as np
import pytest

from edgefl.base.config import FederationConfig
from edgefl.learning.checkpoint import decode_server_state
from edgefl.learning.client.validation import hold_out_validation
from edgefl.protocol.wire.topics import parse_topic
from edgefl.simulation.simulate import simulate
from edgefl.watch.monitor.view import FederationView, snapshot
from tests.support.numpy_learner.softmax import SoftmaxLearner

SETTINGS = {"rounds": 3, "min_clients": 3, "seed": 5}
PARTS = ("accuracy_mean", "accuracy_p10", "accuracy_p90")


def run_federation(federation, shards, *more):
    """Run a federation to its end and return its aggregator."""
    aggregator = federation.aggregator(*more)
    devices = [federation.device(client_id, shard) for client_id, shard in shards.items()]
    assert aggregator.end() == 0, aggregator.err
    assert [device.end() for device in devices] == [0] * len(shards), [device.err for device in devices]
    return aggregator


def simulate_federation(federation, toys, shards, **changes):
    """Return the records of the same federation in the simulator, and its last state."""
    records = []
    end = simulate(
        federation.plan,
        toys.weights(),
        shards,
        FederationConfig(**SETTINGS | changes),
        open_learner=lambda plan: SoftmaxLearner(federation.plan.spec),
        progress=lambda state, record: records.append(record),
    )
    return records, end.state


def decode_kind(messages, kind):
    """Return the messages of one kind, decoded."""
    return [json.loads(each.payload) for each in messages if parse_topic(each.topic).kind == kind]


def test_mqtt_and_simulator_report_the_same_accuracy(federate, any_url, toys, listen):
    federation = federate(any_url, **SETTINGS, evaluate=True)
    listener = listen(federation)
    shards = {f"pi-{i}": toys.shard(i, 20 + 10 * i) for i in range(3)}
    log = federation.directory / "tb"
    aggregator = run_federation(federation, shards, "--log", f"tensorboard:{log}")
    messages = listener.wait_for_phase("done")
    records, end = simulate_federation(federation, toys, shards)

    # The first model answers 0, since all of its logits are equal
    for client_id, shard in shards.items():
        held_out = hold_out_validation(shard, 0.25, 5, client_id)
        assert len(held_out.y) > 0
        assert records[0].updates[client_id]["accuracy"] == (held_out.y == 0).mean()
    assert records[-1].accuracy_mean > records[0].accuracy_mean + 0.2, "it learns"

    lines = [json.loads(line) for line in (federation.out / "rounds.jsonl").read_text().splitlines()]
    summaries = {each["round"]: each for each in decode_kind(messages, "summary")}
    for record, line in zip(records, lines, strict=False):
        for client_id in shards:
            assert line["updates"][client_id]["accuracy"] == record.updates[client_id]["accuracy"]
        for part in PARTS:
            assert line[part] == summaries[record.round][part] == getattr(record, part)
        values = [client["accuracy"] for client in record.updates.values()]
        assert record.accuracy_mean == pytest.approx(np.mean(values))
        expected = f"accuracy {100 * record.accuracy_mean:.1f}% (p10 {100 * record.accuracy_p10:.1f}%, p90 "
        assert expected in aggregator.err
    assert {
        each["values"]["accuracy"] for each in decode_kind(messages, "metrics") if each["round"] == 2
    } == {client["accuracy"] for client in records[1].updates.values()}

    state = decode_server_state((federation.out / "server_state.safetensors").read_bytes())
    for name, array in end.models["global"].items():
        assert state.models["global"][name].tobytes() == array.tobytes()

    view = FederationView(federation.name)
    for message in messages:
        view.take(message.topic, message.payload, time.time())
    tree = snapshot(view, time.time())
    shown = [row["accuracy_mean"] for row in tree["history"] if row["round"] <= 3]
    assert shown == [record.accuracy_mean for record in records]
    final = {row["id"]: row["accuracy_shipped"] for row in federation.result()["clients"]}
    for device in tree["devices"]:
        assert device["accuracy"] == final[device["id"]], "no figure of the last round"
        assert device["trace_of"] == "accuracy"
        assert [value for _, value in device["trace"]] == [
            record.updates[device["id"]]["accuracy"] for record in records
        ]

    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(log))
    events.Reload()
    for part in PARTS:
        assert [(each.step, each.value) for each in events.Scalars(f"round/{part}")] == [
            (record.round, pytest.approx(getattr(record, part))) for record in records
        ]


def test_evaluation_does_not_change_the_models(federate, mosquitto_url, toys):
    """Evaluation draws no random numbers and only adds a metric to an update."""
    federation = federate(mosquitto_url, **SETTINGS, evaluate=True)
    shards = {f"pi-{i}": toys.shard(i, 30) for i in range(2)}
    records, end = simulate_federation(federation, toys, shards)
    records_without, end_without = simulate_federation(federation, toys, shards, evaluate=False)
    for name, array in end.models["global"].items():
        assert end_without.models["global"][name].tobytes() == array.tobytes()
    for record, record_without in zip(records, records_without, strict=True):
        assert np.isnan(record_without.accuracy_mean)
        for client_id, figures in record.updates.items():
            assert {**record_without.updates[client_id], "accuracy": figures["accuracy"]} == figures


def list_accuracies(messages, rounds):
    """Return each accuracy that a device or a summary reports in the rounds of training."""
    reported = [each["metrics"] for each in decode_kind(messages, "begin") if each["round"] <= rounds]
    reported += [each["values"] for each in decode_kind(messages, "metrics") if each["round"] <= rounds]
    assert len(reported) >= rounds, "devices have reported"
    found = [metrics["accuracy"] for metrics in reported if "accuracy" in metrics]
    summaries = [each for each in decode_kind(messages, "summary") if each["round"] <= rounds]
    return found + [each["accuracy_mean"] for each in summaries if each["accuracy_mean"] is not None]


PRIVATE = {
    "secure aggregation": "[privacy]\nsecure_aggregation = true\n",
    "noise": "[privacy]\nclip = 0.5\nnoise_multiplier = 0.8\npopulation = 3\ndelta = 1e-5\n",
}


@pytest.mark.parametrize("kind", ["on", "off", *PRIVATE])
def test_accuracy_is_published_only_when_evaluation_is_on(kind, federate, mosquitto_url, toys, listen):
    """By default evaluation is on, but off with secure aggregation and with noise."""
    if kind == "noise":
        pytest.importorskip("dp_accounting", reason="the extra dp is not installed")
    federation = federate(
        mosquitto_url, **SETTINGS, quorum=1.0, evaluate=kind != "off", tables=PRIVATE.get(kind, "")
    )
    listener = listen(federation)
    aggregator = run_federation(federation, {f"pi-{i}": toys.shard(i) for i in range(3)})
    messages = listener.wait_for_phase("done")
    tasks = [each for each in decode_kind(messages, "task") if each["round"] <= 3]
    assert {each["settings"].get("evaluate") for each in tasks} == {1.0 if kind == "on" else None}
    assert bool(list_accuracies(messages, 3)) == (kind == "on")
    assert ("p10" in aggregator.err.partition("personalize")[0]) == (kind == "on")


def test_rounds_end_without_a_rise_in_mqtt_and_simulator(federate, mosquitto_url, toys):
    """The aggregator is killed meanwhile, so its decision does not depend on what it had in memory."""
    changes = {"rounds": 60, "least_rounds": 15}
    federation = federate(mosquitto_url, **SETTINGS | changes, evaluate=True)
    shards = {f"pi-{i}": toys.shard(i, 20 + 10 * i) for i in range(3)}
    aggregator = federation.aggregator()
    devices = [federation.device(client_id, shard) for client_id, shard in shards.items()]
    aggregator.wait_for("round 12/60")
    aggregator.popen.kill()
    aggregator.popen.wait()
    aggregator = federation.aggregator()
    assert aggregator.end() == 0, aggregator.err
    assert [device.end() for device in devices] == [0, 0, 0], [device.err for device in devices]
    records, end = simulate_federation(federation, toys, shards, **changes)
    assert 15 <= len(records) < 60
    assert f"round {len(records)}: the accuracy had no new maximum for 10 rounds" in aggregator.err
    state = decode_server_state((federation.out / "server_state.safetensors").read_bytes())
    assert (state.round, state.phase, state.records) == (end.round, "done", end.records)
    for name, array in end.models["global"].items():
        assert state.models["global"][name].tobytes() == array.tobytes()
    assert len(federation.result()["losses"]) == len(records)
    assert federation.result()["verdict"]["rise_points"] is None

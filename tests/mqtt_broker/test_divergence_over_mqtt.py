"""A federation that diverges ends with the reason, at the aggregator and on devices, and can start again."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from edgefl.learning.algorithms.range_test import FACTORS, ChosenRate
from edgefl.learning.checkpoint import encode_server_state
from edgefl.protocol.wire.divergence_message import FederationDivergedError
from edgefl.simulation.simulate import simulate
from mqtt_broker.aggregator.results import load_state, save_state
from tests.support.numpy_learner.softmax import SoftmaxLearner

HIGH_RATE = {"learning_rate": 100.0}


def make_unlearnable_shard(toys, seed):
    """Return a shard of equal samples with random labels, from which nothing can be learnt. At a learning
    rate of 10 the median loss is about 46 in each round; a model that guesses has ln 3 = 1.1.
    """
    shard = toys.shard(seed, 60)
    rng = np.random.default_rng(seed)
    return replace(
        shard,
        x_train=np.full_like(shard.x_train, 0.1),
        y_train=rng.integers(0, 3, 60).astype(shard.y_train.dtype),
    )


def make_overflowing_shard(toys, seed):
    """Return a shard whose loss is not finite after a step at a learning rate of 100."""
    shard = toys.shard(seed, 30)
    return replace(shard, x_train=shard.x_train * np.float32(1e20), x_test=shard.x_test * np.float32(1e20))


def raise_tested_rate(federate, mosquitto_url, toys, *, rate, rounds):
    """Start a federation that cannot learn, kill its aggregator after the range test and store ten times
    the rate as the outcome of the test, because no device votes for such a rate by itself.

    Returns the federation and its two devices, which wait for the aggregator.
    """
    options = {"learning_rate": rate, "epochs": 2}
    federation = federate(mosquitto_url, algorithm="fedavg", options=options, range_test=True, rounds=rounds)
    aggregator = federation.aggregator()
    devices = [federation.device(f"pi-{i}", make_unlearnable_shard(toys, i)) for i in range(2)]
    aggregator.wait_for("range test over the devices")
    aggregator.popen.kill()
    aggregator.popen.wait()
    tested = federation.out / "range-test"
    save_state(load_state(tested).with_record(ChosenRate(FACTORS.index(10.0))), tested)
    return federation, devices


def test_high_loss_ends_the_federation_with_the_reason(federate, mosquitto_url, toys, listen):
    federation = federate(mosquitto_url, rounds=30, min_clients=2, options={"learning_rate": 10.0})
    listener = listen(federation)
    shards = {f"pi-{i}": make_unlearnable_shard(toys, i) for i in range(2)}
    aggregator = federation.aggregator()
    devices = [federation.device(client_id, shard) for client_id, shard in shards.items()]
    assert aggregator.end() == 1, aggregator.err
    last = aggregator.err.splitlines()[-1]
    assert last.startswith("edgefl: training diverged in round ")
    assert "lower learning_rate of [algorithm]" in last
    assert [device.end() for device in devices] == [1, 1]
    for device in devices:
        assert device.err.splitlines()[-1] == last
    assert (federation.out / "server_state.safetensors").exists()
    assert not (federation.out / "result.json").exists()
    state = json.loads(listener.wait_for_phase("stopped")[-1].payload)
    assert state["settings"]["diverged_round"] >= 4

    monitor = federation.start(
        "monitor", "--broker", mosquitto_url, "--federation", federation.name, "--once"
    )
    assert monitor.end() == 0, monitor.err
    assert " ".join(last.removeprefix("edgefl: ").split()) in " ".join(monitor.out.split())

    simulated_round = find_divergence_round(federation, toys, shards)
    assert state["settings"]["diverged_round"] == simulated_round

    federation.upgrade(learning_rate=0.1)
    again = federation.aggregator()
    assert again.end() == 1
    assert "start again with --fresh" in again.err
    aggregator = federation.aggregator("--fresh")
    devices = [federation.device(f"pi-{i}", toys.shard(i)) for i in range(2)]
    assert aggregator.end() == 0, aggregator.err
    assert [device.end() for device in devices] == [0, 0]


@pytest.mark.parametrize(
    ("rate", "rounds", "reason"),
    [(1.0, 6, "training diverged in round 4"), (0.01, 8, "training has had no effect until round 6")],
)
def test_rate_of_a_range_test_is_taken_back_if_the_federation_fails(
    rate, rounds, reason, federate, mosquitto_url, toys
):
    federation, devices = raise_tested_rate(federate, mosquitto_url, toys, rate=rate, rounds=rounds)
    again = federation.aggregator()
    assert again.end() == 0, again.err
    assert [device.end() for device in devices] == [0, 0], [device.err for device in devices]
    assert f"range test over the devices: learning_rate = {10 * rate:g}, the default is {rate:g}" in again.err
    assert reason in again.err
    taken_back = f"chose learning_rate = {10 * rate:g}, and the federation starts again with {rate:g}"
    assert taken_back in again.err
    result = federation.result()
    assert result["learning_rate"] == rate
    assert len(result["losses"]) == rounds and max(result["losses"]) < 20


def test_rate_is_taken_back_by_an_aggregator_that_was_killed_before(federate, mosquitto_url, toys):
    """The records say that six rounds had no effect, and the state is of an earlier round."""
    federation, devices = raise_tested_rate(federate, mosquitto_url, toys, rate=0.01, rounds=8)
    records = [{"round": i + 1, "phase": "federate", "loss": 1.1, "updates": {}} for i in range(6)]
    (federation.out / "rounds.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    again = federation.aggregator()
    assert again.end() == 0, again.err
    assert [device.end() for device in devices] == [0, 0], [device.err for device in devices]
    before, _, after = again.err.partition("the federation starts again with 0.01")
    assert "no effect until round 6" in before and "round 1" in after
    assert not re.search(r"^round 1\b", before, re.MULTILINE)
    assert federation.result()["learning_rate"] == 0.01


def find_divergence_round(federation, toys, shards):
    """Return the round in which the simulator stops the same federation."""
    from edgefl.base.config import FederationConfig

    config = FederationConfig(rounds=30, min_clients=2)
    with pytest.raises(FederationDivergedError) as error:
        simulate(
            federation.plan,
            toys.weights(),
            shards,
            config,
            open_learner=lambda plan: SoftmaxLearner(federation.plan.spec),
        )
    return error.value.divergence.round


def test_federation_without_learning_ends_with_a_warning(federate, mosquitto_url, toys):
    federation = federate(mosquitto_url, rounds=2, min_clients=2, options={"learning_rate": 1e-9})
    aggregator = federation.aggregator()
    devices = [federation.device(f"pi-{i}", make_unlearnable_shard(toys, i)) for i in range(2)]
    assert aggregator.end() == 0, aggregator.err
    assert [device.end() for device in devices] == [0, 0]
    assert aggregator.err.count("training has had no effect: the median loss of the last round is") == 1
    assert "change learning_rate of [algorithm]" in aggregator.err


def test_short_federation_with_rising_loss_is_stopped(federate, mosquitto_url, toys):
    federation = federate(mosquitto_url, rounds=2, min_clients=2, options={"learning_rate": 10.0})
    aggregator = federation.aggregator()
    devices = [federation.device(f"pi-{i}", make_unlearnable_shard(toys, i)) for i in range(2)]
    assert aggregator.end() == 1, aggregator.err
    assert aggregator.err.splitlines()[-1].startswith("edgefl: training diverged in round 2: the median loss")
    assert [device.end() for device in devices] == [1, 1]


def test_clients_without_finite_loss_end_the_federation_before_the_deadline(federate, mosquitto_url, toys):
    federation = federate(mosquitto_url, rounds=5, min_clients=2, deadline_s=600.0, options=HIGH_RATE)
    aggregator = federation.aggregator()
    devices = [federation.device(f"pi-{i}", make_overflowing_shard(toys, i)) for i in range(2)]
    assert aggregator.end() == 1, aggregator.err
    last = aggregator.err.splitlines()[-1]
    assert last.startswith(
        "edgefl: training diverged in round 1: 2 of 2 clients have a loss that is no finite number; lower "
        "learning_rate of [algorithm]"
    )
    assert [device.end() for device in devices] == [1, 1]
    for device in devices:
        assert device.err.splitlines()[-1] == last


def test_one_client_without_finite_loss_does_not_stop_the_federation(federate, mosquitto_url, toys, caplog):
    """The simulator leaves the client out too, and has the same bits."""
    federation = federate(mosquitto_url, rounds=3, min_clients=3, options={"learning_rate": 0.1})
    shards = {f"pi-{i}": toys.shard(i) for i in range(2)} | {"pi-2": make_overflowing_shard(toys, 2)}
    aggregator = federation.aggregator()
    *devices, failing = (federation.device(client_id, shard) for client_id, shard in shards.items())
    assert aggregator.end() == 0, aggregator.err
    assert [device.end() for device in devices] == [0, 0]
    assert failing.end() == 1
    assert {row["id"] for row in federation.result()["clients"]} == {"pi-0", "pi-1"}

    simulated = run_simulator(federation.plan, toys, shards)
    assert encode_server_state(simulated.state) == encode_server_state(load_state(federation.out))
    warnings = [record.message for record in caplog.records]
    assert [line.partition("; ")[0] for line in warnings] == ["no update of pi-2 in this round"] * 3
    assert "pi-2, round 1: train: the loss is" in warnings[0] and "lower the learning rate" in warnings[0]


def run_simulator(plan, toys, shards):
    from edgefl.base.config import FederationConfig

    return simulate(
        plan,
        toys.weights(),
        shards,
        FederationConfig(rounds=3),
        open_learner=lambda plan: SoftmaxLearner(plan.spec),
    )


def test_simulator_stops_if_a_round_misses_its_quorum(toys, caplog):
    shards = {"pi-0": toys.shard(0)} | {f"pi-{i}": make_overflowing_shard(toys, i) for i in (1, 2)}
    with pytest.raises(FederationDivergedError, match=r"in round 1: 2 of 3 clients .*lower learning_rate"):
        run_simulator(toys.plan(learning_rate=0.1), toys, shards)
    warnings = [record.message for record in caplog.records]
    assert len(warnings) == 2
    assert all(f"pi-{i}, round 1: train: the loss is" in warnings[i - 1] for i in (1, 2))

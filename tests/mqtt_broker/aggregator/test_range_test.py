"""The devices find the learning rate before round 1, also if the aggregator is killed meanwhile."""

import numpy as np
import pytest

from edgefl.learning.algorithms.range_test import FACTORS, LOSSES, UNTRIED
from edgefl.protocol.wire.tensors import encode_models
from edgefl.simulation.measurement import find_learning_rate
from tests.mqtt_broker.processes import make_toy_weights
from tests.support.numpy_learner.softmax import SoftmaxLearner

RATE = 0.005


@pytest.fixture
def federate_untested(federate):
    """Return a function that makes a toy federation whose devices find the rate."""

    def make(url, **settings):
        options = {"learning_rate": RATE, "epochs": 3}
        return federate(url, algorithm="fedavg", range_test=True, options=options, **settings)

    return make


def find_rate(federation, shards):
    """Return the rate that these clients find in a simulation."""
    initial = make_toy_weights(4, federation.plan.spec.weights)
    found = find_learning_rate(federation.plan, initial, shards, 1, lambda plan: SoftmaxLearner(plan.spec))
    return found.spec.options["learning_rate"]


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_aggregator_finds_the_rate_of_the_simulator(seed, federate_untested, mosquitto_url, toys):
    federation = federate_untested(mosquitto_url, rounds=2)
    shards = {f"pi-{i}": toys.shard(i, 20 + 10 * i) for i in range(2)}
    devices = [federation.device(client_id, shard) for client_id, shard in shards.items()]
    federation.run_aggregator_with_kills(np.random.default_rng(seed), 2, 7)
    assert [device.end() for device in devices] == [0, 0], [device.err for device in devices]
    result = federation.result()
    assert result["learning_rate"] == find_rate(federation, shards) > RATE
    assert (len(result["losses"]), result["dropped"]) == (2, [])


@pytest.mark.slow
def test_device_that_comes_after_the_test_trains_with_the_rate_of_the_others(
    federate_untested, mosquitto_url, toys
):
    federation = federate_untested(mosquitto_url, rounds=2)
    shards = {f"pi-{i}": toys.shard(i, 20 + 10 * i) for i in range(3)}
    early = {client_id: shards[client_id] for client_id in ("pi-0", "pi-1")}
    aggregator = federation.aggregator()
    devices = [federation.device(client_id, shard) for client_id, shard in early.items()]
    aggregator.wait_for("range test over the devices")
    aggregator.popen.kill()
    aggregator.popen.wait()
    late = federation.device("pi-2", shards["pi-2"])
    late.wait_for("joined")
    devices.append(late)
    again = federation.aggregator()
    assert again.end() == 0, again.err
    assert [device.end() for device in devices] == [0] * 3, [device.err for device in devices]
    result = federation.result()
    assert result["learning_rate"] == find_rate(federation, early)
    assert [row["id"] for row in result["clients"]] == ["pi-0", "pi-1", "pi-2"]


@pytest.mark.parametrize("favourite", [0, pytest.param(4, marks=pytest.mark.slow)])
def test_hostile_board_of_four_does_not_move_the_rate_beyond_the_honest_votes(
    favourite, federate_untested, mosquitto_url, toys, puppet
):
    """The rate is one that the three honest boards vote for. The fourth one reports a loss of 0."""
    federation = federate_untested(mosquitto_url, rounds=1, min_clients=4, deadline_s=3.0)
    shards = {f"pi-{i}": toys.shard(i, 40) for i in range(3)}
    hostile = puppet(federation, "pi-3")
    devices = [federation.device(client_id, shard) for client_id, shard in shards.items()]
    aggregator = federation.aggregator()
    task = hostile.next("task")
    assert task.phase == "measure"
    losses = np.full(len(FACTORS), UNTRIED, np.float32)
    losses[favourite] = 0.0
    blob = encode_models({LOSSES: {LOSSES: losses}}, task.codec)
    assert hostile.send(task, blob).outcome == "ok"
    assert aggregator.end() == 0, aggregator.err
    assert [device.end() for device in devices] == [0] * 3, [device.err for device in devices]
    votes = [find_rate(federation, {client_id: shard}) for client_id, shard in shards.items()]
    rate = federation.result()["learning_rate"]
    assert min(votes) <= rate <= max(votes)


@pytest.mark.slow
def test_range_test_without_effect_is_named(federate, mosquitto_url, toys):
    federation = federate(mosquitto_url, algorithm="fedmix", range_test=True, rounds=1)
    aggregator = federation.aggregator()
    devices = [federation.device(f"pi-{i}", toys.shard(i, 20)) for i in range(2)]
    assert aggregator.end() == 0, aggregator.err
    assert [device.end() for device in devices] == [0, 0], [device.err for device in devices]
    assert "range_test has no effect on fedmix" in aggregator.err

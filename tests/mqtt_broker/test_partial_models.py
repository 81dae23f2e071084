"""Broadcasts of a part of the model, or of no model, over a real broker: the bits match the simulator,
including the client states.
"""

import pytest

from edgefl.base.config import FederationConfig
from edgefl.learning.checkpoint import decode_server_state, decode_stored_mixture
from edgefl.simulation.simulate import simulate
from tests.support.numpy_learner.softmax import SoftmaxLearner


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("lg-fedavg", {}),
        ("local", {}),
        ("local", {"schedule": "step", "decay_every": 2}),
        ("ditto", {}),
    ],
    ids=["lg-fedavg", "local", "local-by-schedule", "ditto"],
)
def test_mqtt_and_simulator_give_the_same_bits(algorithm, options, federate, mosquitto_url, toys):
    federation = federate(
        mosquitto_url, algorithm=algorithm, options=options, rounds=3, min_clients=2, seed=5
    )
    shards = {f"pi-{i}": toys.shard(i, 20 + 10 * i) for i in range(2)}
    aggregator = federation.aggregator("--json")
    devices = {client_id: federation.device(client_id, shard) for client_id, shard in shards.items()}
    assert aggregator.end() == 0, aggregator.err
    assert [device.end() for device in devices.values()] == [0, 0]

    config = FederationConfig(rounds=3, min_clients=2, seed=5)
    end = simulate(
        federation.plan,
        toys.weights(),
        shards,
        config,
        open_learner=lambda plan: SoftmaxLearner(federation.plan.spec),
    )
    state = decode_server_state((federation.out / "server_state.safetensors").read_bytes())
    assert set(state.models) == set(end.state.models)
    for model, weights in end.state.models.items():
        assert {name: array.tobytes() for name, array in state.models[model].items()} == {
            n: a.tobytes() for n, a in weights.items()
        }
    for client_id, mixture in end.mixtures.items():
        found = decode_stored_mixture(
            (federation.directory / f"state-{client_id}" / "mixture.safetensors").read_bytes()
        ).mixture
        assert {name: array.tobytes() for name, array in found.weights.items()} == {
            n: a.tobytes() for n, a in mixture.weights.items()
        }
    rows = {row["id"]: row for row in federation.result()["clients"]}
    assert all(
        rows[client_id]["accuracy_mixture"] == end.metrics[client_id]["accuracy_mixture"]
        for client_id in shards
    )

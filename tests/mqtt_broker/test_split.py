"""An aggregator in several processes: the bits of one, and no device that sees a difference."""

from edgefl.checkpoint import decode_mixture, decode_server_state
from edgefl.config import FederationConfig
from edgefl.learner.numpy_softmax import SoftmaxLearner
from edgefl.simulate import simulate


def test_two_workers_give_the_bits_of_the_simulator(federate, mosquitto_url, toys):
    federation = federate(mosquitto_url, rounds=4, min_clients=3, clients_per_round=2, seed=5)
    shards = {f"pi-{i}": toys.shard(i, 20 + 10 * i) for i in range(3)}
    aggregator = federation.aggregator("--workers", 2)
    devices = {client_id: federation.device(client_id, shard) for client_id, shard in shards.items()}
    assert aggregator.end() == 0, aggregator.said
    assert [device.end() for device in devices.values()] == [0, 0, 0]
    check_bits(federation, toys, shards, {"rounds": 4, "min_clients": 3, "clients_per_round": 2, "seed": 5})
    assert not (federation.out / "spool").exists() or not list((federation.out / "spool").glob("*/*"))


def check_bits(federation, toys, shards, settings):
    config = FederationConfig(**settings)
    learner = SoftmaxLearner(federation.plan.spec)
    end = simulate(federation.plan, toys.weights(more=federation.plan.spec.weights), shards, config, learner=learner)
    state = decode_server_state((federation.out / "server_state.safetensors").read_bytes())
    assert (state.round, state.phase) == (end.state.round, end.state.phase)
    for model, weights in end.state.models.items():
        for name, array in weights.items():
            assert state.models[model][name].tobytes() == array.tobytes(), f"{model}/{name}"
    for client_id, mixture in end.mixtures.items():
        found = decode_mixture((federation.directory / f"state-{client_id}" / "mixture.safetensors").read_bytes())
        assert all(found.weights[name].tobytes() == array.tobytes() for name, array in mixture.weights.items())
    assert [row["id"] for row in federation.result()["clients"]] == sorted(shards)
    assert federation.result()["dropped"] == []

"""Algorithms of the simulator run on devices unchanged: with several models, with phases and with private
state, over real MQTT.

A listener receives every message. None of them contains a private array of a client.
"""

import pytest

from devices.store import DeviceStore
from edgefl.base.config import FederationConfig
from edgefl.learning.algorithms import PHASE_CLUSTER
from edgefl.learning.checkpoint import (
    decode_server_state,
    decode_stored_mixture,
    encode_server_state,
)
from edgefl.protocol.wire.tensors import decode_weights
from edgefl.protocol.wire.topics import parse_topic
from edgefl.simulation.simulate import Checkpoint, simulate
from tests.support.numpy_learner.softmax import SoftmaxLearner

IDS = ("pi-0", "pi-1", "pi-2")
OPTIONS = {
    "aem": {"num_experts": 2, "local_epochs": 3, "gate_epochs": 3},
    "clustered": {"learning_rate": 0.1},
    "ditto": {},
    "fedap": {"pretrain_rounds": 1, "num_clusters": 2, "decay_rounds": 2},
    "fedem": {"num_experts": 2},
    "fedmix": {"num_experts": 2, "gate_epochs": 2},
    "fedmix-permutation": {"num_experts": 2},
    "lg-fedavg": {},
}
ROUNDS = 4


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_devices_match_the_simulator_and_publish_nothing_private(name, federate, mosquitto_url, toys, listen):
    federation = federate(
        mosquitto_url, rounds=ROUNDS, min_clients=3, seed=7, algorithm=name, options=OPTIONS[name]
    )
    listener = listen(federation)
    shards = {client_id: toys.shard(i, 20 + 10 * i) for i, client_id in enumerate(IDS)}
    aggregator = federation.aggregator()
    devices = [federation.device(client_id, shard) for client_id, shard in shards.items()]
    assert aggregator.end() == 0, aggregator.err
    assert [device.end() for device in devices] == [0, 0, 0], [device.err for device in devices]
    messages = listener.wait_for_phase("done")

    config = FederationConfig(rounds=ROUNDS, min_clients=3, seed=7)
    states = {}
    phases = []
    end = simulate(
        federation.plan,
        toys.weights(more=federation.plan.spec.weights),
        shards,
        config,
        open_learner=lambda plan: SoftmaxLearner(federation.plan.spec),
        checkpoint=Checkpoint(clients=states),
        progress=lambda state, record: phases.append(record.phase),
    )
    state = decode_server_state((federation.out / "server_state.safetensors").read_bytes())
    assert encode_server_state(state) == encode_server_state(end.state)
    assert (PHASE_CLUSTER in phases) == (name in ("fedap", "clustered"))
    private = {}
    for client_id in IDS:
        directory = federation.directory / f"state-{client_id}"
        mixture = decode_stored_mixture((directory / "mixture.safetensors").read_bytes()).mixture
        assert {n: a.tobytes() for n, a in mixture.weights.items()} == {
            n: a.tobytes() for n, a in end.mixtures[client_id].weights.items()
        }
        store = DeviceStore(directory, client_id)
        found = store.read_client_state(store.read_progress().session)
        store.close()
        assert {n: a.tobytes() for n, a in found.arrays.items()} == {
            n: a.tobytes() for n, a in states[client_id].arrays.items()
        }
        private |= {f"{client_id} {n}": a.tobytes() for n, a in {**mixture.weights, **found.arrays}.items()}
        private |= {
            f"{client_id} sample {i}": sample.tobytes()
            for i, sample in enumerate(shards[client_id].x_train[:5])
        }
    public = {array.tobytes() for weights in list_public_models(federation) for array in weights.values()}
    content = b"".join(join_chunks(messages))
    leaked = [
        n
        for n, raw in private.items()
        if len(raw) >= 12 and any(raw) and raw not in public and raw in content
    ]
    assert not leaked


def join_chunks(messages):
    """Return all blobs and updates in these messages, with their chunks joined."""
    parts = {}
    for message in messages:
        address = parse_topic(message.topic)
        if address.kind in ("blob", "chunk"):
            parts.setdefault(address.sha256, {})[address.index] = message.payload
    return [b"".join(found[i] for i in sorted(found)) for found in parts.values()]


def list_public_models(federation):
    """Return the initial and the final models of the aggregator."""
    state = decode_server_state((federation.out / "server_state.safetensors").read_bytes())
    initial = (federation.directory / "plan" / "initial.safetensors").read_bytes()
    return [*state.models.values(), decode_weights(initial, tuple(federation.plan.spec.weights), "initial")]

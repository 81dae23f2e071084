"""Secure aggregation over MQTT: the simulator's bits, whoever drops out and when; and no update on any topic."""

import json

import numpy as np
import pytest
from safetensors.numpy import load

from edgefl.checkpoint import decode_mixture, decode_server_state, encode_server_state
from edgefl.config import FederationConfig, PrivacyConfig
from edgefl.learner.numpy_softmax import SoftmaxLearner
from edgefl.security.vectors import shapes_of, words_of
from edgefl.simulate import simulate

TABLE = "[privacy]\nsecure_aggregation = true\n"
SECURE = PrivacyConfig(secure_aggregation=True)


def simulated(federation, toys, shards, **settings):
    config = FederationConfig(rounds=federation.settings["rounds"], seed=5, privacy=SECURE, **settings)
    initial = toys.weights(more=federation.plan.spec.weights)
    return simulate(federation.plan, initial, shards, config, learner=SoftmaxLearner(federation.plan.spec))


def state_of(federation):
    return decode_server_state((federation.out / "server_state.safetensors").read_bytes())


def in_the_clear(update, num_samples):
    """Return byte strings of which each would show some of an update: its tensors, and its words without masks."""
    deltas = {}
    for name, array in load(update).items():
        model, _, weight = name.partition("/")
        deltas.setdefault(model, {})[weight] = array
    words = words_of(deltas, num_samples, shapes_of(deltas))
    arrays = [array for weights in deltas.values() for array in weights.values()]
    return [array.tobytes()[:16] for array in arrays if np.count_nonzero(array[:4]) > 3] + [words[i : i + 2].tobytes() for i in (0, 4, 8)]


@pytest.mark.parametrize(("algorithm", "options"), [("pfl-mfe", {})])
def test_the_bits_are_the_simulators_and_no_update_is_on_any_topic(algorithm, options, federate, mosquitto_url, toys, listen):
    federation = federate(mosquitto_url, rounds=2, min_clients=3, seed=5, quorum=1.0, tables=TABLE, algorithm=algorithm, options=options)
    heard = listen(federation)
    shards = {f"pi-{i}": toys.shard(i, 20 + 10 * i) for i in range(3)}
    aggregator = federation.aggregator()
    devices = {client_id: federation.device(client_id, shard) for client_id, shard in shards.items()}
    assert aggregator.end() == 0, aggregator.said
    assert [device.end() for device in devices.values()] == [0, 0, 0], [device.said for device in devices.values()]
    end = simulated(federation, toys, shards)
    assert encode_server_state(state_of(federation)) == encode_server_state(end.state)

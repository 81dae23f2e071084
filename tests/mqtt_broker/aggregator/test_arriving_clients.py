"""A client that arrives after the clustering, over a real broker: its first update assigns it to a
cluster, as in the simulator.
"""

import numpy as np

from edgefl.base.rng import derive_rng
from edgefl.base.types import Update
from edgefl.learning.algorithms import make_algorithm
from edgefl.protocol.wire.tensors import encode_models

BIAS_DELTAS = {"a": [1, 0, -1], "b": [2, 0, -1], "c": [-1, 0, 1], "late": [-3, 1, 2]}
"""The change of each client in its first round: a and b agree, c and the late client contradict them."""


def make_delta(toys, client_id):
    zeros = {name: np.zeros_like(array) for name, array in toys.weights().items()}
    return {"global": {**zeros, "head/bias": np.array(BIAS_DELTAS[client_id], np.float32)}}


def test_first_update_assigns_a_new_client_to_a_cluster(federate, mosquitto_url, toys, puppet, listen):
    federation = federate(mosquitto_url, rounds=9, quorum=1.0, min_clients=3, algorithm="clustered")
    federation.aggregator()
    clients = {client_id: puppet(federation, client_id) for client_id in "abc"}
    server = make_algorithm("clustered", None, {})
    state = server.init(toys.weights(), derive_rng(1, 0, "init"))

    def play_round(senders):
        nonlocal state
        tasks = {client_id: clients[client_id].next("task") for client_id in senders}
        for client_id, task in tasks.items():
            assert clients[client_id].send(task, encode_models(make_delta(toys, client_id))).outcome == "ok"
        expected = {client_id: server.broadcast(state, client_id).phase for client_id in senders}
        assert {client_id: task.phase for client_id, task in tasks.items()} == expected
        state = server.aggregate(
            state,
            [
                Update(
                    client_id=c,
                    round=state.round,
                    num_samples=10,
                    deltas=make_delta(toys, c),
                    metrics={"loss": 1.0},
                )
                for c in senders
            ],
        )
        return tasks

    first = play_round("abc")
    second = {client_id: clients[client_id].next("task") for client_id in "abc"}
    listener = listen(federation, federation.topics.format_device("late", "status"))
    clients["late"] = puppet(federation, "late")
    listener.wait_for_topic("status")
    for client_id, task in second.items():
        assert clients[client_id].send(task, encode_models(make_delta(toys, client_id))).outcome == "ok"
    state = server.aggregate(
        state,
        [
            Update(
                client_id=c,
                round=state.round,
                num_samples=10,
                deltas=make_delta(toys, c),
                metrics={"loss": 1.0},
            )
            for c in "abc"
        ],
    )
    third = play_round(("a", "b", "c", "late"))
    assert third["late"].phase == "cluster"
    assert third["late"].models == first["a"].models, "it begins where all began"
    fourth = play_round(("a", "b", "c", "late"))
    assert fourth["late"].models == fourth["c"].models != fourth["a"].models
    assert {task.phase for task in fourth.values()} == {"federate"}

"""Cluster telemetry: with known values, within its limits, suppressed with privacy, and in a real
federation.
"""

import json

import numpy as np
import pytest

from edgefl.base.config import parse_config
from edgefl.base.types import ServerState, Update
from edgefl.learning.algorithms.base import read_assignments, with_assignments
from edgefl.learning.algorithms.clustering.cluster_models import LastCut
from edgefl.protocol.wire.messages import Clusters
from edgefl.protocol.wire.strict_json import decode_json, encode_json
from edgefl.watch.monitor.view import FederationView, snapshot
from mqtt_broker.aggregator.cluster_telemetry import ClusterTelemetry, find_expert
from mqtt_broker.aggregator.results import load_state
from tests.support.numpy_learner.softmax import softmax_spec

TOML = '[federation]\nname = "f"\nrounds = 3\n'


def make_update(client_id="pi-1", models=("global",), **metrics):
    return Update(
        client_id=client_id, round=1, num_samples=10, deltas={name: {} for name in models}, metrics=metrics
    )


def make_telemetry(more="", algorithm="ifca"):
    return ClusterTelemetry(
        parse_config(TOML + more), softmax_spec(algorithm, inputs=4, features=4, classes=3)
    )


def make_clustered_state(n, clusters=2):
    cut = LastCut(
        round=3,
        height=0.25,
        similarity=np.full((n, n), -0.123, np.float32),
        merges=np.array([[i, n + i, 0.123456, 2] for i in range(n - 1)], np.float32),
    )
    model = {
        "initial": {
            "fc1/kernel": np.zeros((2, 2), np.float32),
            "conv/kernel": np.zeros((1, 1, 1, 1), np.float32),
        }
    }
    state = ServerState(round=4, phase="federate", models=model).with_record(cut)
    return with_assignments(state, {f"c{i}" * 20: i % clusters for i in range(n)})


def test_expert_of_an_update_is_found():
    assert find_expert(make_update(models=("expert2",))) == 2
    assert find_expert(make_update(models=("expert0", "expert1"))) is None
    assert find_expert(make_update()) is None
    assert (
        find_expert(
            make_update(models=("expert0", "expert1"), **{"q/0": 0.2, "q/1": 0.7, "q/2": float("nan")})
        )
        == 1
    )
    assert find_expert(make_update(models=("expert0",), **{"q/x": 1.0})) == 0


def test_experts_are_published_until_the_next_observation():
    clusters = make_telemetry()
    state = ServerState(round=2, phase="federate", models={})
    assert clusters.make_message("s", 1, state) is None
    updates = [make_update("b", ("expert1",)), make_update("a", ("expert0",))]
    assert list(clusters.record_experts(updates)) == updates
    assert dict(clusters.make_message("s", 1, state).assignment) == {"a": 0, "b": 1}
    list(clusters.record_experts([make_update("b", ("expert2",))]))
    message = clusters.make_message("s", 2, state)
    assert (message.round, dict(message.assignment), message.matrix, message.layer) == (
        2,
        {"a": 0, "b": 2},
        (),
        "",
    )


@pytest.mark.parametrize(
    "more",
    [
        "[privacy]\nsecure_aggregation = true\n",
        "[privacy]\nclip = 1.0\nnoise_multiplier = 1.0\npopulation = 10\ndelta = 0.01\n",
    ],
)
def test_privacy_suppresses_cluster_telemetry(more):
    clusters = make_telemetry(more)
    list(clusters.record_experts([make_update("a", ("expert1",))]))
    assert clusters.make_message("s", 1, make_clustered_state(3)) is None


def test_largest_message_fits_and_more_clients_omit_the_matrix():
    message = make_telemetry(algorithm="clustered").make_message("s", 3, make_clustered_state(100))
    payload = encode_json(message)
    assert len(payload) < 200_000
    assert decode_json(Clusters, payload) == message
    assert (message.layer, len(message.clients), message.matrix[0][1], message.linkage[1]) == (
        "fc1",
        100,
        -0.123,
        (1, 101, 0.123456, 2),
    )
    assert message.cut == 0.25
    many = with_assignments(
        ServerState(round=2, phase="federate", models={}), {f"c{i}": 0 for i in range(1024)}
    )
    assert make_telemetry().make_message("s", 1, many).matrix == ()
    assert (
        make_telemetry().make_message(
            "s",
            1,
            with_assignments(
                ServerState(round=2, phase="federate", models={}), {f"c{i}": 0 for i in range(1025)}
            ),
        )
        is None
    )


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("clustered", {"cut": "auto"}),
        ("fedap", {"pretrain_rounds": 1}),
        pytest.param("ifca", {}, marks=pytest.mark.slow),
    ],
)
def test_federation_publishes_its_clusters(algorithm, options, mosquitto_url, federate, toys, listen):
    federation = federate(mosquitto_url, algorithm=algorithm, options=options, rounds=4, min_clients=3)
    listener = listen(federation)
    clients = ("one", "two", "three")
    devices = [federation.device(name, toys.shard(i)) for i, name in enumerate(clients)]
    aggregator = federation.aggregator()
    assert aggregator.end() == 0, aggregator.err
    assert [device.end() for device in devices] == [0, 0, 0]
    cluster_messages = [
        message for message in listener.wait_for_phase("done") if message.topic == federation.topics.clusters
    ]
    state = load_state(federation.out)
    messages = [decode_json(Clusters, message.payload) for message in cluster_messages]
    first = {"clustered": 1, "fedap": 2, "ifca": 1}[algorithm]
    assert [message.round for message in messages] == list(range(first, 5))
    assert set(messages[-1].assignment) == set(clients)
    assert {message.session for message in messages} == {federation.result()["session"]}
    view = FederationView(federation.name)
    for message in listener.messages:
        view.take(message.topic, message.payload, 1.0)
    found = snapshot(view, 1.0)["clusters"]
    assert len(found["rounds"]) == len(messages)
    if algorithm == "ifca":
        assert found["similarity"] is None
        return
    assert found["rounds"][-1]["assignment"] == read_assignments(state)
    cut = state.read_record(LastCut)
    similarity = json.loads(json.dumps(found["similarity"]))
    assert (similarity["round"], similarity["clients"], similarity["cut"]) == (
        first,
        sorted(clients),
        pytest.approx(cut.height),
    )
    assert cut.round == first
    assert (
        similarity["layer"] == {"clustered": "head", "fedap": "all"}[algorithm]
        or "head" in similarity["layer"]
    )
    np.testing.assert_allclose(similarity["matrix"], cut.similarity, atol=5e-4)
    assert np.allclose(np.diag(similarity["matrix"]), 1)
    assert [row[3] for row in similarity["linkage"]] == [2, 3]

"""What monitors are told of clusters: by hand, within its limits, not where it is nobody's business, and in a
real federation.
"""

import json

import numpy as np
import pytest

from edgefl.algorithms.base import read_assignments
from edgefl.algorithms.clustering.cluster_models import read_comparison
from edgefl.config import parse_config
from edgefl.monitor.view import FederationView, snapshot
from edgefl.types import ServerState, Update
from edgefl.wire.messages import Clusters
from edgefl.wire.strict_json import decode_json, encode_json
from mqtt_broker.aggregator.cluster_telemetry import ClusterTelemetry, find_expert
from mqtt_broker.aggregator.results import load_state
from tests.support.numpy_learner.softmax import softmax_spec

TOML = '[federation]\nname = "f"\nrounds = 3\n'


def update(client_id="pi-1", models=("global",), **metrics):
    return Update(client_id, 1, 10, {name: {} for name in models}, metrics)


def told(more="", algorithm="ifca"):
    return ClusterTelemetry(
        parse_config(TOML + more), softmax_spec(algorithm, inputs=4, features=4, classes=3)
    )


def similar(n, clusters=2):
    placed = {f"cluster/{f'c{i}' * 20}": float(i % clusters) for i in range(n)}
    kept = {
        "matrix": np.full((n, n), -0.123, np.float32),
        "linkage": np.array([[i, n + i, 0.123456, 2] for i in range(n - 1)], np.float32),
    }
    model = {
        "initial": {
            "fc1/kernel": np.zeros((2, 2), np.float32),
            "conv/kernel": np.zeros((1, 1, 1, 1), np.float32),
        }
    }
    return ServerState(
        4, "federate", model, {"similarity": kept}, {**placed, "cut/at": 0.25, "cut/round": 3.0}
    )


def test_the_expert_of_an_update_by_hand():
    assert find_expert(update(models=("expert2",))) == 2
    assert find_expert(update(models=("expert0", "expert1"))) is None
    assert find_expert(update()) is None
    assert (
        find_expert(update(models=("expert0", "expert1"), **{"q/0": 0.2, "q/1": 0.7, "q/2": float("nan")}))
        == 1
    )
    assert find_expert(update(models=("expert0",), **{"q/x": 1.0})) == 0


def test_what_was_seen_is_told_until_it_is_seen_again():
    clusters = told()
    state = ServerState(2, "federate", {})
    assert clusters.make_message("s", 1, state) is None
    seen = [update("b", ("expert1",)), update("a", ("expert0",))]
    assert list(clusters.record_experts(seen)) == seen
    assert dict(clusters.make_message("s", 1, state).assignment) == {"a": 0, "b": 1}
    list(clusters.record_experts([update("b", ("expert2",))]))
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
def test_with_privacy_nothing_is_told(more):
    clusters = told(more)
    list(clusters.record_experts([update("a", ("expert1",))]))
    assert clusters.make_message("s", 1, similar(3)) is None


def test_the_largest_message_fits_and_more_clients_have_no_matrix():
    message = told(algorithm="clustered").make_message("s", 3, similar(100))
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
    many = ServerState(2, "federate", {}, {}, {f"cluster/c{i}": 0.0 for i in range(1024)})
    assert told().make_message("s", 1, many).matrix == ()
    assert (
        told().make_message(
            "s", 1, ServerState(2, "federate", {}, {}, {f"cluster/c{i}": 0.0 for i in range(1025)})
        )
        is None
    )


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [("clustered", {"cut": "auto"}), ("fedap", {"pretrain_rounds": 1}), ("ifca", {})],
)
def test_a_federation_tells_its_clusters(algorithm, options, mosquitto_url, federate, toys, listen):
    federation = federate(mosquitto_url, algorithm=algorithm, options=options, rounds=4, min_clients=3)
    ear = listen(federation)
    clients = ("one", "two", "three")
    devices = [federation.device(name, toys.shard(i)) for i, name in enumerate(clients)]
    aggregator = federation.aggregator()
    assert aggregator.end() == 0, aggregator.said
    assert [device.end() for device in devices] == [0, 0, 0]
    heard = [message for message in ear.until_phase("done") if message.topic == federation.topics.clusters]
    state = load_state(federation.out)
    messages = [decode_json(Clusters, message.payload) for message in heard]
    first = {"clustered": 1, "fedap": 2, "ifca": 1}[algorithm]
    assert [message.round for message in messages] == list(range(first, 5))
    assert set(messages[-1].assignment) == set(clients)
    assert {message.session for message in messages} == {federation.result()["session"]}
    view = FederationView(federation.name)
    for message in ear.messages:
        view.take(message.topic, message.payload, 1.0)
    found = snapshot(view, 1.0)["clusters"]
    assert len(found["rounds"]) == len(messages)
    if algorithm == "ifca":
        assert found["similarity"] is None
        return
    assert found["rounds"][-1]["assignment"] == read_assignments(state)
    round, kept, cut = read_comparison(state)
    similarity = json.loads(json.dumps(found["similarity"]))
    assert (similarity["round"], similarity["clients"], similarity["cut"]) == (
        first,
        sorted(clients),
        pytest.approx(cut),
    )
    assert round == first
    assert (
        similarity["layer"] == {"clustered": "head", "fedap": "all"}[algorithm]
        or "head" in similarity["layer"]
    )
    np.testing.assert_allclose(similarity["matrix"], kept["matrix"], atol=5e-4)
    assert np.allclose(np.diag(similarity["matrix"]), 1)
    assert [row[3] for row in similarity["linkage"]] == [2, 3]

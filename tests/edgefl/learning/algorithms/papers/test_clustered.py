"""Clustered federated learning: rounds of two clients by hand, then the clusters, then the laws."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.base.errors import ConfigError
from edgefl.base.rng import derive_rng
from edgefl.base.types import Broadcast, ClientState, ServerState, Shard, Update
from edgefl.learning.algorithms import (
    PHASE_CLUSTER,
    PHASE_FEDERATE,
    PHASE_PERSONALIZE,
    make_algorithm,
    read_assignments,
)
from edgefl.learning.algorithms.check import check_algorithm
from edgefl.learning.algorithms.clustering.cluster_models import explain_clusters
from edgefl.learning.algorithms.papers.clustered import mix_with_cluster
from edgefl.learning.checkpoint import decode_server_state, encode_server_state
from tests.support.numpy_learner.softmax import SoftmaxLearner, softmax_spec

FOUR_VECTORS = {"a": [1, 0], "b": [0.98, 0.199], "c": [0.6, 0.8], "d": [0, 1]}
"""Cosines: a with b .98, c with d .8, b with c .747."""
PAPER_OPTIONS = {"compare": "weights", "threshold": 0.9}
"""The options of the paper."""


def to_float32(*values):
    return np.array(values, np.float32)


def make_update(client_id, round, n, **deltas):
    return Update(
        client_id=client_id,
        round=round,
        num_samples=n,
        deltas={"global": {name.replace("_", "/"): np.asarray(d, np.float32) for name, d in deltas.items()}},
    )


def cluster_clients(options, deltas=FOUR_VECTORS, counts=None):
    """Return (algorithm, state) after clustering with the options of the paper.

    The clients moved a dense kernel from zero to these vectors.
    """
    algorithm = make_algorithm("clustered", None, {**PAPER_OPTIONS, **options})
    state = algorithm.init({"fc/kernel": np.zeros((1, 2), np.float32)}, derive_rng(1, 0))
    updates = [make_update(c, 1, (counts or {}).get(c, 1), fc_kernel=[d]) for c, d in sorted(deltas.items())]
    return algorithm, algorithm.aggregate(state, updates)


def make_two_clients():
    """Return one sample (1, 0) of class 0, and three samples (0, 1) of class 1.

    From kernel and bias at zero, one step at rate 1 is half an error.
    """
    x = np.eye(2, dtype=np.float32)
    y = np.array([0, 1])
    return {
        "a": Shard(x_train=x[:1], y_train=y[:1], x_test=x, y_test=y, num_classes=2),
        "b": Shard(x_train=x[[1, 1, 1]], y_train=y[[1, 1, 1]], x_test=x, y_test=y, num_classes=2),
    }


INITIAL = {
    "trunk/kernel": np.eye(2, dtype=np.float32),
    "head/kernel": np.zeros((2, 2), np.float32),
    "head/bias": np.zeros(2, np.float32),
}


def run_round(algorithm, state, shards, states):
    results = [
        algorithm.local_update(
            algorithm.broadcast(state, c),
            states.get(c, ClientState()),
            shards[c],
            c,
            derive_rng(1, state.round, c),
        )
        for c in sorted(shards)
    ]
    states.update({item.client_id: client_state for item, client_state in results})
    return algorithm.aggregate(state, [item for item, _ in results])


def make_learner(shards):
    shard = next(iter(shards.values()))
    return SoftmaxLearner(
        softmax_spec(
            "clustered",
            inputs=shard.x_train.shape[1],
            features=shard.x_train.shape[1],
            classes=shard.num_classes,
        )
    )


def test_two_clients_one_round_by_hand():
    """Client a continues from half way to the mean.

    The kernels are [.5, -.5], [0, 0] (n 1) and [0, 0], [-.5, .5] (n 3). Their mean is [.125, -.125], [-.375,
    .375].
    """
    shards = make_two_clients()
    states = {}
    algorithm = make_algorithm(
        "clustered", make_learner(shards), {"clustering": False, "epochs": 1, "learning_rate": 1.0}
    )
    state = run_round(algorithm, algorithm.init(INITIAL, derive_rng(1, 0)), shards, states)
    np.testing.assert_allclose(states["a"].arrays["head/kernel"], [[0.5, -0.5], [0, 0]], atol=1e-6)
    np.testing.assert_allclose(
        state.models["global"]["head/kernel"], [[0.125, -0.125], [-0.375, 0.375]], atol=1e-6
    )
    np.testing.assert_allclose(state.models["global"]["head/bias"], [-0.25, 0.25], atol=1e-6)
    last = algorithm.broadcast(replace(state, phase=PHASE_PERSONALIZE), "a")
    mixture, _ = algorithm.personalize(last, states["a"], shards["a"], derive_rng(1, 2, "a"))
    np.testing.assert_allclose(
        mixture.weights["head/kernel"], [[0.3125, -0.3125], [-0.1875, 0.1875]], atol=1e-6
    )
    np.testing.assert_allclose(mixture.weights["head/bias"], [0.125, -0.125], atol=1e-6)
    np.testing.assert_array_equal(
        mixture.peers["federated"].weights["head/kernel"], state.models["global"]["head/kernel"]
    )


@pytest.mark.parametrize(("threshold", "clusters"), [(0.51, {"a": 0, "b": 1}), (0.49, {"a": 0, "b": 0})])
def test_two_clients_clustered_by_hand(threshold, clusters):
    """With the trunk (1, 0, 0, 1) the models' product is 2 - .5, their squares 3: the cosine is .5."""
    shards = make_two_clients()
    states = {}
    options = {"epochs": 1, "learning_rate": 1.0, "compare": "weights", "threshold": threshold}
    algorithm = make_algorithm("clustered", make_learner(shards), options)
    state = run_round(algorithm, algorithm.init(INITIAL, derive_rng(1, 0)), shards, states)
    assert read_assignments(state) == clusters
    assert state.phase == PHASE_FEDERATE
    expected = (
        {0: [[0.5, -0.5], [0, 0]], 1: [[0, 0], [-0.5, 0.5]]}
        if clusters["b"]
        else {0: [[0.125, -0.125], [-0.375, 0.375]]}
    )
    for cluster, kernel in expected.items():
        np.testing.assert_allclose(state.models[f"cluster{cluster}"]["head/kernel"], kernel, atol=1e-6)
    assert states["a"] == ClientState(), "the first round in a cluster starts from its model"


def test_mixing_by_hand():
    """Oracle: h (4, 0) and (0, 8) with n 1 and 3, lambda .25: h_c (1, 6), h_1 [1.75, 4.5]."""
    algorithm = make_algorithm("clustered", None, {"clustering": False})
    state = algorithm.init({"fc/kernel": np.zeros((1, 2), np.float32)}, derive_rng(1, 0))
    after = algorithm.aggregate(
        state, [make_update("a", 1, 1, fc_kernel=[[4, 0]]), make_update("b", 1, 3, fc_kernel=[[0, 8]])]
    )
    assert after.models["global"]["fc/kernel"].tolist() == [[1, 6]]
    assert mix_with_cluster({"fc/kernel": to_float32([4, 0])}, after.models["global"], 0.25)[
        "fc/kernel"
    ].tolist() == [[1.75, 4.5]]


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=9), st.floats(0, 1))
def test_mixing_equal_weights_changes_no_bit(values, mixing):
    weights = {"w": to_float32(*values)}
    np.testing.assert_array_equal(mix_with_cluster(weights, weights, mixing)["w"], weights["w"])


@pytest.mark.parametrize(
    ("options", "clusters"),
    [
        ({"threshold": 0.9}, [0, 0, 1, 2]),
        ({"threshold": 0.75}, [0, 0, 1, 1]),
        ({"threshold": 0.4}, [0, 0, 1, 1]),
        ({"threshold": 0.38}, [0, 0, 0, 0]),
        ({"threshold": 0.0}, [0, 0, 0, 0]),
        ({"cut": "auto"}, [0, 0, 1, 1]),
    ],
)
def test_clients_are_clustered_by_the_cosine_of_their_weights(options, clusters):
    """The last merge is at the mean of .6, 0, .747 and .199, which is .387.

    Single linkage would merge at .747, and complete linkage at 0.
    """
    _, state = cluster_clients(options)
    assert list(read_assignments(state).values()) == clusters


def test_deltas_separate_clients_whose_weights_are_similar():
    """From (50, 50) the four vectors differ by less than a degree. 1 - .9 is far above the last merge."""
    for compare, clusters in (("weights", [0, 0, 0, 0]), ("deltas", [0, 0, 1, 2])):
        algorithm = make_algorithm("clustered", None, {"compare": compare, "threshold": 0.9})
        state = algorithm.init({"fc/kernel": np.full((1, 2), 50, np.float32)}, derive_rng(1, 0))
        after = algorithm.aggregate(
            state, [make_update(c, 1, 1, fc_kernel=[d]) for c, d in FOUR_VECTORS.items()]
        )
        assert list(read_assignments(after).values()) == clusters


def run_clustering_round(options, start, deltas):
    """Return the state after clients moved a dense kernel from `start` by these vectors."""
    algorithm = make_algorithm("clustered", None, options)
    state = algorithm.init({"fc/kernel": np.asarray([start], np.float32)}, derive_rng(1, 0))
    return algorithm.aggregate(
        state, [make_update(c, 1, 1, fc_kernel=[d]) for c, d in sorted(deltas.items())]
    )


def test_two_tasks_are_two_clusters_by_default():
    """The deltas of a and b have the cosine .49, as do the deltas of c and d.

    Between the pairs, the mean is below 0. Equal initial weights hide it.
    """
    deltas = {"a": [1.0, 0.8], "b": [1.0, -0.4], "c": [-1.0, 0.4], "d": [-1.0, -0.8]}
    for start in ([0, 0], [50, 50]):
        assert list(read_assignments(run_clustering_round({}, start, deltas)).values()) == [0, 0, 1, 1]


@pytest.mark.parametrize("compare", ["weights", "deltas"])
def test_the_automatic_cut_never_joins_clients_that_disagree(compare):
    """The cosines are 1 for a and b, 1 for c and d, and -1 between the pairs.

    Clients e and f, with a cosine of -1, stay separate.
    """
    pairs = {"a": [1, 0], "b": [2, 0], "c": [-1, 0], "d": [-3, 0]}
    assert list(
        read_assignments(run_clustering_round({"cut": "auto", "compare": compare}, [0, 0], pairs)).values()
    ) == [0, 0, 1, 1]
    opposed = {"e": [1, 0], "f": [-1, 0]}
    assert list(
        read_assignments(run_clustering_round({"cut": "auto", "compare": compare}, [0, 0], opposed)).values()
    ) == [0, 1]


def test_only_dense_layers_are_compared():
    algorithm = make_algorithm("clustered", None, PAPER_OPTIONS)
    start = {
        "conv/kernel": np.ones((1, 1, 1, 2), np.float32),
        "fc/kernel": np.ones((2, 1), np.float32),
        "fc/bias": np.zeros(1, np.float32),
    }
    state = algorithm.init(start, derive_rng(1, 0))
    far = [
        make_update(c, 1, 1, conv_kernel=[[[[d, -d]]]], fc_kernel=[[1], [1]], fc_bias=[0])
        for c, d in (("a", 9), ("b", -9))
    ]
    assert read_assignments(algorithm.aggregate(state, far)) == {"a": 0, "b": 0}
    separated = [
        make_update(c, 1, 1, conv_kernel=[[[[0, 0]]]], fc_kernel=[[0], [d]], fc_bias=[0])
        for c, d in (("a", 9), ("b", -9))
    ]
    assert read_assignments(algorithm.aggregate(state, separated)) == {"a": 0, "b": 1}


def test_cluster_model_changes_only_by_updates_of_its_clients():
    algorithm, state = cluster_clients({}, counts={"b": 3})
    np.testing.assert_allclose(state.models["cluster0"]["fc/kernel"], [[0.985, 0.14925]], atol=1e-6)
    after = algorithm.aggregate(
        state, [make_update("a", 2, 1, fc_kernel=[[1, 1]]), make_update("d", 2, 1, fc_kernel=[[0, 5]])]
    )
    np.testing.assert_allclose(after.models["cluster0"]["fc/kernel"], [[1.985, 1.14925]], atol=1e-6)
    np.testing.assert_array_equal(
        after.models["cluster1"]["fc/kernel"], state.models["cluster1"]["fc/kernel"]
    )
    np.testing.assert_allclose(after.models["cluster2"]["fc/kernel"], [[0, 6]], atol=1e-6)


def test_client_receives_only_its_cluster_model():
    algorithm, state = cluster_clients({})
    for client_id, cluster in {"a": 0, "b": 0, "c": 1, "d": 2}.items():
        sent = algorithm.broadcast(state, client_id)
        assert list(sent.models) == ["global"]
        np.testing.assert_array_equal(
            sent.models["global"]["fc/kernel"], state.models[f"cluster{cluster}"]["fc/kernel"]
        )


@pytest.mark.parametrize("start", [[0, 0], [50, 50]])
def test_late_client_is_assigned_by_its_first_update(start):
    """Deltas (1, 0) and (1, .2) are the largest cluster, and (-1, 0) is the other one.

    The late client's delta (-9, 1) is similar to the second.
    """
    algorithm = make_algorithm("clustered", None, {})
    deltas = {"a": [1, 0], "b": [1, 0.2], "c": [-1, 0]}
    state = run_clustering_round({}, start, deltas)
    assert read_assignments(state) == {"a": 0, "b": 0, "c": 1}
    sent = algorithm.broadcast(state, "late")
    np.testing.assert_array_equal(sent.models["global"]["fc/kernel"], [start], "it begins where all began")
    assert (sent.round, sent.phase) == (2, PHASE_CLUSTER)
    after = algorithm.aggregate(
        state, [make_update("a", 2, 1, fc_kernel=[[1, 1]]), make_update("late", 2, 1, fc_kernel=[[-9, 1]])]
    )
    assert read_assignments(after) == {"a": 0, "b": 0, "c": 1, "late": 1}
    np.testing.assert_array_equal(
        after.models["cluster1"]["fc/kernel"], state.models["cluster1"]["fc/kernel"]
    )
    np.testing.assert_allclose(
        after.models["cluster0"]["fc/kernel"], state.models["cluster0"]["fc/kernel"] + 1, atol=1e-5
    )
    after = decode_server_state(encode_server_state(after))
    sent = algorithm.broadcast(after, "late")
    assert (sent.round, sent.phase) == (3, PHASE_FEDERATE)
    np.testing.assert_array_equal(sent.models["global"]["fc/kernel"], after.models["cluster1"]["fc/kernel"])
    assert explain_clusters(after)[0].startswith("2 clusters of 3 clients")
    assert "1 clients arrived later" in explain_clusters(after)[0]


def test_client_without_update_gets_the_largest_cluster_model():
    algorithm = make_algorithm("clustered", None, {})
    state = run_clustering_round({}, [0, 0], {"a": [1, 0], "b": [1, 0.2], "c": [-1, 0]})
    sent = algorithm.broadcast(replace(state, phase=PHASE_PERSONALIZE), "late")
    np.testing.assert_array_equal(sent.models["global"]["fc/kernel"], state.models["cluster0"]["fc/kernel"])


def test_clustering_round_repeats_until_an_update_arrives():
    algorithm = make_algorithm("clustered", None, {})
    state = algorithm.init({"fc/kernel": np.ones((1, 2), np.float32)}, derive_rng(1, 0))
    after = algorithm.aggregate(state, [])
    assert (after.round, after.phase) == (2, PHASE_CLUSTER)
    alone = algorithm.aggregate(after, [make_update("a", 2, 5, fc_kernel=[[1, 0]])])
    assert (alone.round, alone.phase, read_assignments(alone)) == (3, PHASE_FEDERATE, {"a": 0})
    assert explain_clusters(alone)[1] == ""


def test_the_margin_is_reported_and_survives_a_checkpoint():
    _, state = cluster_clients({"threshold": 0.81})
    summary, warning = explain_clusters(decode_server_state(encode_server_state(state)))
    assert (
        summary
        == "3 clusters of 4 clients, cut at 0.19: the last merge is at 0.02, the next is at 0.2, a margin "
        "of 0.18"
    )
    assert "margin is thin" in warning
    assert explain_clusters(cluster_clients({"threshold": 0.9})[1])[1] == ""
    assert "all 4 clients" in explain_clusters(cluster_clients({"threshold": 0.0})[1])[1]
    assert explain_clusters(ServerState(round=1, phase=PHASE_CLUSTER, models={})) == ("", "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threshold": 1.1}, "threshold is 1.1, expected a number from 0 to 1"),
        ({"mixing": 2}, "mixing is 2.0, expected a number from 0 to 1"),
        ({"cut": "elbow"}, "cut is 'elbow', expected 'threshold' or 'auto'"),
        ({"compare": "gradients"}, "compare is 'gradients', expected 'weights' or 'deltas'"),
    ],
)
def test_invalid_option_is_an_error(options, message):
    with pytest.raises(ConfigError, match=message):
        make_algorithm("clustered", None, options)


def test_unknown_layer_is_reported_before_the_first_round():
    algorithm = make_algorithm("clustered", None, {"layers": "fc9"})
    with pytest.raises(ConfigError, match="'fc9', which is no layer of the model; it has fc"):
        algorithm.init({"fc/kernel": np.ones((1, 2), np.float32)}, derive_rng(1, 0))


def test_cluster_model_is_the_mean_of_its_clients_models(shards):
    """Three rounds with mixing: the sent deltas add up to sum |D_k| / |D_c| h_k."""
    learner = make_learner(shards)
    states = {}
    algorithm = make_algorithm("clustered", learner, {"cut": "auto", "mixing": 0.3})
    rng = np.random.default_rng(3)
    state = algorithm.init(
        {w.name: rng.normal(0, 0.5, w.shape).astype(np.float32) for w in learner.spec.weights},
        derive_rng(1, 0),
    )
    for _ in range(3):
        state = run_round(algorithm, state, shards, states)
    assignment = read_assignments(state)
    assert len(set(assignment.values())) == 2
    for cluster in set(assignment.values()):
        members = [c for c in shards if assignment[c] == cluster]
        n = np.array([len(shards[c].y_train) for c in members], np.float64)
        for name, array in state.models[f"cluster{cluster}"].items():
            mean = np.tensordot(
                n / n.sum(), np.stack([states[c].arrays[name] for c in members]).astype(np.float64), 1
            )
            np.testing.assert_allclose(array, mean, atol=1e-5)


def test_client_without_state_starts_from_the_cluster_model(shards):
    """At rate 0, the delta is the client's start minus the received model, which is 0 if both are equal.

    A client with the stored weights 3 and a mixing of .25 starts from .25 * 3 + .75 * 1.
    """
    algorithm = make_algorithm("clustered", make_learner(shards), {"learning_rate": 0.0, "mixing": 0.25})
    learner = make_learner(shards)
    received = {w.name: np.ones(w.shape, np.float32) for w in learner.spec.weights}
    sent = Broadcast(round=4, phase=PHASE_FEDERATE, models={"global": received})
    stored = ClientState({name: np.full_like(array, 3) for name, array in received.items()})
    for state, expected in ((stored, 0.5), (ClientState(), 0.0)):
        mixture, _ = algorithm.personalize(sent, state, shards["pi-1"], derive_rng(1, 4, "pi-1"))
        current = algorithm.current(sent, state, shards["pi-1"])
        update_sent, client_state = algorithm.local_update(
            sent, state, shards["pi-1"], "pi-1", derive_rng(1, 4, "pi-1")
        )
        for name in received:
            np.testing.assert_array_equal(
                update_sent.deltas["global"][name], np.full_like(received[name], expected)
            )
            mixed = received[name] + np.float32(expected)
            for weights in (client_state.arrays, mixture.weights, current.weights):
                np.testing.assert_array_equal(weights[name], mixed)


@pytest.mark.parametrize(
    "options", [{"cut": "auto"}, {"clustering": False}, {"threshold": 1.0, "mixing": 0.0}, {"mixing": 1.0}]
)
def test_laws_hold_with_clusters(options, shards):
    learner = make_learner(shards)
    rng = np.random.default_rng(7)
    initial = {w.name: rng.normal(0, 0.5, w.shape).astype(np.float32) for w in learner.spec.weights}
    check_algorithm(lambda item: make_algorithm("clustered", item, options), learner, initial, shards)

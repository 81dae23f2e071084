"""CFL: bipartitions and splits by hand, clients that missed a split, and two groups with opposite labels."""

from dataclasses import replace

import numpy as np
import pytest

from edgefl.base.config import FederationConfig
from edgefl.base.errors import ConfigError
from edgefl.base.rng import derive_rng
from edgefl.base.types import Update
from edgefl.learning.algorithms import PHASE_FEDERATE, PHASE_PERSONALIZE, make_algorithm, read_assignments
from edgefl.learning.algorithms.base import ClusterAssignments
from edgefl.learning.algorithms.check import check_algorithm
from edgefl.learning.algorithms.clustering.cluster_models import explain_clusters, is_newly_clustered
from edgefl.learning.algorithms.clustering.cluster_report import make_cluster_report
from edgefl.learning.algorithms.papers import cfl
from edgefl.learning.algorithms.papers.cfl import SplitHistory, bipartition, measure_separation, split_cluster
from edgefl.learning.algorithms.registry import complete_algorithm_options
from edgefl.learning.checkpoint import decode_server_state, encode_server_state
from tests.support.numpy_learner.softmax import SoftmaxLearner, softmax_spec
from tests.support.softmax_federation import make_permuted_shard, simulate_softmax

OPPOSED = {"a": [1, 0], "b": [1, 0.1], "c": [-1, 0], "d": [-1, 0.1]}
"""Deltas of two pairs. The mean is (0, .05), the largest norm 1.005."""


def make_update(client, round, delta, samples=1):
    return Update(
        client_id=client,
        round=round,
        num_samples=samples,
        deltas={"global": {"fc/kernel": np.asarray([delta], np.float32)}},
        metrics={"loss": 1.0},
    )


def start(**options):
    algorithm = make_algorithm("cfl", None, options)
    return algorithm, algorithm.init({"fc/kernel": np.zeros((1, 2), np.float32)}, derive_rng(1, 0))


def play(algorithm, state, deltas, samples=1):
    """Return the state after a round with these deltas, saved and loaded."""
    after = algorithm.aggregate(
        state, [make_update(client, state.round, delta, samples) for client, delta in sorted(deltas.items())]
    )
    return decode_server_state(encode_server_state(after))


def read_kernel(weights):
    return weights["fc/kernel"][0].tolist()


def test_bipartition_of_four_clients_by_hand():
    """Unit vectors at 0, 60, 100 and 190 degrees have these cosines.

    1 .5 -.174 -.985, then 1 .766 -.643, then 1 0. The merges are b with c at .766, a at .5, and d at 0.
    """
    angles = np.radians([0, 60, 100, 190])
    cut = bipartition(list(np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)))
    expected = [
        [1, 0.5, -0.174, -0.985],
        [0.5, 1, 0.766, -0.643],
        [-0.174, 0.766, 1, 0],
        [-0.985, -0.643, 0, 1],
    ]
    np.testing.assert_allclose(cut.similarity, expected, atol=5e-4)
    assert cut.labels.tolist() == [0, 0, 0, 1]
    np.testing.assert_allclose(cut.merges[:, 2], [1 - 0.766, 0.5, 1], atol=5e-4)
    assert measure_separation(cut) == pytest.approx(np.sqrt(0.5))
    np.testing.assert_allclose(cut.centers[1], [np.cos(angles[3]), np.sin(angles[3])], atol=1e-6)


def test_bipartition_has_the_smallest_similarity_of_all_bipartitions():
    rng = np.random.default_rng(5)
    for _ in range(20):
        vectors = list(rng.normal(size=(6, 3)).astype(np.float32))
        cut = bipartition(vectors)
        smallest = min(
            max(
                cut.similarity[i, j]
                for i in range(6)
                for j in range(6)
                if (mask >> i & 1) and not (mask >> j & 1)
            )
            for mask in range(1, 2**6 - 1)
        )
        assert 1 - cut.next_height == pytest.approx(smallest)


def test_split_starts_each_part_from_its_mean():
    algorithm, state = start()
    state = play(algorithm, state, OPPOSED)
    assert (state.round, state.phase) == (2, PHASE_FEDERATE)
    assert read_assignments(state) == {"a": 0, "b": 0, "c": 1, "d": 1}
    assert sorted(state.models) == ["cluster0", "cluster1"]
    np.testing.assert_allclose(read_kernel(state.models["cluster0"]), [1, 0.05], atol=1e-6)
    np.testing.assert_allclose(read_kernel(state.models["cluster1"]), [-1, 0.05], atol=1e-6)
    state = play(algorithm, state, {"a": [1, 0], "b": [1, 0], "c": [0, 1], "d": [0, 1]})
    np.testing.assert_allclose(read_kernel(state.models["cluster0"]), [2, 0.05], atol=1e-6)
    np.testing.assert_allclose(read_kernel(state.models["cluster1"]), [-1, 1.05], atol=1e-6)
    assert not is_newly_clustered(state)


@pytest.mark.parametrize(
    ("options", "deltas", "is_split"),
    [
        ({}, OPPOSED, True),
        ({"eps1": 0.0497}, OPPOSED, False),  # .05 / 1.00499 = .04975
        ({"eps1": 0.0498}, OPPOSED, True),
        ({"relative": False, "eps1": 0.051, "eps2": 1.004}, OPPOSED, True),
        ({"relative": False, "eps1": 0.049, "eps2": 1.004}, OPPOSED, False),
        ({"relative": False, "eps1": 0.051, "eps2": 1.006}, OPPOSED, False),
        ({"gamma": 1.0}, OPPOSED, False),  # b with d: alpha = (-1 + .01) / 1.01
        ({"gamma": 0.994}, OPPOSED, True),  # sqrt((1 + .9802) / 2) = .995
        ({"min_cluster_size": 3}, OPPOSED, False),
        ({"pretrain_rounds": 1}, OPPOSED, False),
        ({}, {"a": [1, 0], "b": [1, 1], "c": [0, 1], "d": [1, 0.5]}, False),
        ({}, {"a": [1, 0], "b": [0.1, 0], "c": [-1, 0], "d": [0.1, 0]}, False),  # part c is too small
        ({"min_cluster_size": 1}, {"a": [1, 0], "b": [-1, 0]}, True),
        ({"min_cluster_size": 1}, {"a": [1, 0]}, False),
        ({}, {"a": [0, 0], "b": [0, 0], "c": [0, 0], "d": [0, 0]}, False),
    ],
)
def test_rules_of_a_split(options, deltas, is_split):
    algorithm, state = start(**options)
    after = play(algorithm, state, deltas)
    assert bool(read_assignments(after)) == is_split == is_newly_clustered(after)
    if not is_split:
        np.testing.assert_allclose(
            read_kernel(after.models["global"]), np.mean(list(deltas.values()), axis=0), atol=1e-6
        )


def test_short_updates_do_not_split():
    """The largest norm of an earlier round is 10, and 1.005 is below half of it."""
    algorithm, state = start()
    state = play(algorithm, state, {"a": [10, 0], "b": [10, 0]})
    assert read_assignments(play(algorithm, state, OPPOSED)) == {}
    algorithm, state = start(eps2=0.1)
    state = play(algorithm, state, {"a": [10, 0], "b": [10, 0]})
    assert read_assignments(play(algorithm, state, OPPOSED)) != {}


def split_twice():
    """Return the algorithm and a state with three clusters: a and b, c and d, e and f.

    Clients c to f differ from a and b in round 1. Clients e and f differ from c and d in round 2. Client z
    takes part in neither round.
    """
    algorithm, state = start()
    state = play(
        algorithm,
        state,
        {"a": [2, 0], "b": [2, 0], "c": [-1, 0.1], "d": [-1, 0.1], "e": [-1, 0], "f": [-1, 0]},
    )
    assert read_assignments(state) == {"a": 0, "b": 0, **dict.fromkeys("cdef", 1)}
    state = play(
        algorithm,
        state,
        {"a": [1, 1], "b": [1, 1], "c": [0, 2], "d": [0, 2], "e": [0, -2], "f": [0, -2]},
    )
    assert read_assignments(state) == {"a": 0, "b": 0, "c": 1, "d": 1, "e": 2, "f": 2}
    return algorithm, state


def test_splits_are_recursive_and_reported():
    _, state = split_twice()
    summary, warning = explain_clusters(state)
    assert summary.startswith("2 clusters of 4 clients, cut at 1: the last merge is at 0, the next is at 2")
    assert summary.endswith("3 clusters in total")
    assert warning == ""
    report = make_cluster_report(complete_algorithm_options("cfl", {}), state)
    assert (report["round"], report["clients"]) == (2, ["c", "d", "e", "f"])
    assert report["layer"] == "what training changed in the whole model"
    assert report["matrix"][0] == [1, 1, -1, -1]
    assert report["assignment"] == read_assignments(state)


def test_new_client_walks_down_the_tree():
    """Its update (-1, 0) selects the part of c to f, then its update (0, -1) the part of e and f."""
    algorithm, state = split_twice()
    before = {name: read_kernel(model) for name, model in state.models.items()}
    assert read_kernel(algorithm.broadcast(state, "z").models["global"]) == [0, 0]
    state = play(algorithm, state, {"z": [-1, 0]})
    assert read_assignments(state)["z"] == 1
    np.testing.assert_allclose(
        read_kernel(algorithm.broadcast(state, "z").models["global"]), [-1, 0.05], atol=1e-6
    )
    state = play(algorithm, state, {"z": [0, -1]})
    assert read_assignments(state)["z"] == 2
    assert {name: read_kernel(model) for name, model in state.models.items()} == before
    assert read_kernel(algorithm.broadcast(state, "z").models["global"]) == before["cluster2"]
    state = play(algorithm, state, {"z": [3, 0]})
    assert read_kernel(state.models["cluster2"]) == [before["cluster2"][0] + 3, before["cluster2"][1]]
    assert explain_clusters(state)[0].endswith("3 clusters in total; 1 clients arrived later")


def test_new_client_joins_the_first_cluster_directly():
    algorithm, state = split_twice()
    state = play(algorithm, state, {"z": [1, 0]})
    assert read_assignments(state)["z"] == 0
    sent = algorithm.broadcast(state, "z").models["global"]
    assert read_kernel(sent) == read_kernel(state.models["cluster0"])


def test_member_that_missed_a_split_selects_its_part():
    """Client c misses round 2, in which g joins d against e and f."""
    algorithm, state = start()
    state = play(
        algorithm,
        state,
        {
            "a": [2, 0],
            "b": [2, 0],
            "c": [-0.8, 0],
            "d": [-0.8, 0],
            "e": [-0.8, 0],
            "f": [-0.8, 0],
            "g": [-0.8, 0],
        },
    )
    split_model = read_kernel(state.models["cluster1"])
    state = play(algorithm, state, {"d": [0, 2], "g": [0, 2], "e": [0, -2], "f": [0, -2]})
    assert read_assignments(state) == {"a": 0, "b": 0, "c": 1, "d": 1, "e": 2, "f": 2, "g": 1}
    assert read_kernel(algorithm.broadcast(state, "c").models["global"]) == split_model
    state = play(algorithm, state, {"c": [0, -1]})
    assert read_assignments(state)["c"] == 2
    assert "arrived later" not in explain_clusters(state)[0]


def test_client_without_update_gets_the_largest_cluster_model():
    algorithm, state = start()
    state = play(algorithm, state, {**OPPOSED, "e": [-1, 0]})
    sent = algorithm.broadcast(replace(state, phase=PHASE_PERSONALIZE), "late")
    assert read_kernel(sent.models["global"]) == read_kernel(state.models["cluster1"])


class MappingWithoutLoop(dict):
    """Values that can only be read by key."""

    def __iter__(self):
        raise AssertionError("a broadcast read the values of all clients")

    keys = values = items = __iter__


def test_broadcast_does_not_read_other_clients():
    """Reading all assignments for each client would take time in the square of the number of clients."""
    algorithm, state = split_twice()
    history = state.read_record(SplitHistory)
    guarded = state.with_record(ClusterAssignments(MappingWithoutLoop(read_assignments(state))))
    guarded = guarded.with_record(replace(history, passed=MappingWithoutLoop(history.passed)))
    for phase in (state.phase, PHASE_PERSONALIZE):
        sent = algorithm.broadcast(replace(guarded, phase=phase), "e")
        assert read_kernel(sent.models["global"]) == read_kernel(state.models["cluster2"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gamma": 1.1}, "gamma is 1.1, expected a number from 0 to 1"),
        ({"min_cluster_size": 0}, "min_cluster_size is 0, expected 1 or more"),
    ],
)
def test_invalid_option_is_an_error(options, message):
    with pytest.raises(ConfigError, match=message):
        make_algorithm("cfl", None, options)


@pytest.mark.parametrize("groups", [1, 2])
def test_simulation_finds_the_groups(groups):
    """Clients of two groups have opposite labels for two classes. Clients of one group stay together."""
    labels = [[0, 1, 2], [2, 1, 0]]
    shards = {f"c{i}": make_permuted_shard(i, labels[i % groups], 0.7) for i in range(6)}
    options = complete_algorithm_options("cfl", {"pretrain_rounds": 2, "learning_rate": 0.05})
    spec = softmax_spec("cfl", inputs=4, features=4, classes=3, options=options)
    config = FederationConfig(rounds=10, algorithm="cfl", options=options)
    records = []
    end = simulate_softmax(
        spec, shards, config, progress=lambda state, record: records.append(record.similarity)
    )
    expected = {f"c{i}": i % 2 for i in range(6)} if groups == 2 else {}
    assert read_assignments(end.state) == expected
    assert sum(similarity is not None for similarity in records) == groups - 1
    assert min(metrics["accuracy_mixture"] for metrics in end.metrics.values()) > 0.7


@pytest.mark.parametrize(
    ("options", "splits"),
    [({"min_cluster_size": 1, "gamma": 0.0, "eps1": 9.0}, True), ({"eps1": 0.0}, False)],
)
def test_laws_hold_with_and_without_splits(options, splits, shards, monkeypatch):
    found = []

    def count_split(*args):
        found.append(args)
        return split_cluster(*args)

    monkeypatch.setattr(cfl, "split_cluster", count_split)
    learner = SoftmaxLearner(softmax_spec("cfl", inputs=4, features=3, classes=3))
    rng = np.random.default_rng(7)
    initial = {w.name: rng.normal(0, 0.5, w.shape).astype(np.float32) for w in learner.spec.weights}
    check_algorithm(lambda item: make_algorithm("cfl", item, options), learner, initial, shards)
    assert bool(found) is splits

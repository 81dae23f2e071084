"""FedAP: the step of a round and the clusters by hand, the order of the phases, then the laws."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.base.config import PartitionConfig
from edgefl.base.errors import ConfigError
from edgefl.base.rng import derive_rng
from edgefl.base.types import Broadcast, ClientState, ServerState, Shard, Update
from edgefl.data import copy_shard, make_client_partitions
from edgefl.data.dataset import Dataset
from edgefl.learning.algorithms import (
    PHASE_CLUSTER,
    PHASE_FEDERATE,
    PHASE_PERSONALIZE,
    PHASE_PRETRAIN,
    make_algorithm,
    read_assignments,
)
from edgefl.learning.algorithms.check import check_algorithm
from edgefl.learning.algorithms.clustering.cluster_models import explain_clusters
from edgefl.learning.algorithms.clustering.similarity import select_statistics
from edgefl.learning.algorithms.papers.fedap import FederatedRounds, schedule_beta
from tests.support.numpy_learner.recording import RecordingLearner
from tests.support.numpy_learner.softmax import SoftmaxLearner, softmax_spec

POINTS = {"a": [0, 0], "b": [1, 0], "c": [4, 0], "d": [4, 3]}


def make_update(client_id, round, n, delta, name="fc/kernel"):
    return Update(
        client_id=client_id,
        round=round,
        num_samples=n,
        deltas={"global": {name: np.asarray([delta], np.float32)}},
    )


def draw_initial_weights(learner, seed=7):
    rng = np.random.default_rng(seed)
    return {w.name: rng.normal(0, 0.5, w.shape).astype(np.float32) for w in learner.spec.weights}


@pytest.fixture
def learner():
    return SoftmaxLearner(softmax_spec("fedap", inputs=4, features=3, classes=3))


def test_two_clients_one_round_by_hand():
    """One sample (1, 0) of class 0, and three samples (0, 1) of class 1.

    The mean delta is [.125, -.125], [-.375, .375], and beta .5 moves half of it.
    """
    x = np.eye(2, dtype=np.float32)
    y = np.array([0, 1])
    shards = {
        "a": Shard(x_train=x[:1], y_train=y[:1], x_test=x, y_test=y, num_classes=2),
        "b": Shard(x_train=x[[1, 1, 1]], y_train=y[[1, 1, 1]], x_test=x, y_test=y, num_classes=2),
    }
    options = {
        "clustering": False,
        "epochs": 1,
        "learning_rate": 1.0,
        "momentum": 0.0,
        "beta_start": 0.5,
        "decay_rounds": 1280,
        "personalize_epochs": 1,
        "least_steps": 0,
    }
    algorithm = make_algorithm(
        "fedap", SoftmaxLearner(softmax_spec("fedap", inputs=2, features=2, classes=2)), options
    )
    start = {
        "trunk/kernel": np.eye(2, dtype=np.float32),
        "head/kernel": np.zeros((2, 2), np.float32),
        "head/bias": np.zeros(2, np.float32),
    }
    state = algorithm.init(start, derive_rng(1, 0))
    sent = algorithm.broadcast(state, "a")
    updates = [
        algorithm.local_update(sent, ClientState(), shards[c], c, derive_rng(1, 1, c))[0] for c in ("a", "b")
    ]
    after = algorithm.aggregate(state, updates)
    np.testing.assert_allclose(
        after.models["global"]["head/kernel"], [[0.0625, -0.0625], [-0.1875, 0.1875]], atol=1e-6
    )
    np.testing.assert_allclose(after.models["global"]["head/bias"], [-0.125, 0.125], atol=1e-6)
    last = algorithm.broadcast(replace(after, phase=PHASE_PERSONALIZE), "a")
    mixture, _ = algorithm.personalize(last, ClientState(), shards["a"], derive_rng(1, 2, "a"))
    error = 1 / (1 + np.exp(-0.125))  # of the sample: logits -.0625 and .0625, class 0
    np.testing.assert_allclose(mixture.weights["head/bias"], [-0.125 + error, 0.125 - error], atol=1e-6)


def test_beta_by_hand():
    assert [schedule_beta(t, 1.0, 0.46, 1280) for t in (0, 640, 1279, 1280, 9999)] == pytest.approx(
        [1, 0.73, 0.460422, 0.46, 0.46], abs=1e-6
    )
    assert schedule_beta(0, 1.0, 0.46, 0) == 0.46


@given(t=st.integers(0, 4000), rounds=st.integers(1, 2000), start=st.floats(0, 2), end=st.floats(0, 2))
def test_beta_stays_between_start_and_end(t, rounds, start, end):
    assert min(start, end) - 1e-9 <= schedule_beta(t, start, end, rounds) <= max(start, end) + 1e-9


def test_server_step_by_hand():
    """Oracle: theta 2, mean 4, t 640: 2 + .73 * 2 = 3.46."""
    algorithm = make_algorithm("fedap", None, {"clustering": False, "decay_rounds": 1280})
    theta = {"w": np.full((1, 1), 2, np.float32)}
    state = ServerState(round=641, phase=PHASE_FEDERATE, models={"global": theta, "initial": theta})
    state = state.with_record(FederatedRounds(count=640))
    after = algorithm.aggregate(
        state, [make_update("a", 641, 3, [1], "w"), make_update("b", 641, 1, [5], "w")]
    )
    assert after.models["global"]["w"][0, 0] == pytest.approx(3.46, abs=1e-6)
    assert after.read_record(FederatedRounds).count == 641


@pytest.mark.parametrize(
    ("options", "clusters"),
    [
        ({}, [0, 0, 1, 1]),
        ({"cut_distance": 3.0}, [0, 0, 1, 1]),
        ({"cut_distance": 2.9}, [0, 0, 1, 2]),
        ({"cut_distance": 4.5}, [0, 0, 1, 1]),  # the means are 4.3 apart
        ({"cut_distance": 5.4}, [0, 0, 0, 0]),
        ({"num_clusters": 3}, [0, 0, 1, 2]),
        ({"num_clusters": 9}, [0, 1, 2, 3]),
    ],
)
def test_clients_are_clustered_by_distance_of_their_deltas(options, clusters):
    algorithm = make_algorithm("fedap", None, {"pretrain_rounds": 0, **options})
    state = algorithm.init({"fc/kernel": np.full((1, 2), 7, np.float32)}, derive_rng(1, 0))
    after = algorithm.aggregate(state, [make_update(c, 1, 1, point) for c, point in POINTS.items()])
    assert read_assignments(after) == dict(zip(POINTS, clusters, strict=True))
    assert explain_clusters(after)[0].startswith(f"{max(clusters) + 1} clusters of 4 clients")


def test_silhouette_is_of_squared_distances():
    """Of plain distances, one cluster of 0, 1, 2 and 3 is the best."""
    algorithm = make_algorithm("fedap", None, {"pretrain_rounds": 0, "cut": "silhouette"})
    state = algorithm.init({"fc/kernel": np.zeros((1, 1), np.float32)}, derive_rng(1, 0))
    after = algorithm.aggregate(state, [make_update(name, 1, 1, [i]) for i, name in enumerate("abcd")])
    assert read_assignments(after) == {"a": 0, "b": 0, "c": 1, "d": 1}


def test_late_client_joins_the_nearest_cluster():
    """The clusters are at (.5, 0) and (4, 1.5), and the clustering round began at (7, 7).

    From there, the late client moves by (4, 2).
    """
    algorithm = make_algorithm("fedap", None, {"pretrain_rounds": 0})
    state = algorithm.init({"fc/kernel": np.full((1, 2), 7, np.float32)}, derive_rng(1, 0))
    state = algorithm.aggregate(state, [make_update(c, 1, 1, point) for c, point in POINTS.items()])
    sent = algorithm.broadcast(state, "late")
    assert sent.phase == PHASE_CLUSTER
    np.testing.assert_array_equal(sent.models["global"]["fc/kernel"], [[7, 7]])
    after = algorithm.aggregate(state, [make_update("late", 2, 1, (4, 2))])
    assert read_assignments(after) == {**read_assignments(state), "late": 1}
    assert after.models["cluster1"] is state.models["cluster1"]


def test_a_cluster_starts_from_its_weighted_mean():
    algorithm = make_algorithm("fedap", None, {"pretrain_rounds": 0})
    state = algorithm.init({"fc/kernel": np.full((1, 2), 7, np.float32)}, derive_rng(1, 0))
    after = algorithm.aggregate(
        state,
        [make_update(c, 1, n, point) for n, (c, point) in zip((1, 3, 2, 2), POINTS.items(), strict=True)],
    )
    assert after.models["cluster0"]["fc/kernel"].tolist() == [[7.75, 7]]
    assert after.models["cluster1"]["fc/kernel"].tolist() == [[11, 8.5]]
    assert sorted(after.models) == ["cluster0", "cluster1", "initial"]


def test_phases_are_ordered_and_beta_decays_after_clustering():
    algorithm = make_algorithm("fedap", None, {"pretrain_rounds": 2, "decay_rounds": 2, "beta_end": 0.5})
    state = algorithm.init({"fc/kernel": np.zeros((1, 2), np.float32)}, derive_rng(1, 0))
    phases = []
    for _ in range(6):
        phases.append(state.phase)
        before = state
        state = algorithm.aggregate(state, [make_update("a", state.round, 1, [1, 0])])
    assert phases == [
        PHASE_PRETRAIN,
        PHASE_PRETRAIN,
        PHASE_CLUSTER,
        PHASE_FEDERATE,
        PHASE_FEDERATE,
        PHASE_FEDERATE,
    ]
    assert before.models["cluster0"]["fc/kernel"][0, 0] == 3 + 1 + 0.75
    assert state.models["cluster0"]["fc/kernel"][0, 0] == 3 + 1 + 0.75 + 0.5
    assert (
        make_algorithm("fedap", None, {"clustering": False}).init({}, derive_rng(1, 0)).phase
        == PHASE_FEDERATE
    )


def test_a_clustering_round_without_updates_is_repeated():
    algorithm = make_algorithm("fedap", None, {"pretrain_rounds": 0})
    after = algorithm.aggregate(
        algorithm.init({"fc/kernel": np.zeros((1, 2), np.float32)}, derive_rng(1, 0)), []
    )
    assert (after.round, after.phase, read_assignments(after)) == (2, PHASE_CLUSTER, {})


def test_every_phase_has_its_epochs(learner, shards):
    algorithm = make_algorithm(
        "fedap", learner, {"epochs": 1, "cluster_epochs": 3, "learning_rate": 0.1, "momentum": 0.0}
    )
    weights = draw_initial_weights(learner)
    shard = shards["pi-1"]
    for phase, epochs in ((PHASE_PRETRAIN, 1), (PHASE_CLUSTER, 3), (PHASE_FEDERATE, 1)):
        sent_update, _ = algorithm.local_update(
            Broadcast(round=5, phase=phase, models={"global": weights}),
            ClientState(),
            shard,
            "pi-1",
            derive_rng(1, 5),
        )
        hyper = {"learning_rate": 0.1, "momentum": 0.0}
        trained, _ = learner.fit(
            "train",
            weights,
            {"x": shard.x_train},
            shard.y_train,
            epochs=epochs,
            rng=derive_rng(1, 5),
            hyper=hyper,
        )
        for name, array in trained.items():
            np.testing.assert_array_equal(sent_update.deltas["global"][name], array - weights[name])


def test_statistics_are_recognized_by_name():
    names = (
        "bn/gamma",
        "bn/moving_mean",
        "block/bn/moving_variance",
        "moving_mean",
        "fc/kernel",
        "moving_mean/kernel",
    )
    statistics = select_statistics(dict.fromkeys(names, np.zeros(1, np.float32)))
    assert list(statistics) == ["bn/moving_mean", "block/bn/moving_variance", "moving_mean"]


def test_training_starts_from_the_statistics_of_the_client(shards):
    learner = RecordingLearner(softmax_spec("fedap", inputs=4, features=3, classes=3))
    algorithm = make_algorithm("fedap", learner, {})
    received = {**draw_initial_weights(learner), "bn/moving_mean": np.zeros(3, np.float32)}
    stored = np.full(3, 9, np.float32)
    sent = Broadcast(round=5, phase=PHASE_FEDERATE, models={"global": received})
    update, state = algorithm.local_update(
        sent, ClientState({"bn/moving_mean": stored}), shards["pi-1"], "pi-1", derive_rng(1, 5)
    )
    np.testing.assert_array_equal(learner.calls[0].weights["bn/moving_mean"], stored)
    np.testing.assert_array_equal(state.arrays["bn/moving_mean"], stored)
    assert not update.deltas["global"]["bn/moving_mean"].any()


@pytest.mark.parametrize(("least_steps", "epochs"), [(0, 2), (60, 15)])
def test_personalization_takes_at_least_some_steps(least_steps, epochs, shards):
    learner = RecordingLearner(softmax_spec("fedap", inputs=4, features=3, classes=3))
    x, y = shards["pi-1"].x_train[:30], shards["pi-1"].y_train[:30]
    shard = Shard(x_train=x, y_train=y, x_test=x, y_test=y, num_classes=3)
    assert len(y) == 30
    options = {"personalize_epochs": 2, "least_steps": least_steps, "batch_size": 8}
    algorithm = make_algorithm("fedap", learner, options)
    weights = draw_initial_weights(learner)
    sent = Broadcast(round=5, phase=PHASE_PERSONALIZE, models={"global": weights})
    algorithm.personalize(sent, ClientState(), shard, derive_rng(1, 5))
    assert [call.options["epochs"] for call in learner.calls] == [epochs]


def test_statistics_do_not_affect_clustering():
    algorithm = make_algorithm("fedap", None, {"pretrain_rounds": 0})
    zeros = np.zeros((1, 2), np.float32)
    state = algorithm.init({"fc/kernel": zeros, "bn/moving_mean": zeros}, derive_rng(1, 0))
    far = [
        Update(
            client_id=c,
            round=1,
            num_samples=1,
            deltas={"global": {"fc/kernel": zeros, "bn/moving_mean": zeros + d}},
        )
        for c, d in (("a", 0), ("b", 99))
    ]
    assert read_assignments(algorithm.aggregate(state, far)) == {"a": 0, "b": 0}


def personalize_client(learner, shards, **options):
    algorithm = make_algorithm("fedap", learner, {"learning_rate": 0.1, **options})
    weights = draw_initial_weights(learner)
    state = ServerState(
        round=31,
        phase=PHASE_PERSONALIZE,
        models={"global": weights, "initial": draw_initial_weights(learner, 8)},
    )
    mixture, _ = algorithm.personalize(
        algorithm.broadcast(state, "pi-2"), ClientState(), shards["pi-2"], derive_rng(1, 31, "pi-2")
    )
    return weights, mixture


def test_model_is_unchanged_without_personal_epochs(learner, shards):
    weights, mixture = personalize_client(learner, shards, personalize_epochs=0)
    for name in weights:
        np.testing.assert_array_equal(mixture.weights[name], weights[name])


def test_personalization_trains_the_received_model(learner, shards):
    weights, mixture = personalize_client(learner, shards)
    assert list(mixture.peers) == ["federated"]
    for name in weights:
        np.testing.assert_array_equal(mixture.peers["federated"].weights[name], weights[name])
        assert not np.array_equal(mixture.weights[name], weights[name])


@pytest.mark.parametrize(
    "options",
    [
        {"clustering": False},
        {"pretrain_rounds": 0, "num_clusters": 2},
        {"pretrain_rounds": 1},
        {"beta_start": 0.0},
    ],
)
def test_laws_hold_in_every_phase(options, learner, shards):
    check_algorithm(
        lambda any_learner: make_algorithm("fedap", any_learner, options),
        learner,
        draw_initial_weights(learner),
        shards,
    )


@pytest.mark.parametrize("name", ["clustered", "fedap"])
def test_silhouette_finds_the_clusters_of_tasks(name):
    """Three clusters have two classes each. With the same classes for all clients, there is one cluster."""
    pytest.importorskip("sklearn.metrics", reason="the aggregator extra is not installed")
    rng = np.random.default_rng(0)
    y, y_test = (np.arange(count) % 6 for count in (1200, 600))
    x, x_test = (
        (2 * np.eye(6)[labels] + rng.normal(0, 0.5, (len(labels), 6))).astype(np.float32)
        for labels in (y, y_test)
    )
    data = Dataset(x_train=x, y_train=y, x_test=x_test, y_test=y_test, num_classes=6)
    learner = SoftmaxLearner(softmax_spec(name, inputs=6, features=5, classes=6))
    options = {"cut": "silhouette", "learning_rate": 0.05}
    algorithm = make_algorithm(name, learner, options | ({"pretrain_rounds": 0} if name == "fedap" else {}))
    for partition, options in (
        ("tasks", {"num_tasks": 6, "clusters": 3, "samples": 60, "test_samples": 6, "imbalance": 1.0}),
        ("iid", {}),
    ):
        parts = make_client_partitions(
            data, PartitionConfig(name=partition, num_clients=9, options=options), 1
        )
        state = algorithm.init(draw_initial_weights(learner), derive_rng(1, 0))
        assert state.phase == PHASE_CLUSTER
        updates = [
            algorithm.local_update(
                algorithm.broadcast(state, client_id),
                ClientState(),
                copy_shard(data, part),
                client_id,
                derive_rng(1, 1, client_id),
            )[0]
            for client_id, part in parts.items()
        ]
        clusters = read_assignments(algorithm.aggregate(state, updates))
        pairs = {(part.truth, clusters[client_id]) for client_id, part in parts.items()}
        assert len(pairs) == len({cluster for _, cluster in pairs}) == (3 if partition == "tasks" else 1)


def test_silhouette_excludes_the_other_cuts():
    for other in ({"cut_distance": 3.0}, {"num_clusters": 2}):
        with pytest.raises(ConfigError, match="cut is 'silhouette' with cut_distance"):
            make_algorithm("fedap", None, {"cut": "silhouette", **other})
    with pytest.raises(ConfigError, match="cut"):
        make_algorithm("fedap", None, {"cut": "widest"})

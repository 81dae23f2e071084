"""Clusters on a compiled plan: the laws on LiteRT, equality with Keras, and private statistics."""

import keras
import numpy as np
import pytest
from keras import layers

from edgefl.base.config import FederationConfig, ModelConfig
from edgefl.base.rng import derive_rng
from edgefl.base.types import ClientState, Shard
from edgefl.learning.algorithms import make_algorithm, read_assignments
from edgefl.learning.algorithms.check import check_algorithm
from edgefl.learning.algorithms.clustering.similarity import select_statistics
from edgefl.learning.algorithms.plans import build_plan, make_keras_learner
from edgefl.program.learner.litert import LiteRTLearner

OPTIONS = {"epochs": 1, "learning_rate": 0.1, "batch_size": 8}
CLUSTERED = {**OPTIONS, "cut": "auto"}
FEDAP = {**OPTIONS, "pretrain_rounds": 1, "num_clusters": 2, "personalize_epochs": 1}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Flatten(name="flatten"),
            layers.Dense(12, name="fc1"),
            layers.BatchNormalization(momentum=0.5, name="norm"),
            layers.ReLU(name="relu"),
            layers.Dense(10, name="fc2"),
        ]
    )
    path = tmp_path_factory.mktemp("model") / "normed.keras"
    model.save(path)
    return build_plan(
        FederationConfig(
            algorithm="fedap",
            options=FEDAP,
            model=ModelConfig(name=str(path), input_shape=(8, 8, 1), num_classes=10),
        )
    )


@pytest.fixture(scope="module")
def learner(compiled):
    return LiteRTLearner(compiled[0])


@pytest.fixture
def digit_shards(digits):
    """Return three clients: two with digits 0 to 4, one with the other digits."""
    x, y = digits
    low = np.flatnonzero(y < 5)
    high = np.flatnonzero(y >= 5)
    parts = {"pi-0": low[:60], "pi-1": low[60:120], "pi-2": high[:60]}
    return {
        c: Shard(x_train=x[i[:40]], y_train=y[i[:40]], x_test=x[i[40:]], y_test=y[i[40:]], num_classes=10)
        for c, i in parts.items()
    }


@pytest.mark.parametrize(
    ("name", "options"),
    [("fedap", FEDAP), ("fedap", {**FEDAP, "share_statistics": True}), ("clustered", CLUSTERED)],
)
def test_laws_hold_on_a_compiled_plan(name, options, compiled, learner, digit_shards):
    check_algorithm(
        lambda any_learner: make_algorithm(name, any_learner, options), learner, compiled[1], digit_shards
    )


def run_round(algorithm, state, shards, states):
    updates = []
    for client_id in sorted(shards):
        sent = algorithm.broadcast(state, client_id)
        update, states[client_id] = algorithm.local_update(
            sent, states[client_id], shards[client_id], client_id, derive_rng(1, state.round, client_id)
        )
        updates.append(update)
    return algorithm.aggregate(state, updates), updates


def test_keras_and_litert_give_equal_clusters_and_models(compiled, learner, digit_shards):
    final_states = []
    for any_learner in (learner, make_keras_learner(compiled[0].spec)):
        algorithm = make_algorithm("fedap", any_learner, FEDAP)
        state = algorithm.init(compiled[1], derive_rng(1, 0))
        states = dict.fromkeys(digit_shards, ClientState())
        for _ in range(3):
            state, _ = run_round(algorithm, state, digit_shards, states)
        final_states.append(state)
    assert (
        read_assignments(final_states[0])
        == read_assignments(final_states[1])
        == {"pi-0": 0, "pi-1": 0, "pi-2": 1}
    )
    for model, weights in final_states[0].models.items():
        for name, array in weights.items():
            np.testing.assert_allclose(
                array, final_states[1].models[model][name], atol=1e-4, err_msg=f"{model} {name}"
            )


def test_moving_statistics_stay_on_the_device(compiled, learner, digit_shards):
    algorithm = make_algorithm("fedap", learner, FEDAP)
    state = algorithm.init(compiled[1], derive_rng(1, 0))
    states = dict.fromkeys(digit_shards, ClientState())
    after, updates = run_round(algorithm, state, digit_shards, states)
    initial = select_statistics(compiled[1])
    assert sorted(initial) == ["norm/moving_mean", "norm/moving_variance"]
    for name, array in initial.items():
        np.testing.assert_array_equal(after.models["global"][name], array)
        for update in updates:
            assert not update.deltas["global"][name].any()
            assert not np.array_equal(states[update.client_id].arrays[name], array)
    assert not np.array_equal(after.models["global"]["norm/gamma"], compiled[1]["norm/gamma"])
    for personal, expected in ((states["pi-0"], states["pi-0"].arrays), (ClientState(), initial)):
        bare = make_algorithm("fedap", learner, {**FEDAP, "personalize_epochs": 0})
        mixture, _ = bare.personalize(
            bare.broadcast(after, "pi-0"), personal, digit_shards["pi-0"], derive_rng(1, 2, "pi-0")
        )
        for name, array in expected.items():
            np.testing.assert_array_equal(mixture.weights[name], array)


def test_shared_statistics_are_averaged(compiled, learner, digit_shards):
    algorithm = make_algorithm("fedap", learner, {**FEDAP, "share_statistics": True})
    state = algorithm.init(compiled[1], derive_rng(1, 0))
    states = dict.fromkeys(digit_shards, ClientState())
    after, updates = run_round(algorithm, state, digit_shards, states)
    mean = np.mean([update.deltas["global"]["norm/moving_mean"] for update in updates], axis=0)
    np.testing.assert_allclose(after.models["global"]["norm/moving_mean"], mean, atol=1e-6)
    assert not any(client_state.arrays for client_state in states.values())

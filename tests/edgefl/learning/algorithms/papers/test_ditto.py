"""Ditto: a round by hand, and a personal model that is never sent."""

import numpy as np
import pytest

from edgefl.base.rng import derive_rng
from edgefl.base.types import ClientState, ServerState
from edgefl.learning.algorithms import PHASE_PERSONALIZE, make_algorithm
from edgefl.program.learner import evaluate
from tests.support.numpy_learner.softmax import SoftmaxLearner, softmax_spec

OPTIONS = {"penalty": 0.5, "personal_epochs": 2, "personal_learning_rate": 1.0}


def test_a_round_by_hand(one_sample):
    """The global model takes one plain step.

    The personal model takes the two steps of FedProx with lambda .5 (see `test_fedprox`).
    """
    update, state = one_sample.train(
        one_sample.make_algorithm("ditto", **OPTIONS), ClientState(), one_sample.start
    )
    np.testing.assert_allclose(update.deltas["global"]["head/bias"], [0.5, -0.5], atol=1e-6)
    np.testing.assert_allclose(state.arrays["head/bias"], [0.369203, -0.369203], atol=1e-6)
    np.testing.assert_allclose(state.arrays["trunk/kernel"], [[1.119203]], atol=1e-6)


def test_personal_model_is_pulled_to_the_received_model(one_sample):
    """From v = 0 towards w with bias (2, -2): one step of rate 1 gives .5 + .5 * 2 = 1.5."""
    received = {**one_sample.start, "head/bias": np.array([2.0, -2.0], np.float32)}
    _, state = one_sample.train(
        one_sample.make_algorithm("ditto", **{**OPTIONS, "personal_epochs": 1}),
        ClientState(one_sample.start),
        received,
    )
    np.testing.assert_allclose(state.arrays["head/bias"], [1.5, -1.5], atol=1e-6)


def test_personal_model_stays_on_the_device(one_sample):
    """Another personal model changes nothing in the update."""
    algorithm = one_sample.make_algorithm("ditto", **OPTIONS)
    updates = []
    for value in (0.0, 3.0):
        personal = {**one_sample.start, "head/bias": np.array([value, -value], np.float32)}
        update, _ = one_sample.train(algorithm, ClientState(personal), one_sample.start)
        assert set(update.deltas) == {"global"} and set(update.deltas["global"]) == set(one_sample.start)
        updates.append(update)
    for name, delta in updates[0].deltas["global"].items():
        np.testing.assert_array_equal(delta, updates[1].deltas["global"][name])
    assert updates[0].metrics == updates[1].metrics
    assert updates[0].metrics.keys() == {"loss"}


@pytest.mark.parametrize("name", ["ditto", "apfl", "pfl-ft"])
def test_personal_model_beats_a_weak_global_model(name, shards):
    learner = SoftmaxLearner(softmax_spec(name, inputs=4, features=4, classes=3))
    algorithm = make_algorithm(name, learner, {"learning_rate": 0.1} if name == "apfl" else {})
    model = {
        "trunk/kernel": np.eye(4, dtype=np.float32),
        "head/kernel": np.zeros((4, 3), np.float32),
        "head/bias": np.zeros(3, np.float32),
    }
    state = ServerState(round=2, phase=PHASE_PERSONALIZE, models={"global": model, "initial": model})
    shard = shards["pi-2"]
    mixture, _ = algorithm.personalize(
        algorithm.broadcast(state, "pi-2"), ClientState(), shard, derive_rng(1, 2, "pi-2")
    )
    before = evaluate(
        learner, "predict", mixture.peers["federated"].weights, shard.x_test, shard.y_test
    ).accuracy
    after = evaluate(learner, "predict_mixture", mixture.weights, shard.x_test, shard.y_test).accuracy
    assert after > before + 0.2

"""PFL-MoE: the gate's step by hand, the split, and the client result of each kind."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.algorithms import PHASE_PERSONALIZE, make_algorithm
from edgefl.algorithms.mixtures.gate import split_gate_samples
from edgefl.learner import evaluate
from edgefl.rng import derive_rng
from edgefl.types import ClientState, ServerState
from tests.support.numpy_learner.softmax import SoftmaxLearner, softmax_spec


def test_gate_step_by_hand():
    """Oracle 13: global (2,0,0), local (0,2,0), g = .25, y = 0.

    The cross-entropy is 1.464369, and its derivative by the gate's logit is -.523990.
    """
    learner = SoftmaxLearner(softmax_spec("pfl-mfe", inputs=4, features=1, classes=3, batch_size=1))
    start = {"gate/kernel": np.zeros((1, 1), np.float32), "gate/bias": np.array([np.log(1 / 3)], np.float32)}
    data = {
        "gate_input": np.ones((1, 1), np.float32),
        "logits": np.array([[[2, 0, 0], [0, 2, 0]]], np.float32),
    }
    gate, loss = learner.fit(
        "train_gate", start, data, np.array([0]), epochs=1, rng=derive_rng(1, 1), hyper={"learning_rate": 1.0}
    )
    assert loss == pytest.approx(1.464369, abs=1e-6)
    assert start["gate/bias"][0] - gate["gate/bias"][0] == pytest.approx(-0.523990, abs=1e-6)


@given(count=st.integers(2, 500), share=st.floats(0.0, 1.0), seed=st.integers(0, 99))
def test_split_is_a_partition_with_no_empty_side(count, share, seed):
    local_rows, gate = split_gate_samples(np.zeros(count, np.int64), share, derive_rng(seed, 1))
    assert sorted([*local_rows, *gate]) == list(range(count))
    assert len(local_rows) and len(gate)


def test_split_of_the_paper_is_three_to_one():
    local_rows, gate = split_gate_samples(np.zeros(400, np.int64), 0.25, derive_rng(1, 1))
    assert (len(local_rows), len(gate)) == (300, 100)


def test_gate_and_local_model_train_on_different_recordings():
    """Each class has two recordings: one trains the local model, the other one trains the gate."""
    labels = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    recordings = np.array([0, 0, 1, 1, 2, 2, 3, 3])
    local_rows, gate = split_gate_samples(labels, 0.25, derive_rng(1, 1), recordings)
    assert sorted([*local_rows, *gate]) == list(range(8)) and len(gate) == 4
    assert not set(recordings[local_rows]) & set(recordings[gate])
    assert set(labels[local_rows]) == set(labels[gate]) == {0, 1}
    alone = split_gate_samples(labels, 0.25, derive_rng(1, 1), np.zeros(8, np.int64))
    assert [rows.tolist() for rows in alone] == [
        rows.tolist() for rows in split_gate_samples(labels, 0.25, derive_rng(1, 1))
    ]


def test_single_sample_trains_gate_and_local_model():
    assert [rows.tolist() for rows in split_gate_samples(np.zeros(1, np.int64), 0.25, derive_rng(1, 1))] == [
        [0],
        [0],
    ]


@pytest.mark.parametrize("name", ["pfl-fb", "pfl-mf", "pfl-mfe"])
def test_personal_model_beats_weak_global_model_and_keeps_its_trunk(name, shards):
    spec = softmax_spec(name, inputs=4, features=4, classes=3)
    learner = SoftmaxLearner(spec)
    options = {"adapt_learning_rate": 0.1, "adapt_epochs": 20, "gate_epochs": 20, "gate_learning_rate": 0.1}
    algorithm = make_algorithm(name, learner, options)
    model = {
        "trunk/kernel": np.eye(4, dtype=np.float32),
        "head/kernel": np.zeros((4, 3), np.float32),
        "head/bias": np.zeros(3, np.float32),
    }
    state = ServerState(2, PHASE_PERSONALIZE, {"global": model, "initial": model})
    shard = shards["pi-2"]
    mixture, _ = algorithm.personalize(
        algorithm.broadcast(state, "pi-2"), ClientState(), shard, derive_rng(1, 2, "pi-2")
    )
    np.testing.assert_array_equal(mixture.weights["trunk/kernel"], model["trunk/kernel"])
    before = evaluate(learner, "predict", model, shard.x_test, shard.y_test).accuracy
    after = evaluate(learner, "predict_mixture", mixture.weights, shard.x_test, shard.y_test).accuracy
    assert after > before + 0.2
    assert ("gate/kernel" in mixture.weights) == (name != "pfl-fb")


def test_the_mixture_is_the_gated_sum_of_logits(shards):
    learner = SoftmaxLearner(softmax_spec("pfl-mfe", inputs=4, features=4, classes=3))
    rng = np.random.default_rng(1)
    weights = {
        s.name: rng.normal(size=s.shape).astype(np.float32)
        for s in learner.spec.find_signature("predict_mixture").frozen
    }
    x = shards["pi-1"].x_test
    h = x @ weights["trunk/kernel"]
    g = 1 / (1 + np.exp(-(h @ weights["gate/kernel"] + weights["gate/bias"])))
    parts = [h @ weights[f"{p}/head/kernel"] + weights[f"{p}/head/bias"] for p in ("global", "local")]
    np.testing.assert_allclose(
        learner.predict("predict_mixture", weights, {"x": x}),
        g * parts[0] + (1 - g) * parts[1],
        rtol=1e-5,
        atol=1e-6,
    )

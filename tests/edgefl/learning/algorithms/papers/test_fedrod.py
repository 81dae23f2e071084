"""FedRoD: a step of both heads by hand, the balanced softmax, and a personal head that is never sent."""

from dataclasses import replace

import numpy as np
import pytest

from edgefl.base.config import FederationConfig
from edgefl.base.errors import ConfigError
from edgefl.base.rng import derive_rng
from edgefl.base.types import Broadcast, ClientState, Shard
from edgefl.learning.algorithms import make_algorithm
from edgefl.learning.algorithms.base import canonicalize_updates
from edgefl.learning.algorithms.papers.fedrod import EMPTY_CLASS_PRIOR, add_personal_head, compute_log_prior
from edgefl.program.learner.litert import LiteRTLearner
from tests.support.numpy_learner.softmax import SoftmaxLearner, softmax_spec
from tests.support.softmax_federation import simulate_softmax

PERSONAL_NAMES = {"personal/head/kernel", "personal/head/bias"}


def test_log_prior_counts_the_labels():
    np.testing.assert_allclose(
        compute_log_prior(np.array([0, 0, 2]), 3, 1.0),
        [np.log(2), np.log(EMPTY_CLASS_PRIOR), 0],
        rtol=1e-6,
    )
    np.testing.assert_allclose(
        compute_log_prior(np.array([0, 0, 2]), 3, 0.1),
        [0.1 * np.log(2), np.log(EMPTY_CLASS_PRIOR), 0],
        rtol=1e-6,
    )
    np.testing.assert_array_equal(compute_log_prior(np.array([0, 0, 2]), 3, 0.0), [0, 0, 0])


def test_a_client_of_one_class_trains_only_its_personal_head(one_sample):
    """The balanced softmax gives class 0 a probability of 1, so the generic head does not move.

    The personal head takes the whole step, (.5, -.5). The losses are 0 and log 2.
    """
    update, state = one_sample.train(one_sample.make_algorithm("fedrod"), ClientState(), one_sample.start)
    for delta in update.deltas["global"].values():
        np.testing.assert_allclose(delta, 0, atol=1e-6)
    np.testing.assert_allclose(state.arrays["personal/head/bias"], [0.5, -0.5], atol=1e-6)
    np.testing.assert_allclose(state.arrays["personal/head/kernel"], [[0.5, -0.5]], atol=1e-6)
    assert update.metrics["loss"] == pytest.approx(np.log(2) / 2, abs=1e-6)


def test_without_the_prior_the_generic_head_is_that_of_fedavg(one_sample):
    update, _ = one_sample.train(
        one_sample.make_algorithm("fedrod", prior_exponent=0.0), ClientState(), one_sample.start
    )
    expected, _ = one_sample.train(one_sample.make_algorithm("fedavg"), ClientState(), one_sample.start)
    for name, delta in expected.deltas["global"].items():
        np.testing.assert_array_equal(update.deltas["global"][name], delta)


def test_the_balanced_softmax_against_numpy(one_sample):
    """Three samples of class 0 and one of class 1, in one batch, with generic logits (.2, -.1)."""
    y = np.array([0, 0, 0, 1])
    x = np.ones((4, 1), np.float32)
    options = {"learning_rate": 1.0, "momentum": 0.0, "epochs": 1, "batch_size": 4}
    spec = softmax_spec("fedrod", inputs=1, features=1, classes=2, batch_size=4, options=options)
    algorithm = make_algorithm("fedrod", SoftmaxLearner(spec), options)
    start = {**one_sample.start, "head/bias": np.array([0.2, -0.1], np.float32)}
    before = ClientState(
        {
            "personal/head/kernel": np.zeros((1, 2), np.float32),
            "personal/head/bias": np.array([0, 1], np.float32),
        }
    )
    update, state = algorithm.local_update(
        Broadcast(round=1, phase="federate", models={"global": start}),
        before,
        Shard(x_train=x, y_train=y, x_test=x, y_test=y, num_classes=2),
        "a",
        derive_rng(1, 1, "a"),
    )
    shares = np.array([0.75, 0.25])
    balanced = np.array([3, 1]) * np.exp([0.2, -0.1])
    np.testing.assert_allclose(
        update.deltas["global"]["head/bias"], shares - balanced / balanced.sum(), atol=1e-6
    )
    personal = np.exp([0.2, 0.9])
    np.testing.assert_allclose(
        state.arrays["personal/head/bias"], np.array([0, 1]) + shares - personal / personal.sum(), atol=1e-6
    )


def test_the_personal_head_stays_on_the_device(one_sample):
    """Another personal head changes nothing in the update, except for the reported loss."""
    algorithm = one_sample.make_algorithm("fedrod", prior_exponent=0.5)
    updates = []
    for value in (0.0, 3.0):
        state = ClientState({"personal/head/bias": np.array([value, -value], np.float32)})
        update, state = one_sample.train(algorithm, state, one_sample.start)
        assert set(update.deltas) == {"global"} and set(update.deltas["global"]) == set(one_sample.start)
        assert set(state.arrays) == PERSONAL_NAMES
        assert set(update.metrics) == {"loss"}
        updates.append(update)
    for name, delta in updates[0].deltas["global"].items():
        assert delta.tobytes() == updates[1].deltas["global"][name].tobytes()


def test_mixture_adds_the_heads(one_sample):
    """The global model has the bias (1, -1) and the client the personal bias (2, 0).

    The client has one class, so the generic head does not move. The personal bias moves by 1 - p, with p of
    the logits (3, -1).
    """
    received = {**one_sample.start, "head/bias": np.array([1, -1], np.float32)}
    state = ClientState({"personal/head/bias": np.array([2, 0], np.float32)})
    mixture, _ = one_sample.personalize(one_sample.make_algorithm("fedrod"), state, {"global": received})
    step = 1 / (1 + np.exp(4))
    np.testing.assert_allclose(mixture.weights["head/bias"], [3 + step, -1 - step], atol=1e-6)
    np.testing.assert_array_equal(mixture.peers["federated"].weights["head/bias"], [1, -1])
    assert add_personal_head(received, {}) == received


def test_a_simulated_federation_personalizes(shards):
    """Clients have two or three of three classes."""
    options = {"learning_rate": 0.1, "epochs": 2}
    spec = softmax_spec("fedrod", inputs=4, features=4, classes=3, options=options)
    config = FederationConfig(rounds=4, algorithm="fedrod", options=options)
    end = simulate_softmax(spec, shards, config)
    for metrics in end.metrics.values():
        assert metrics["accuracy_mixture"] > 0.9
    assert set(end.state.models) == {"global"} and set(end.state.models["global"]) == {
        "trunk/kernel",
        "head/kernel",
        "head/bias",
    }


def make_small_network(**output_options):
    import keras

    from edgefl.program.compiler.network import Network

    layers = keras.layers
    return Network(
        keras.Sequential(
            [
                keras.Input((4,)),
                layers.Dense(3, activation="relu", name="fc1"),
                layers.Dense(2, name="fc2", **output_options),
            ]
        )
    )


def test_compiled_losses_are_those_of_numpy(tiny_config, digits):
    """One step on a batch in the compiled plan, without dropout noise: only the biases are checked."""
    from edgefl.learning.algorithms.plans import build_plan

    options = {"epochs": 1, "learning_rate": 0.1, "momentum": 0.0, "batch_size": 8}
    plan, initial = build_plan(replace(tiny_config, algorithm="fedrod", options=options))
    learner = LiteRTLearner(plan)
    x = digits[0][:8]
    y = np.array([0, 0, 0, 1, 1, 2, 2, 2])
    log_prior = compute_log_prior(y, 10, 1.0)
    # With output kernels of zero, the logits are the biases.
    rng = np.random.default_rng(1)
    weights = {
        **initial,
        "fc2/kernel": np.zeros((16, 10), np.float32),
        "fc2/bias": rng.normal(size=10).astype(np.float32),
        "personal/fc2/kernel": np.zeros((16, 10), np.float32),
        "personal/fc2/bias": rng.normal(size=10).astype(np.float32),
        "log_prior": log_prior,
    }
    trained, loss = learner.fit("train", weights, {"x": x}, y, epochs=1, rng=derive_rng(1, 1))
    shares = np.bincount(y, minlength=10) / 8
    expected_loss = 0.0
    for name, logits in (
        ("fc2/bias", weights["fc2/bias"] + log_prior),
        ("personal/fc2/bias", weights["fc2/bias"] + weights["personal/fc2/bias"]),
    ):
        p = np.exp(logits - logits.max())
        p /= p.sum()
        np.testing.assert_allclose(trained[name], weights[name] + 0.1 * (shares - p), atol=1e-5)
        expected_loss -= float((shares[:3] * np.log(p[:3])).sum())
    assert loss == pytest.approx(expected_loss, abs=1e-4)


@pytest.mark.parametrize("use_bias", [True, False])
def test_the_personal_loss_trains_only_the_personal_head(use_bias):
    """With one class, the balanced softmax has no gradient, so only the personal head moves."""
    import tensorflow as tf

    from edgefl.learning.algorithms import build_objectives

    train = build_objectives("fedrod", make_small_network(use_bias=use_bias), {})[0]
    names = [spec.name for spec in train.trained]
    assert ("personal/fc2/bias" in names) is use_bias and "personal/fc2/kernel" in names
    rng = np.random.default_rng(2)
    variables = {
        spec.name: tf.Variable(rng.normal(size=spec.shape).astype(np.float32)) for spec in train.trained
    }
    prior = tf.constant(compute_log_prior(np.zeros(5, np.int64), 2, 1.0))
    data = {"x": tf.constant(rng.normal(size=(5, 4)).astype(np.float32)), "y": tf.zeros(5, tf.int32)}
    with tf.GradientTape() as tape:
        losses, _ = train.loss_per_sample({**variables, "log_prior": prior}, data, {})
    gradients = dict(zip(variables, tape.gradient(losses, list(variables.values())), strict=True))
    for name, gradient in gradients.items():
        size = float(tf.reduce_max(tf.abs(gradient)))
        assert (size > 1e-3) if name.startswith("personal/") else (size < 1e-5), name


def test_a_frozen_output_layer_is_an_error():
    from edgefl.learning.algorithms import build_objectives

    with pytest.raises(ConfigError, match="frozen; make it trainable"):
        build_objectives("fedrod", make_small_network(trainable=False), {})


def test_generic_heads_are_averaged(one_sample):
    algorithm = one_sample.make_algorithm("fedrod", prior_exponent=0.0)
    state = algorithm.init(one_sample.start, derive_rng(1, 0, "init"))
    update, _ = one_sample.train(algorithm, ClientState(), one_sample.start)
    other = replace(
        update,
        client_id="b",
        num_samples=3,
        deltas={"global": {n: a * 0 for n, a in update.deltas["global"].items()}},
    )
    after = algorithm.aggregate(state, canonicalize_updates(state, [other, update]))
    np.testing.assert_allclose(after.models["global"]["head/bias"], [0.125, -0.125], atol=1e-6)

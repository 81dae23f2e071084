"""Activations that the converter writes in a form that overflows."""

import keras
import numpy as np
import pytest

from edgefl.base.config import FederationConfig, ModelConfig
from edgefl.learning.algorithms.plans import build_plan
from edgefl.program.learner.litert import LiteRTLearner

NAMES = ("softplus", pytest.param("log_sigmoid", marks=pytest.mark.slow))


def build_chain(name):
    keras.utils.set_random_seed(1)
    dense = keras.layers.Dense
    return keras.Sequential(
        [keras.Input((4,)), dense(8, activation=name, name="hidden"), dense(3, name="last")]
    )


@pytest.mark.parametrize("name", NAMES)
def test_activation_of_large_values_equals_keras_in_value_and_slope(name, tmp_path):
    """A step with the batch of both sides of 0, with values up to 400, and a value of 0 itself."""
    path = tmp_path / "model.keras"
    build_chain(name).save(path)
    config = FederationConfig(model=ModelConfig(name=str(path), input_shape=(4,), num_classes=3))
    plan, weights = build_plan(config)
    learner = LiteRTLearner(plan)
    model = build_chain(name)
    rng = np.random.default_rng(1)
    x = (rng.normal(size=(10, 4)) * 100).astype(np.float32)
    x[0] = 0
    expected = np.asarray(model(x))
    np.testing.assert_allclose(learner.predict("predict", weights, {"x": x}), expected, rtol=1e-5, atol=1e-5)

    y = rng.integers(0, 3, 10)
    rate = 1e-4
    trained, loss = learner.fit(
        "train",
        weights,
        {"x": x},
        y,
        epochs=1,
        rng=rng,
        hyper={"learning_rate": rate, "momentum": 0.0, "weight_decay": 0.0},
    )
    model.compile(keras.optimizers.SGD(rate), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    assert np.isfinite(loss)
    model.fit(x, y, batch_size=10, epochs=1, verbose=0)
    for variable in model.weights:
        layer, kind = variable.path.split("/")[-2:]
        np.testing.assert_allclose(
            trained[f"{layer}/{kind}"], np.asarray(variable), rtol=1e-4, atol=1e-5, err_msg=variable.path
        )

"""Layers on images with swapped batch and channels match Keras, and no image is swapped back between them."""

import keras
import numpy as np
import pytest
from keras import layers

from edgefl.base.config import FederationConfig, ModelConfig
from edgefl.base.rng import derive_rng
from edgefl.learning.algorithms.plans import build_plan
from edgefl.program.compiler import objective as of
from edgefl.program.compiler.network import Network
from edgefl.program.compiler.optimizer import sgd
from edgefl.program.learner.keras import KerasLearner
from edgefl.program.learner.litert import LiteRTLearner
from edgefl.program.plan.inspect import inspect_plan
from tests.support.network_plan import compile_network_plan


def build_image_model() -> keras.Model:
    """Return a model that alternates layers on swapped images with layers on plain images.

    Softmax, pointwise convolution, norm and dropout need plain images.
    """
    x = keras.Input((9, 8, 2))
    y = layers.Conv2D(6, 3, padding="same", activation="tanh", name="a")(x)
    z = layers.LeakyReLU(name="leaky")(layers.Conv2D(6, (3, 2), padding="same", use_bias=False, name="b")(y))
    y = layers.Activation("sigmoid", name="sigmoid")(layers.Add(name="add")([y, z]))
    y = layers.AveragePooling2D(2, name="mean")(layers.ZeroPadding2D(1, name="edge")(y))
    y = layers.Conv2D(5, 2, strides=2, activation="softmax", name="c")(y)
    y = layers.GroupNormalization(1, name="norm")(layers.Conv2D(4, 1, activation="relu", name="d")(y))
    y = layers.Conv2D(4, 3, dilation_rate=2, padding="same", name="e")(layers.Dropout(0.2, name="drop")(y))
    y = layers.MaxPooling2D(2, padding="same", name="max")(layers.Activation("softmax", name="softmax")(y))
    return keras.Model(x, layers.Dense(3, name="fc")(layers.Flatten(name="flatten")(y)))


def build_window_model() -> keras.Model:
    """Return a similar model for one-dimensional windows."""
    x = keras.Input((20, 3))
    y = layers.MaxPooling1D(2, name="max")(layers.Conv1D(4, 5, activation="relu", name="a")(x))
    y = layers.ELU(name="elu")(
        layers.Conv1D(6, 3, strides=2, padding="same", name="b")(layers.ZeroPadding1D(1, name="edge")(y))
    )
    y = layers.GlobalAveragePooling1D(name="average")(layers.AveragePooling1D(2, name="mean")(y))
    return keras.Model(x, layers.Dense(3, name="fc")(y))


@pytest.mark.parametrize("make", [build_image_model, build_window_model])
def test_swapped_layers_train_and_predict_like_keras(make):
    keras.utils.set_random_seed(0)
    network = Network(make())
    objectives = (of.classify(network, 4, sgd(0.1, momentum=0.5)), of.predict_logits(network, 4))
    plan = compile_network_plan(network, objectives)
    rng = np.random.default_rng(0)
    x = rng.random((10, *network.input_shape), dtype=np.float32)
    y = rng.integers(0, 3, 10)
    weights = network.read_weights()
    learners = (LiteRTLearner(plan), KerasLearner(plan.spec, objectives))
    got, expected = (
        learner.fit("train", weights, {"x": x}, y, epochs=2, rng=derive_rng(1, 1))[0] for learner in learners
    )
    for name in expected:
        np.testing.assert_allclose(got[name], expected[name], atol=1e-5, err_msg=name)
        assert not np.array_equal(got[name], weights[name]), name
    got, expected = (learner.predict("predict", weights, {"x": x}) for learner in learners)
    np.testing.assert_allclose(got, expected, atol=1e-5)


def test_lenet_transposes_only_image_filter_and_features():
    """Prediction transposes the image, the second filter and the features.

    A training step also transposes the gradients of the filter and of the features.
    """
    plan, _ = build_plan(FederationConfig(algorithm="fedavg", model=ModelConfig(name="lenet5")))
    report = inspect_plan(plan)["signatures"]
    assert report["predict"]["ops"]["TRANSPOSE"] == 3
    assert report["train"]["ops"]["TRANSPOSE"] == 5
    assert "CONV_2D" not in report["train"]["ops"]

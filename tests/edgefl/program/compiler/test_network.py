"""A network as pure functions: names, split, noise, logits, and models that it refuses."""

from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from edgefl.base.config import ModelConfig
from edgefl.base.errors import PlanError
from edgefl.program.compiler import objective as of
from edgefl.program.compiler.network import Network
from edgefl.program.compiler.optimizer import sgd
from edgefl.program.compiler.template import build_template
from edgefl.program.models import build_model

L = keras.layers


def make_constants(network: Network) -> dict[str, tf.Tensor]:
    return {name: tf.constant(value) for name, value in network.read_weights().items()}


def test_lenet5_is_split_at_its_classifier():
    network = Network(build_model(ModelConfig(name="lenet5")))
    assert network.trunk_names == ("conv1/kernel", "conv1/bias", "conv2/kernel", "conv2/bias")
    assert network.head_names == (
        "fc1/kernel",
        "fc1/bias",
        "fc2/kernel",
        "fc2/bias",
        "fc3/kernel",
        "fc3/bias",
    )
    assert network.features_shape == (400,)
    x = np.random.default_rng(0).random((3, 28, 28, 1), dtype=np.float32)
    weights = make_constants(network)
    logits, updates = network.apply(weights, x)
    np.testing.assert_allclose(
        network.apply_head(weights, network.apply_trunk(weights, x)), logits, atol=1e-6
    )
    assert updates == {}


def test_apply_uses_its_arguments_and_not_the_models_weights():
    model = keras.Sequential([keras.Input((2,)), L.Dense(2, name="fc")])
    network = Network(model)
    weights = {"fc/kernel": tf.constant([[1.0, 2.0], [3.0, 4.0]]), "fc/bias": tf.constant([10.0, 20.0])}
    np.testing.assert_allclose(network.apply(weights, tf.constant([[1.0, 1.0]]))[0], [[14.0, 26.0]])


@pytest.mark.parametrize(
    "end", [[L.Dense(2, activation="softmax", name="fc")], [L.Dense(2, name="fc"), L.Softmax()]]
)
def test_final_softmax_is_removed(end):
    network = Network(keras.Sequential([keras.Input((2,)), *end]))
    weights = {"fc/kernel": tf.constant([[1.0, 2.0], [3.0, 4.0]]), "fc/bias": tf.constant([0.0, 0.0])}
    np.testing.assert_allclose(network.apply(weights, tf.constant([[1.0, 1.0]]))[0], [[4.0, 6.0]])


def test_layer_of_both_parts_is_named_with_a_remedy():
    x = keras.Input((8,))
    shared = L.Dense(8, "relu", name="shared")
    y = shared(L.LayerNormalization()(shared(x)))
    network = Network(keras.Model(x, L.Dense(3)(y)))
    weights = {name: make_constants(network)[name] for name in network.trunk_names}
    with pytest.raises(PlanError, match=r"shared/kernel is used both before .* use two layers, or .* fedavg"):
        network.apply_trunk(weights, tf.zeros((2, 8)))


def test_dropout_keeps_values_where_noise_reaches_the_dropout_rate():
    model = keras.Sequential(
        [keras.Input((4,)), L.Dense(4, name="a"), L.Dropout(0.5, name="drop"), L.Dense(4, name="b")]
    )
    network = Network(model)
    (spec,) = network.list_noise(2)
    assert (spec.name, spec.shape) == ("drop", (2, 4))
    assert network.list_head_noise(2) == (spec,)
    eye = {"a/kernel": tf.eye(4), "a/bias": tf.zeros(4), "b/kernel": tf.eye(4), "b/bias": tf.zeros(4)}
    noise = tf.constant([[0.0, 0.49, 0.5, 0.99]])
    np.testing.assert_allclose(
        network.apply(eye, tf.ones((1, 4)), training=True, noise={"drop": noise})[0], [[0, 0, 2, 2]]
    )
    np.testing.assert_allclose(network.apply(eye, tf.ones((1, 4)))[0], [[1, 1, 1, 1]])


def test_noise_of_the_head_is_that_of_its_own_dropouts():
    """The trunk has a dropout of the same name, with another shape."""
    inner = keras.Sequential(
        [keras.Input((4,)), L.Dense(8, "relu"), L.Dropout(0.5, name="drop"), L.Reshape((2, 4)), L.Flatten()],
        name="inner",
    )
    ends = [L.Dense(3, "relu", name="a"), L.Dropout(0.5, name="drop"), L.Dense(2, name="b")]
    network = Network(keras.Sequential([keras.Input((4,)), inner, *ends]))
    assert [spec.shape for spec in network.list_noise(5)] == [(5, 8), (5, 3)]
    (spec,) = network.list_head_noise(5)
    assert spec.shape == (5, 3)
    weights = make_constants(network)
    noise = {spec.name: tf.zeros(spec.shape)}
    dropped = network.apply_head(weights, tf.ones((5, 8)), training=True, noise=noise)
    np.testing.assert_allclose(dropped, np.tile(weights["b/bias"], (5, 1)))


def test_norms_of_the_same_name_in_two_nested_models_keep_their_epsilons():
    blocks = [
        keras.Sequential(
            [keras.Input((4,)), L.Dense(4), L.BatchNormalization(epsilon=epsilon, name="norm"), L.ReLU()],
            name=name,
        )
        for name, epsilon in (("first", 0.1), ("second", 1e-4))
    ]
    network = Network(keras.Sequential([keras.Input((4,)), *blocks, L.Dense(2)]))
    assert network.epsilons == {"first/norm": 0.1, "second/norm": 1e-4}
    template, bindings = build_template(of.predict_logits(network, 2), network.epsilons)
    assert template and {"first/norm/beta", "second/norm/beta"} <= {b.weight for b in bindings}


def test_norm_inside_of_a_layer_has_an_epsilon():
    norm = L.TimeDistributed(L.BatchNormalization(epsilon=0.2, name="norm"), name="steps")
    network = Network(keras.Sequential([keras.Input((3, 4)), norm, L.Flatten(), L.Dense(2)]))
    assert network.epsilons == {"steps/norm": 0.2}


def test_batch_norm_returns_its_new_statistics():
    norm = L.BatchNormalization(momentum=0.9, epsilon=1e-3, name="norm")
    network = Network(keras.Sequential([keras.Input((1,)), norm, L.Dense(2, name="fc")]))
    assert network.statistics == ("norm/moving_mean", "norm/moving_variance")
    assert network.trainable == ("norm/gamma", "norm/beta", "fc/kernel", "fc/bias")
    assert network.epsilons == {"norm": 1e-3}
    _, updates = network.apply(make_constants(network), tf.constant([[1.0], [3.0]]), training=True)
    np.testing.assert_allclose(updates["norm/moving_mean"], [0.2], atol=1e-6)
    np.testing.assert_allclose(updates["norm/moving_variance"], [0.9 + 0.1], atol=1e-6)


def test_frozen_layer_is_neither_trained_nor_updated():
    network = Network(
        keras.Sequential(
            [keras.Input((3,)), L.Dense(4, trainable=False, name="frozen"), L.Dense(2, name="fc")]
        )
    )
    assert network.trainable == ("fc/kernel", "fc/bias")
    assert network.statistics == ()
    assert {spec.name for spec in network.specs} == {"frozen/kernel", "frozen/bias", "fc/kernel", "fc/bias"}


def test_frozen_head_stays_as_it_is():
    """No algorithm draws it again or trains it."""
    network = Network(
        keras.Sequential(
            [keras.Input((3,)), L.Dense(4, "relu", name="fc"), L.Dense(2, trainable=False, name="frozen")]
        )
    )
    assert set(network.draw_head(np.random.default_rng(0))) == {"fc/kernel", "fc/bias"}
    trunk = [keras.Input((3, 1)), L.Conv1D(2, 1, activation="relu"), L.Flatten()]
    network = Network(keras.Sequential([*trunk, L.Dense(2, trainable=False, name="frozen")]))
    with pytest.raises(
        PlanError, match="train_head trains the last dense layers, but frozen/kernel, frozen/bias"
    ):
        of.train_head(network, 2, sgd(0.1))


def build_two_output_model() -> keras.Model:
    x = keras.Input((3,))
    return keras.Model(x, [L.Dense(2)(x), L.Dense(2)(x)])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (build_two_output_model, "one input and one output"),
        (lambda: keras.Sequential([L.Dense(2)]), "keras.Input"),
        (
            lambda: keras.Sequential([keras.Input((4, 4, 1)), L.Conv2D(2, 1), L.GlobalAveragePooling2D()]),
            "ends with layer global_average_pooling2d .* expected a Dense classifier",
        ),
        (
            lambda: keras.Sequential([keras.Input((3,)), L.Dense(2, "sigmoid", name="last")]),
            "layer last ends the model with sigmoid",
        ),
        (
            lambda: keras.Sequential([keras.Input((3,)), L.GaussianNoise(0.1, name="noisy"), L.Dense(2)]),
            "layer noisy .GaussianNoise",
        ),
    ],
)
def test_unsupported_models_are_refused(model, message):
    with pytest.raises(PlanError, match=message):
        Network(model())


@pytest.mark.parametrize(
    ("shape", "mean", "std"),
    [
        ((4, 4, 1), [0.5], [0.2]),
        ((4, 4, 3), [0.5], [0.2]),
        ((4, 4, 3), [0.5, -1.0, 100.0], [0.2, 2.0, 1e-7]),
        ((8, 9), [0.0] * 9, [30.0] * 9),
    ],
)
def test_plan_and_network_normalize_samples_alike(tiny, shape, mean, std):
    model = ModelConfig(
        name="softmax", input_shape=shape, num_classes=4, options={}, mean=tuple(mean), std=tuple(std)
    )
    x = np.random.default_rng(0).random((5, *shape), np.float32)
    expected = Network(build_model(model)).normalize_input(x)
    spec = replace(tiny[0].spec, model_options={"mean": mean, "std": std})
    np.testing.assert_allclose(spec.normalize_input(x), expected, rtol=1e-4, atol=1e-5)
    assert tiny[0].spec.normalize_input(x) is x

"""Models that scale their own input: which layers count, and what the plan then says about samples."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from edgefl.base.config import FederationConfig, ModelConfig, SamplesConfig
from edgefl.base.errors import ConfigError
from edgefl.base.tasks.config import TaskConfig
from edgefl.learning.algorithms.plans import build_plan
from edgefl.program.models import build_model
from edgefl.program.models.input_scaling import (
    InputScaling,
    choose_samples,
    find_constant_scaling,
    find_input_scaling,
)
from edgefl.program.models.zoo.catalog import list_models
from edgefl.program.plan.spec import read_samples_config

COLOUR = (8, 8, 3)
SHAPE = (8, 8, 1)
PIXELS = np.random.default_rng(3).integers(0, 256, (200, *SHAPE)).astype(np.float32)


def make_model(*first: layers.Layer) -> keras.Model:
    return keras.Sequential([keras.Input(SHAPE), *first, layers.Flatten(), layers.Dense(3)])


def adapt(samples: np.ndarray, name: str = "scaler") -> layers.Normalization:
    layer = layers.Normalization(name=name)
    layer.adapt(samples)
    return layer


def train_norm(samples: np.ndarray) -> layers.BatchNormalization:
    layer = layers.BatchNormalization(momentum=0.0, name="scaler")
    layer(samples, training=True)
    return layer


@pytest.mark.parametrize(
    ("first", "high"),
    [
        (lambda: [layers.Rescaling(1 / 255, name="scaler")], 255),
        (lambda: [layers.Rescaling(1 / 127.5, offset=-1, name="scaler")], 255),
        (lambda: [layers.Rescaling(-1 / 255, offset=1, name="scaler")], 255),
        (lambda: [layers.Reshape(SHAPE), layers.Rescaling(1 / 16, name="scaler")], 16),
        (lambda: [keras.Sequential([keras.Input(SHAPE), layers.Rescaling(1 / 255, name="scaler")])], 255),
        (lambda: [adapt(PIXELS)], 275),
        (lambda: [train_norm(PIXELS)], 275),
        (lambda: [layers.Rescaling(2.0, offset=-1)], None),
        (lambda: [layers.Rescaling(255.0)], None),
        (lambda: [layers.Rescaling(0.0)], None),
        (lambda: [adapt(PIXELS / 255)], None),
        (lambda: [train_norm(PIXELS / 255)], None),
        (lambda: [layers.BatchNormalization()], None),
        (lambda: [layers.Conv2D(2, 3), layers.Rescaling(1 / 255)], None),
        (lambda: [layers.Resizing(6, 6), layers.Rescaling(1 / 255, name="scaler")], 255),
        (lambda: [layers.MaxPooling2D(2), layers.Flatten(), layers.Rescaling(1 / 255, name="scaler")], 255),
        (lambda: [layers.Lambda(lambda x: x / 255.0, name="scaler")], 255),
        (lambda: [layers.Rescaling(1 / 255, name="scaler"), layers.ReLU()], 255),
        (lambda: [layers.Rescaling(1 / 255, name="scaler"), layers.BatchNormalization()], 255),
        (lambda: [layers.Rescaling(1 / 255), layers.Rescaling(255.0)], None),
        (lambda: [layers.Flatten(), layers.UnitNormalization()], None),
        (list, None),
    ],
)
def test_the_first_layer_that_expects_other_values_than_0_to_1_is_found(first, high) -> None:
    found = find_input_scaling(make_model(*first()))
    if high is None:
        assert found is None
        return
    assert found is not None
    assert (found.layer, found.high) == ("scaler", pytest.approx(high, abs=3))


@pytest.mark.parametrize(
    ("scale", "high"),
    [
        (lambda x: x / 255.0, 255),
        (lambda x: x * (1 / 255), 255),
        (lambda x: (x - 127.5) / 127.5, 255),
        (keras.applications.mobilenet_v2.preprocess_input, 255),
        (lambda x: x * 2.0 - 1.0, None),
        (keras.ops.log, None),
        (lambda x: keras.ops.split(x, 2, axis=1)[0] / 255.0, None),
    ],
)
def test_arithmetic_in_front_of_the_first_layer_scales_too(scale, high) -> None:
    x = keras.Input(SHAPE)
    found = find_input_scaling(keras.Model(x, layers.Dense(3)(layers.Flatten()(scale(x)))))
    assert (found and found.high) == (high and pytest.approx(high, abs=0.1))


def test_layers_of_several_models_are_seen() -> None:
    """Each layer is called twice, and the first model has other samples in front of it."""
    shared = [layers.Rescaling(1 / 255, name="scaler"), layers.Flatten(), layers.Dense(3)]
    keras.Sequential([keras.Input(SHAPE), layers.Rescaling(255.0), *shared])
    again = find_input_scaling(keras.Sequential([keras.Input(SHAPE), *shared]))
    assert again == InputScaling("scaler", pytest.approx(255, abs=0.1))
    base = keras.Sequential([keras.Input(SHAPE), *shared])
    assert find_input_scaling(base) == again, "the search changed the model"
    x = keras.Input(SHAPE)
    transferred = keras.Model(x, layers.Dense(2)(base(layers.Rescaling(255.0)(x))))
    assert find_input_scaling(transferred) is None


def test_model_without_one_input_is_left_to_the_compiler() -> None:
    x = keras.Input(SHAPE)
    both = keras.Model([x, keras.Input(SHAPE)], layers.Flatten()(x))
    assert find_input_scaling(both) is None
    inner = keras.Model(inputs := [keras.Input(SHAPE), keras.Input(SHAPE)], layers.Add()(inputs))
    assert find_input_scaling(keras.Model(x, layers.Flatten()(inner([x, x])))) is None
    assert find_input_scaling(keras.Sequential([layers.Rescaling(1 / 255)])) is None


def test_constants_of_the_configuration_count_like_a_layer() -> None:
    pixels = find_constant_scaling(ModelConfig(mean=(33.3,), std=(78.6,)))
    assert pixels is not None and pixels.high == pytest.approx(190.5)
    assert find_constant_scaling(ModelConfig(mean=(0.13,), std=(0.31,))) is None
    assert find_constant_scaling(ModelConfig()) is None


def test_no_built_in_model_scales_its_input() -> None:
    for name in list_models():
        shape = (16, 3) if name in ("cnn1d", "conv-autoencoder") else (32, 32, 1)
        task = TaskConfig(kind="anomaly" if "autoencoder" in name else "classification")
        model = ModelConfig(name=name, input_shape=shape, num_classes=task.count_outputs(shape, 10))
        assert find_input_scaling(build_model(model, task)) is None, name


@pytest.mark.parametrize(
    ("samples", "shape", "expected"),
    [
        (SamplesConfig(), SHAPE, SamplesConfig(scale=1, max_value=255)),
        (SamplesConfig(max_value=1), SHAPE, SamplesConfig(scale=1, max_value=255)),
        (SamplesConfig(scale=1), SHAPE, SamplesConfig(scale=1)),
        (SamplesConfig(), (16, 3), SamplesConfig(scale=1)),
    ],
)
def test_samples_of_a_model_that_scales_are_not_divided(samples, shape, expected) -> None:
    assert choose_samples(samples, InputScaling("scaler", 255), shape) == expected
    assert choose_samples(samples, None, shape) == samples


def test_scale_beside_a_scaling_layer_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="scale is 255, and the layer 'scaler' of the model scales samples of up"
    ):
        choose_samples(SamplesConfig(scale=255), InputScaling("scaler", 255), SHAPE)


def test_plan_of_a_model_that_scales_says_so(tmp_path) -> None:
    make_model(layers.Rescaling(1 / 255, name="scaler")).save(tmp_path / "own.keras")
    config = FederationConfig(
        model=ModelConfig(name=str(tmp_path / "own.keras"), input_shape=SHAPE, num_classes=3)
    )
    plan, _ = build_plan(config)
    assert read_samples_config(plan.spec) == SamplesConfig(scale=1, max_value=255)
    assert plan.spec.format == 5


class Divides(keras.Layer):
    def call(self, x: Any) -> Any:
        return x / 255.0


def divide(x: Any) -> Any:
    return keras.ops.subtract(x / 127.5, 1.0)


def nest_rescaling() -> Any:
    """Three equal channels for a network that was made for colours."""
    base = keras.Sequential([keras.Input(COLOUR), layers.Rescaling(1 / 127.5, -1, name="scaler")])
    return lambda x: layers.Conv2D(2, 3)(base(layers.Concatenate()([x, x, x])))


PREFIXES: dict[str, tuple[Any, float | None]] = {
    "resized": (lambda: [layers.Resizing(4, 4), layers.Rescaling(1 / 255, name="scaler")], 255),
    "flattened": (lambda: [layers.Flatten(), layers.Rescaling(1 / 255, name="scaler")], 255),
    "pooled": (lambda: [layers.AveragePooling2D(2), layers.Rescaling(1 / 255, name="scaler")], 255),
    "padded": (lambda: [layers.ZeroPadding2D(1), layers.Rescaling(1 / 127.5, -1, name="scaler")], 255),
    "turned at random": (lambda: [layers.RandomRotation(0.1), layers.Rescaling(1 / 255, name="scaler")], 255),
    "in two steps": (lambda: [layers.Rescaling(1 / 15, name="scaler"), layers.Rescaling(1 / 17)], 255),
    "then adapted": (lambda: [layers.Rescaling(1 / 255, name="scaler"), adapt(PIXELS / 255, "n")], 255),
    "adapted behind a factor": (lambda: [layers.Rescaling(0.5), adapt(PIXELS / 2)], 275),
    "own layer": (lambda: [Divides(name="scaler")], 255),
    "own layer in a model": (lambda: [keras.Sequential([keras.Input(SHAPE), Divides(name="scaler")])], 255),
    "clipped": (lambda: [layers.ReLU(1.0), layers.Flatten()], None),
    "sums": (lambda: [layers.AveragePooling2D(2), layers.Rescaling(4.0)], None),
    "fails": (lambda: [layers.CategoryEncoding(3), layers.Rescaling(1 / 255)], None),
}


@pytest.mark.parametrize("name", PREFIXES)
def test_scaling_is_seen_behind_layers_without_weights(name) -> None:
    make, high = PREFIXES[name]
    x = keras.Input(SHAPE)
    y = x
    for layer in make():
        y = layer(y)
    scaling = find_input_scaling(keras.Model(x, layers.Dense(3)(layers.Flatten()(y))))
    assert scaling is None if high is None else scaling == InputScaling("scaler", pytest.approx(high, abs=3))


OPERATORS: dict[str, tuple[Any, float | None]] = {
    "division": (lambda x: layers.Conv2D(2, 3)(x / 255.0), 255),
    "division and subtraction": (lambda x: layers.Conv2D(2, 3)(divide(x)), 255),
    "nested": (lambda x: nest_rescaling()(x), 255),
    "difference of neighbours": (lambda x: layers.Conv2D(2, 3)(x[:, 1:] - x[:, :-1]), None),
    "logarithm": (lambda x: layers.Conv2D(2, 3)(keras.ops.log(x + 1e-3)), None),
    "logarithm of zero": (lambda x: layers.Conv2D(2, 3)(keras.ops.log(x)), None),
    "reciprocal": (lambda x: layers.Conv2D(2, 3)(1 / x), None),
    "mean of the sample": (lambda x: layers.Conv2D(2, 3)(x - keras.ops.mean(x, (1, 2), keepdims=True)), None),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_scaling_by_operators_is_seen(name) -> None:
    apply, high = OPERATORS[name]
    x = keras.Input(SHAPE)
    scaling = find_input_scaling(keras.Model(x, layers.Dense(3)(layers.Flatten()(apply(x)))))
    assert (scaling and scaling.high) == (high and pytest.approx(high, abs=3))

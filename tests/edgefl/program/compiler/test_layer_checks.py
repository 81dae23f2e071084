"""What a layer carries beside its weights is computed, or refused by the name of the layer."""

from typing import Any

import keras
import numpy as np
import pytest

from edgefl.base.errors import PlanError
from edgefl.program.compiler import objective as of
from edgefl.program.compiler.compare import check_program
from edgefl.program.compiler.compile import compile_program
from edgefl.program.compiler.network import Network
from edgefl.program.compiler.optimizer import sgd

L = keras.layers


def build(shape: tuple[int, ...], *layers: Any, dtype: str | None = None) -> Any:
    keras.utils.set_random_seed(1)
    return keras.Sequential([keras.Input(shape, dtype=dtype), *layers, L.Flatten(), L.Dense(3, name="end")])


def quantize(model: Any) -> Any:
    model.quantize("int8")
    return model


def add_lora(model: Any) -> Any:
    model.layers[0].enable_lora(2)
    return model


class AddsLoss(keras.Layer):
    def call(self, x: Any) -> Any:
        self.add_loss(0.5 * keras.ops.sum(x**2))
        return x


class Block(keras.Model):
    """A model of layers without a graph, as in many repositories."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.fc = L.Dense(6, "tanh")
        self.norm = L.BatchNormalization()

    def call(self, x: Any, training: bool | None = None) -> Any:
        return self.norm(self.fc(x), training=training)


class LeaksBatch(keras.Layer):
    """A layer whose output for a sample depends on the other samples."""

    def call(self, x: Any) -> Any:
        return x - keras.ops.mean(x, axis=0, keepdims=True)


class ScaledDense(L.Dense):
    def call(self, x: Any) -> Any:
        return 2.0 * super().call(x)


def spoil(model: Any, layer: str, value: float) -> Any:
    model.get_layer(layer).weights[0].assign(np.full(model.get_layer(layer).weights[0].shape, value))
    return model


def adapt_normalization(value: float) -> Any:
    layer = L.Normalization(name="n")
    layer.adapt(np.array([[1.0], [2.0], [value]], np.float32))
    return layer


def freeze(model: Any) -> Any:
    model.trainable = False
    return model


class Fails(keras.Layer):
    def call(self, x: Any) -> Any:
        if keras.tree.flatten(x)[0].shape[0] is None:
            return x
        raise KeyError("rows")


def share_dropout() -> Any:
    x = keras.Input((4, 4, 1))
    drop = L.Dropout(0.5)
    y = L.Dense(4, "relu")(L.Flatten()(drop(L.Conv2D(2, 3)(x))))
    return keras.Model(x, L.Dense(3)(drop(y)))


def subtract_constant() -> Any:
    x = keras.Input((6,))
    means = keras.ops.convert_to_tensor(np.arange(6, dtype=np.float32))
    return keras.Model(x, L.Dense(3)(L.Dense(4, "relu")(keras.ops.subtract(x, means))))


def call_operation(operation: Any, *, is_nested: bool = False) -> Any:
    x, y = keras.Input((6,)), keras.Input((6,))
    inner = keras.Model(x, operation(L.Dense(4)(x)))
    return keras.Model(y, L.Dense(3)(inner(y))) if is_nested else keras.Model(x, L.Dense(3)(inner.outputs[0]))


REFUSED: dict[str, tuple[Any, str]] = {
    "embedding": (
        lambda: build((6,), L.Embedding(20, 4, name="words")),
        r"layer words \(Embedding\) looks up whole numbers .*one-hot",
    ),
    "constraint": (
        lambda: build((6,), L.Dense(4, kernel_constraint="non_neg", name="h")),
        "layer h has the constraint NonNeg on its kernel",
    ),
    "penalty of pairs": (
        lambda: build(
            (6,), L.Dense(4, activity_regularizer=keras.regularizers.OrthogonalRegularizer(), name="h")
        ),
        r"layer h \(Dense\) has the activity_regularizer OrthogonalRegularizer, expected L1, L2",
    ),
    "penalty inside of a layer": (
        lambda: build((4, 3), L.Bidirectional(L.LSTM(2, activity_regularizer="l2"), name="both")),
        r"layer both \(Bidirectional\) has the activity_regularizer L2",
    ),
    "own loss": (
        lambda: build((6,), L.Dense(4, name="h"), AddsLoss(name="adds")),
        r"layer adds \(AddsLoss\) adds to the loss with add_loss",
    ),
    "flip": (
        lambda: build((4, 4, 1), L.RandomFlip(name="flip")),
        r"layer flip \(RandomFlip\) draws random numbers.*\[augmentation\]",
    ),
    "samples of one batch": (
        lambda: build((6,), L.Dense(4, name="h"), LeaksBatch(name="leaks")),
        "layer leaks cannot be compiled: its output for a sample depends on the other samples",
    ),
    "own class of Dense at the end": (
        lambda: keras.Sequential([keras.Input((6,)), L.Dense(4, "relu"), ScaledDense(3, name="last")]),
        "layer last cannot be compiled: its output in a plan differs from Keras",
    ),
    "weights that are not numbers": (
        lambda: spoil(build((6,), L.Dense(4, name="h")), "h", np.nan),
        r"layer h \(Dense\) has a kernel with NaN or infinite values",
    ),
    "weights beyond float32": (
        lambda: spoil(build((6,), L.Dense(4, name="h", dtype="float64")), "h", 1e300),
        r"layer h \(Dense\) has a kernel with NaN or infinite values",
    ),
    "normalization of samples with gaps": (
        lambda: build((1,), adapt_normalization(np.nan), L.Dense(4)),
        r"layer n \(Normalization\) has a mean with NaN or infinite values",
    ),
    "all layers frozen": (
        lambda: freeze(build((6,), L.Dense(4, "relu"))),
        "has no weight that training changes, expected at least one",
    ),
    "end in a nested model": (
        lambda: keras.Sequential([keras.Input((6,)), keras.Sequential([L.Dense(3)], name="inner")]),
        r"layer inner \(Sequential\), expected a Dense classifier",
    ),
    "int8": (lambda: quantize(build((6,), L.Dense(4, name="h"))), r"layer h \(Dense\) is quantized"),
    "lora": (lambda: add_lora(build((6,), L.Dense(4, name="h"))), r"layer h \(Dense\) has LoRA weights"),
    "noise": (lambda: build((6,), L.GaussianNoise(0.1, name="n")), r"layer n \(GaussianNoise\) draws random"),
    "dropout of all values": (
        lambda: build((6,), L.Dense(4), L.Dropout(1.0, name="all")),
        r"layer all \(Dropout\) drops all values \(its rate is 1\).* expected a rate below 1",
    ),
    "dropout inside of a layer": (
        lambda: build((4, 3), L.TimeDistributed(L.Dropout(0.5), name="steps")),
        r"layer steps \(TimeDistributed\) draws random numbers",
    ),
    "assigned kernel": (
        lambda: build((6,), L.SpectralNormalization(L.Dense(4), name="spectral")),
        r"layer spectral \(SpectralNormalization\) assigns new values to its trained weight",
    ),
    "channels first": (
        lambda: build((3, 8, 8), L.Conv2D(2, 3, data_format="channels_first", name="first")),
        "layer first has the data_format channels_first",
    ),
    "volumes": (lambda: build((4, 4, 4, 1), L.Conv3D(2, 2, name="cube")), "layer cube needs Conv3DBackprop"),
    "error in a layer": (
        lambda: build((6,), Fails(name="bad")),
        r"layer bad \(Fails\) cannot be compiled: 'rows'",
    ),
    "converter": (  # The converter fails if a window has as many values as channels
        lambda: build((4, 4), L.Conv1D(4, 1), L.SeparableConv1D(4, 3, padding="same", name="apart")),
        "layer apart cannot be converted to TFLite: 'tfl.batch_matmul' op has mismatching",
    ),
    "two softmax": (
        lambda: keras.Sequential([keras.Input((6,)), L.Dense(3, "softmax", name="z"), L.Softmax()]),
        "layer z ends the model with softmax, expected logits",
    ),
    "dropout behind a softmax": (
        lambda: keras.Sequential([keras.Input((6,)), L.Dense(3, "softmax", name="z"), L.Dropout(0.5)]),
        "layer z ends the model with softmax",
    ),
    "softmax over the batch": (
        lambda: keras.Sequential([keras.Input((6,)), L.Dense(3), L.Softmax(axis=0, name="z")]),
        "layer z ends the model with a softmax over axis 0",
    ),
    "sigmoid of classes": (
        lambda: keras.Sequential([keras.Input((6,)), L.Dense(3), L.Activation("sigmoid", name="z")]),
        "layer z ends the model with sigmoid, expected logits",
    ),
    "batch renormalization": (
        lambda: build((6,), L.Dense(4), L.BatchNormalization(renorm=True, name="norm")),
        r"layer norm \(BatchNormalization\) has renorm=True, .* set renorm=False",
    ),
    "activation with weights": (
        lambda: build((6,), L.Dense(4, activation=L.PReLU(), name="h")),
        r"layer h \(Dense\) has the activation PReLU, which has weights; add it as a layer behind",
    ),
    "penalty of a softmax that the loss contains": (
        lambda: keras.Sequential(
            [keras.Input((6,)), L.Dense(3, "softmax", activity_regularizer="l2", name="z")]
        ),
        r"layer z \(Dense\) has a penalty on its softmax, .* remove its activity_regularizer",
    ),
    "softplus as an operation": (
        lambda: call_operation(keras.ops.softplus),
        r"operation softplus\S* computes softplus, which overflows .* keras.layers.Activation\('softplus'\)",
    ),
    "softplus as an operation of a nested model": (
        lambda: call_operation(keras.ops.softplus, is_nested=True),
        r"operation softplus\S* computes softplus, which overflows",
    ),
    "penalty of a softmax layer": (
        lambda: keras.Sequential(
            [keras.Input((6,)), L.Dense(3), L.Activation("softmax", activity_regularizer="l2", name="z")]
        ),
        r"layer z \(Activation\) has a penalty on its softmax, .* remove its activity_regularizer",
    ),
    "layer as end activation": (
        lambda: keras.Sequential([keras.Input((6,)), L.Dense(3, activation=L.LeakyReLU(), name="z")]),
        "layer z ends the model with LeakyReLU, expected logits",
    ),
}


def compile_checked(model: Any) -> Network:
    network = Network(model)
    objectives = (of.predict_logits(network, 4), of.classify(network, 4, sgd(0.1)))
    program, signatures = compile_program(objectives)
    check_program(network, objectives, signatures, program)
    return network


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_plan_cannot_do_is_refused_by_the_name_of_the_layer(name):
    make, message = REFUSED[name]
    with pytest.raises(PlanError, match=message):
        compile_checked(make())


ACCEPTED: dict[str, Any] = {
    "float64": lambda: build((6,), L.Dense(4, "relu", dtype="float64"), dtype="float64"),
    "float16": lambda: build(
        (6,), L.Dense(4, "relu", dtype="mixed_float16"), L.BatchNormalization(dtype="float16")
    ),
    "uint8 input": lambda: build((4, 4, 1), L.Rescaling(1 / 255), L.Conv2D(2, 3), dtype="uint8"),
    "mask and batch norm": lambda: build(
        (6, 3), L.Masking(), L.BatchNormalization(), L.Dropout(0.5), L.GlobalAveragePooling1D()
    ),
    "names": lambda: build((6,), L.Dense(4, "relu", name="größe 1"), L.Dense(4, "tanh", name="_x:y")),
    "layer as activation": lambda: build((6,), L.Dense(4, activation=L.LeakyReLU(0.1))),
    "shared layer": lambda: build(
        (6,), *[L.Dense(6, "relu", kernel_regularizer="l2", activity_regularizer="l1")] * 2
    ),
    "shared dropout": lambda: build((6,), *[L.Dropout(0.5)] * 2),
    "shared dropout of two shapes": lambda: share_dropout(),
    "model without a graph": lambda: build((6,), Block(name="block")),
    "norm inside of a layer": lambda: build((3, 4), L.TimeDistributed(L.BatchNormalization())),
    "constant of an operation": lambda: subtract_constant(),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_a_layer_carries_is_computed_as_in_keras(name):
    network = compile_checked(ACCEPTED[name]())
    assert all(value.dtype == np.float32 for value in network.read_weights().values())

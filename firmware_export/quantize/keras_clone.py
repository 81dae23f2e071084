"""A float .tflite as a flat tf-keras model with one layer per operator, for tensorflow-model-optimization.

The clone has the weights of the file, so it computes the same as the mixture. `read_tuned_weights` returns
the tuned weights in the file's form.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from operator import add, mul, sub
from typing import Any

import numpy as np

from edgefl.base.errors import ExportError
from edgefl.base.types import Array
from edgefl.program.plan.tflite import Operator, read_float_constants, read_subgraph

ACTIVATIONS = {0: "linear", 1: "relu", 3: "relu6"}
PADDINGS = {0: "same", 1: "valid"}
UNARY = {"SOFTMAX": "softmax", "LOGISTIC": "sigmoid", "RELU": "relu", "RELU6": "relu6", "TANH": "tanh"}
COMBINE = {"ADD": add, "SUB": sub, "MUL": mul}


@dataclass(frozen=True)
class FlatClone:
    """A flat tf-keras model of a .tflite.

    Attributes:
        model: tf-keras model from shape (batch, ...) to (batch, classes), float32.
        weight_tensors: maps a layer's name to the tensors of its kernel and its bias. The bias is -1 if there
            is none.
    """

    model: Any
    weight_tensors: Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class _Step:
    """An operator with its layer's name, its output shapes, and the model's int32 constants by index."""

    name: str
    operator: Operator
    shapes: tuple[tuple[int, ...], ...]
    integers: Mapping[int, Any]


def clone(model: bytes) -> FlatClone:
    """Return the flat clone of a float .tflite.

    Raises:
        ExportError: tf-keras is missing, or no layer exists for an operator or one of its options.
    """
    keras = import_tf_keras()
    graph = read_subgraph(model)
    values = read_float_constants(model)
    integers = {t.index: t.data for t in graph.tensors if t.dtype == "INT32" and t.data is not None}
    tensors: dict[int, Any] = {}
    weight_tensors: dict[str, tuple[int, int]] = {}
    entry = graph.inputs[0]
    x = keras.Input(graph.tensors[entry].shape[1:], name="x")
    tensors[entry] = x
    for number, operator in enumerate(graph.operators):
        name = f"{operator.name.lower()}_{number}"
        shapes = tuple(graph.tensors[index].shape for index in operator.outputs)
        try:
            results, kernel = _apply(
                _Step(name=name, operator=operator, shapes=shapes, integers=integers), tensors, values
            )
        except KeyError as error:
            raise ExportError(
                f"the TensorFlow route has no layer for this use of {operator.name} ({error}); export "
                "with --route device"
            ) from error
        tensors |= dict(zip(operator.outputs, results, strict=True))
        if kernel:
            weight_tensors[name] = kernel
    return FlatClone(keras.Model(x, tensors[graph.operators[-1].outputs[0]], name="mixture"), weight_tensors)


def _apply(
    step: _Step, tensors: Mapping[int, Any], values: Mapping[int, Array]
) -> tuple[list[Any], tuple[int, int] | None]:
    keras = import_tf_keras()
    layer_classes = define_layers()
    inputs = step.operator.inputs
    if step.operator.name in ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"):
        kernel = inputs[1]
        bias = inputs[2] if len(inputs) > 2 else -1
        layer, start = _make_weight_layer(step, values[kernel])
        out = layer(tensors[inputs[0]])
        layer.set_weights(
            [start, values[bias] if bias >= 0 else np.zeros(layer.weights[1].shape, np.float32)]
        )
        return [out], (kernel, bias)
    if step.operator.name in ("ADD", "SUB", "MUL"):
        if step.operator.options.get("fusedActivationFunction"):
            raise KeyError("fused activation")
        fixed = [values[i].tolist() if i in values else None for i in inputs]
        operands = [tensors[i] for i in inputs if i not in values]
        return [
            layer_classes["Combine"](step.operator.name, *fixed, name=step.name)(
                operands if len(operands) > 1 else operands[0]
            )
        ], None
    if step.operator.name in ("STRIDED_SLICE", "SPLIT"):
        return _apply_slices(step, tensors, layer_classes["Slice"]), None
    if step.operator.name == "CONCATENATION":
        return [
            keras.layers.Concatenate(step.operator.options["axis"], name=step.name)(
                [tensors[i] for i in inputs]
            )
        ], None
    return [_make_unary_layer(step)(tensors[inputs[0]])], None


def _make_unary_layer(step: _Step) -> Any:
    keras = import_tf_keras()
    options = step.operator.options
    name = step.name
    if step.operator.name in UNARY:
        return keras.layers.Activation(UNARY[step.operator.name], name=name)
    if step.operator.name == "RESHAPE":
        return keras.layers.Reshape(step.shapes[0][1:], name=name)
    if step.operator.name == "MEAN":
        axes = [int(i) for i in np.ravel(step.integers[step.operator.inputs[1]])]
        return define_layers()["Mean"](axes, bool(options["keepDims"]), name=name)
    pools = {"MAX_POOL_2D": keras.layers.MaxPooling2D, "AVERAGE_POOL_2D": keras.layers.AveragePooling2D}
    size = (options["filterHeight"], options["filterWidth"])
    strides = (options["strideH"], options["strideW"])
    return pools[step.operator.name](size, strides, PADDINGS[options["padding"]], name=name)


def _make_weight_layer(step: _Step, kernel: Array) -> tuple[Any, Array]:
    """Return the layer and its kernel in the layout of tf-keras."""
    keras = import_tf_keras()
    options = step.operator.options
    activation = ACTIVATIONS[options["fusedActivationFunction"]]
    if step.operator.name == "FULLY_CONNECTED":
        return keras.layers.Dense(kernel.shape[0], activation, name=step.name), kernel.T
    common = {
        "strides": (options["strideH"], options["strideW"]),
        "padding": PADDINGS[options["padding"]],
        "activation": activation,
        "dilation_rate": (options["dilationHFactor"], options["dilationWFactor"]),
        "name": step.name,
    }
    if step.operator.name == "CONV_2D":
        return keras.layers.Conv2D(kernel.shape[0], kernel.shape[1:3], **common), kernel.transpose(1, 2, 3, 0)
    multiplier = options["depthMultiplier"] or 1
    start = kernel[0].reshape(*kernel.shape[1:3], -1, multiplier)
    return keras.layers.DepthwiseConv2D(kernel.shape[1:3], depth_multiplier=multiplier, **common), start


def _apply_slices(step: _Step, tensors: Mapping[int, Any], kind: Any) -> list[Any]:
    if step.operator.name == "STRIDED_SLICE":
        begin = [int(i) for i in step.integers[step.operator.inputs[1]]]
        return [kind(begin, [-1, *step.shapes[0][1:]], name=step.name)(tensors[step.operator.inputs[0]])]
    axis = int(np.ravel(step.integers[step.operator.inputs[0]])[0])
    size = list(step.shapes[0])
    starts = [
        [n * size[i] if i == axis % len(size) else 0 for i in range(len(size))]
        for n in range(len(step.shapes))
    ]
    return [
        kind(begin, [-1, *size[1:]], name=f"{step.name}_{n}")(tensors[step.operator.inputs[1]])
        for n, begin in enumerate(starts)
    ]


def read_tuned_weights(flat: FlatClone, model: Any, constants: Mapping[int, Array]) -> dict[int, Array]:
    """Return the weights of a tuned clone in the file's form.

    Args:
        flat: the clone before tuning.
        model: the tuned clone. Its layers have the names of the flat clone.
        constants: the float constants of the file, by tensor index.

    Returns:
        Kernels and biases by tensor index, in the file's shapes, float32.
    """
    tuned = {}
    for name, (kernel, bias) in flat.weight_tensors.items():
        values = model.get_layer(name).get_weights()
        shape = constants[kernel].shape
        turned = (
            values[0].T
            if len(shape) == 2
            else values[0].transpose(3, 0, 1, 2)
            if "depthwise" not in name
            else values[0]
        )
        tuned[kernel] = np.ascontiguousarray(turned.reshape(shape), np.float32)
        if bias >= 0:
            tuned[bias] = values[1]
    return tuned


def import_tf_keras() -> Any:
    """Return the module tf_keras.

    Raises:
        ExportError: it is not installed.
    """
    try:
        import tf_keras
    except ImportError as error:
        raise ExportError(
            f"the TensorFlow route needs {error.name}, which this environment lacks; "
            "pip install -e '.[aggregator]', or export with --route device"
        ) from error
    return tf_keras


@cache
def define_layers() -> dict[str, Any]:
    """Return the custom layer classes by name. Their base class needs tf-keras, so they are made late."""
    keras = import_tf_keras()
    import tensorflow as tf

    class Slice(keras.layers.Layer):  # type: ignore[misc, name-defined]
        """x[begin : begin + size]. A size of -1 takes the rest of the axis."""

        def __init__(self, begin: list[int], size: list[int], **named: Any) -> None:
            super().__init__(**named)
            self.begin = list(begin)
            self.size = list(size)

        def call(self, x: Any) -> Any:
            return tf.slice(x, self.begin, self.size)

        def get_config(self) -> dict[str, Any]:
            return {**super().get_config(), "begin": self.begin, "size": self.size}

    class Mean(keras.layers.Layer):  # type: ignore[misc, name-defined]
        """The mean over `axes`."""

        def __init__(self, axes: list[int], keepdims: bool, **named: Any) -> None:
            super().__init__(**named)
            self.axes = list(axes)
            self.keepdims = keepdims

        def call(self, x: Any) -> Any:
            return tf.reduce_mean(x, self.axes, keepdims=self.keepdims)

        def get_config(self) -> dict[str, Any]:
            return {**super().get_config(), "axes": self.axes, "keepdims": self.keepdims}

    class Combine(keras.layers.Layer):  # type: ignore[misc, name-defined]
        """first + second, first - second or first * second. Either operand may be a constant."""

        def __init__(self, kind: str, first: Any = None, second: Any = None, **named: Any) -> None:
            super().__init__(**named)
            self.kind = kind
            self.first = first
            self.second = second

        def call(self, x: Any) -> Any:
            operands = list(x) if isinstance(x, list | tuple) else [x]
            pair = [
                operands.pop(0) if constant is None else tf.constant(constant, tf.float32)
                for constant in (self.first, self.second)
            ]
            return COMBINE[self.kind](*pair)

        def get_config(self) -> dict[str, Any]:
            return {**super().get_config(), "kind": self.kind, "first": self.first, "second": self.second}

    return {"Slice": Slice, "Mean": Mean, "Combine": Combine}

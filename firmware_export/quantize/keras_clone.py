"""A float .tflite as a flat tf-keras model, one layer an operator: what tensorflow-model-optimization can
tune.

The weights are those of the file, so the clone computes what the mixture does; `with_weights` puts tuned ones
back into it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgefl.errors import ExportError
from edgefl.types import Array
from firmware_export.quantize.flat_layers import own_layers, tf_keras
from firmware_export.tflite.graph import constants, read_graph

ACTIVATIONS = {0: "linear", 1: "relu", 3: "relu6"}
PADDINGS = {0: "same", 1: "valid"}
UNARY = {"SOFTMAX": "softmax", "LOGISTIC": "sigmoid", "RELU": "relu", "RELU6": "relu6", "TANH": "tanh"}


@dataclass(frozen=True)
class Flat:
    """model: tf-keras, float32[batch, ...] -> float32[batch, classes]; places: layer -> tensor of its kernel,
    of its bias (-1: none).
    """

    model: Any
    places: Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class _Step:
    """An operator: its layer's name, inputs by index, output shapes, options by the schema's names, integer
    constants by index.
    """

    name: str
    operator: str
    inputs: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    options: Mapping[str, Any]
    integers: Mapping[int, Any]


def clone(model: bytes) -> Flat:
    """Return the flat clone. Raises ExportError for an operator or an option that it has no layer for."""
    keras = tf_keras()
    graph = read_graph(model)
    values = constants(model)
    tensors: dict[int, Any] = {}
    places: dict[str, tuple[int, int]] = {}
    made = {index for _, outputs in graph.operators for index in outputs}
    fed = [
        i
        for inputs in graph.inputs
        for i in inputs
        if i >= 0 and i not in made and not graph.tensors[i].constant
    ]
    steps = _steps(model)
    shape = _shapes(model)[fed[0]]
    tensors[fed[0]] = given = keras.Input(shape[1:], name="x")
    for step, (_, outputs) in zip(steps, graph.operators, strict=True):
        try:
            results, kernel = _apply(step, tensors, values)
        except KeyError as error:
            raise ExportError(
                f"the TensorFlow route has no layer for {step.operator} as it is used here ({error}); export "
                "with --route device"
            ) from error
        tensors |= dict(zip(outputs, results, strict=True))
        if kernel:
            places[step.name] = kernel
    return Flat(keras.Model(given, tensors[graph.operators[-1][1][0]], name="mixture"), places)


def _apply(
    step: _Step, tensors: Mapping[int, Any], values: Mapping[int, Array]
) -> tuple[list[Any], tuple[int, int] | None]:
    keras = tf_keras()
    own = own_layers()
    inputs = step.inputs
    if step.operator in ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"):
        kernel = inputs[1]
        bias = inputs[2] if len(inputs) > 2 else -1
        layer, start = _weighted(step, values[kernel])
        out = layer(tensors[inputs[0]])
        layer.set_weights(
            [start, values[bias] if bias >= 0 else np.zeros(layer.weights[1].shape, np.float32)]
        )
        return [out], (kernel, bias)
    if step.operator in ("ADD", "SUB", "MUL"):
        if step.options.get("fusedActivationFunction"):
            raise KeyError("with an activation in it")
        fixed = [values[i].tolist() if i in values else None for i in inputs]
        given = [tensors[i] for i in inputs if i not in values]
        return [
            own["Combine"](step.operator, *fixed, name=step.name)(given if len(given) > 1 else given[0])
        ], None
    if step.operator in ("STRIDED_SLICE", "SPLIT"):
        return _slices(step, tensors, own["Slice"]), None
    if step.operator == "CONCATENATION":
        return [
            keras.layers.Concatenate(step.options["axis"], name=step.name)([tensors[i] for i in inputs])
        ], None
    return [_unary(step)(tensors[inputs[0]])], None


def _unary(step: _Step) -> Any:
    keras = tf_keras()
    options = step.options
    name = step.name
    if step.operator in UNARY:
        return keras.layers.Activation(UNARY[step.operator], name=name)
    if step.operator == "RESHAPE":
        return keras.layers.Reshape(step.shapes[0][1:], name=name)
    if step.operator == "MEAN":
        axes = [int(i) for i in np.ravel(step.integers[step.inputs[1]])]
        return own_layers()["Mean"](axes, bool(options["keepDims"]), name=name)
    pools = {"MAX_POOL_2D": keras.layers.MaxPooling2D, "AVERAGE_POOL_2D": keras.layers.AveragePooling2D}
    size = (options["filterHeight"], options["filterWidth"])
    strides = (options["strideH"], options["strideW"])
    return pools[step.operator](size, strides, PADDINGS[options["padding"]], name=name)


def _weighted(step: _Step, kernel: Array) -> tuple[Any, Array]:
    """Return the layer and its kernel as tf-keras has it."""
    keras = tf_keras()
    options = step.options
    activation = ACTIVATIONS[options["fusedActivationFunction"]]
    if step.operator == "FULLY_CONNECTED":
        return keras.layers.Dense(kernel.shape[0], activation, name=step.name), kernel.T
    common = {
        "strides": (options["strideH"], options["strideW"]),
        "padding": PADDINGS[options["padding"]],
        "activation": activation,
        "dilation_rate": (options["dilationHFactor"], options["dilationWFactor"]),
        "name": step.name,
    }
    if step.operator == "CONV_2D":
        return keras.layers.Conv2D(kernel.shape[0], kernel.shape[1:3], **common), kernel.transpose(1, 2, 3, 0)
    multiplier = options["depthMultiplier"] or 1
    start = kernel[0].reshape(*kernel.shape[1:3], -1, multiplier)
    return keras.layers.DepthwiseConv2D(kernel.shape[1:3], depth_multiplier=multiplier, **common), start


def _slices(step: _Step, tensors: Mapping[int, Any], kind: Any) -> list[Any]:
    if step.operator == "STRIDED_SLICE":
        begin = [int(i) for i in step.integers[step.inputs[1]]]
        return [kind(begin, [-1, *step.shapes[0][1:]], name=step.name)(tensors[step.inputs[0]])]
    axis = int(np.ravel(step.integers[step.inputs[0]])[0])
    size = list(step.shapes[0])
    starts = [
        [n * size[i] if i == axis % len(size) else 0 for i in range(len(size))]
        for n in range(len(step.shapes))
    ]
    return [
        kind(begin, [-1, *size[1:]], name=f"{step.name}_{n}")(tensors[step.inputs[1]])
        for n, begin in enumerate(starts)
    ]


def tuned_weights(flat: Flat, model: Any, places: Mapping[int, Array]) -> dict[int, Array]:
    """Return the constants of `model`, a tuned clone whose layers have the flat one's names, by tensor index
    and in the file's shape.
    """
    found = {}
    for name, (kernel, bias) in flat.places.items():
        values = model.get_layer(name).get_weights()
        shape = places[kernel].shape
        turned = (
            values[0].T
            if len(shape) == 2
            else values[0].transpose(3, 0, 1, 2)
            if "depthwise" not in name
            else values[0]
        )
        found[kernel] = np.ascontiguousarray(turned.reshape(shape), np.float32)
        if bias >= 0:
            found[bias] = values[1]
    return found


def _shapes(model: bytes) -> list[tuple[int, ...]]:
    from ai_edge_litert import schema_py_generated as schema

    graph = schema.Model.GetRootAs(model, 0).Subgraphs(0)
    tensors = [graph.Tensors(index) for index in range(graph.TensorsLength())]
    return [
        tuple(int(n) for n in tensor.ShapeAsNumpy()) if tensor.ShapeLength() else () for tensor in tensors
    ]


def _steps(model: bytes) -> list[_Step]:
    from ai_edge_litert import schema_py_generated as schema

    graph = read_graph(model)
    shapes = _shapes(model)
    steps = []
    root = schema.ModelT.InitFromObj(schema.Model.GetRootAs(model, 0))
    for number, (operator, outputs) in enumerate(graph.operators):
        options = root.subgraphs[0].operators[number].builtinOptions
        integers = {
            index: np.asarray(root.buffers[root.subgraphs[0].tensors[index].buffer].data, np.uint8).view(
                np.int32
            )
            for index in graph.inputs[number]
            if index >= 0 and graph.tensors[index].constant and graph.tensors[index].dtype == "INT32"
        }
        named = vars(options) if options is not None else {}
        steps.append(
            _Step(
                f"{operator.lower()}_{number}",
                operator,
                graph.inputs[number],
                tuple(shapes[i] for i in outputs),
                named,
                integers,
            )
        )
    return steps

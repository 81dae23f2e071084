"""Layers with a kernel and a bias in a float .tflite, and the kernel's range with which the int8 layer can
hold its bias.

An int8 layer adds its bias to the int32 accumulator, in steps of input_scale * kernel_scale. A kernel of
zeros (a filter that is pruned or dead) has next to no scale, and the quantizer cuts its bias off at 2^31
steps, which for a bias of 3 leaves 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgefl.plan.tflite import read_float_constants
from edgefl.types import Array
from firmware_export.tflite.graph import read_graph

CHANNEL_AXIS = {"CONV_2D": 0, "DEPTHWISE_CONV_2D": 3, "FULLY_CONNECTED": 0}
MAX_BIAS_STEPS = float(1 << 30)
"""Steps that a bias may take: half of an int32, the other half is for the products."""


@dataclass(frozen=True)
class WeightLayer:
    """The names of a layer's input and kernel, the axis of the kernel's output channels, kernel float32[...]
    and bias float32[channels].
    """

    source: str
    name: str
    axis: int
    kernel: Array
    bias: Array


def find_weight_layers(model: bytes) -> tuple[WeightLayer, ...]:
    """Return the layers that have a bias, in the graph's order."""
    graph = read_graph(model)
    values = read_float_constants(model)
    layers = []
    for (operator, _), inputs in zip(graph.operators, graph.inputs, strict=True):
        if operator in CHANNEL_AXIS and len(inputs) == 3 and inputs[1] in values and inputs[2] in values:
            source, name = (graph.tensors[index].name for index in inputs[:2])
            layers.append(
                WeightLayer(source, name, CHANNEL_AXIS[operator], values[inputs[1]], values[inputs[2]])
            )
    return tuple(layers)


def widen_kernel_ranges(
    layers: tuple[WeightLayer, ...], activation_ranges: Mapping[str, Any], per_channel: bool, bits: int
) -> dict[str, dict[str, Array]]:
    """Return the ranges of the kernels that are too small for their biases, in the quantizer's form.

    Of the others none.

    found: the activations' ranges (`ranges`), each with zero in it; bits: of activations; those of 16 have
    zero in their middle.
    """
    wider = {}
    for layer in layers:
        low, high = (float(activation_ranges[layer.source][end].item()) for end in ("min", "max"))
        step = max(high - low, 1e-9) / 255 if bits == 8 else max(high, -low, 1e-9) / 32767
        needed = np.abs(layer.bias) * 127 / (step * MAX_BIAS_STEPS)
        axes = tuple(axis for axis in range(layer.kernel.ndim) if axis != layer.axis)
        largest = np.abs(layer.kernel).max(axis=axes)
        if (needed <= largest).all() or (not per_channel and needed.max() <= largest.max()):
            continue
        shape = [1] * layer.kernel.ndim
        shape[layer.axis] = -1 if per_channel else 1
        limit = np.maximum(needed, largest).astype(np.float32)
        limit = (limit if per_channel else limit.max()).reshape(shape)
        wider[layer.name] = {"min": -limit, "max": limit}
    return wider

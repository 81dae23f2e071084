"""Layers with a kernel and a bias in a float .tflite, and kernel ranges wide enough for their biases.

An int8 layer adds its bias to the int32 accumulator, in steps of input_scale * kernel_scale. A kernel of
zeros, such as a pruned or dead filter, has a scale near zero. The quantizer then clips its bias to 2^31
steps, and a bias of 3 becomes 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgefl.base.types import Array
from edgefl.program.plan.tflite import Subgraph, list_float_constants

CHANNEL_AXIS = {"CONV_2D": 0, "DEPTHWISE_CONV_2D": 3, "FULLY_CONNECTED": 0}
MAX_BIAS_STEPS = float(1 << 30)
"""Maximum steps of a bias: half of an int32. The other half is for the products."""


@dataclass(frozen=True)
class WeightLayer:
    """A layer with a kernel and a bias.

    Attributes:
        source: name of the layer's input.
        name: name of the kernel.
        axis: axis of the kernel's output channels.
        kernel: weights, float32.
        bias: biases, shape (channels,), float32.
    """

    source: str
    name: str
    axis: int
    kernel: Array
    bias: Array


def find_weight_layers(graph: Subgraph) -> tuple[WeightLayer, ...]:
    """Return the layers with a bias in the graph of a float .tflite, in its order."""
    values = list_float_constants(graph)
    layers = []
    for operator, inputs in ((operator.name, operator.inputs) for operator in graph.operators):
        if operator in CHANNEL_AXIS and len(inputs) == 3 and inputs[1] in values and inputs[2] in values:
            source, name = (graph.tensors[index].name for index in inputs[:2])
            layers.append(
                WeightLayer(
                    source=source,
                    name=name,
                    axis=CHANNEL_AXIS[operator],
                    kernel=values[inputs[1]],
                    bias=values[inputs[2]],
                )
            )
    return tuple(layers)


def widen_kernel_ranges(
    layers: tuple[WeightLayer, ...], activation_ranges: Mapping[str, Any], per_channel: bool, bits: int
) -> dict[str, dict[str, Array]]:
    """Return wider ranges for the kernels that are too small for their biases.

    Args:
        layers: layers with a bias.
        activation_ranges: ranges of the activations by name, each including zero, from `choose_ranges`.
        per_channel: whether each output channel has a scale.
        bits: bits of the activations, 8 or 16. Ranges of 16 bits are symmetric around zero.

    Returns:
        Ranges by the kernel's name, in the quantizer's form. Kernels that are wide enough are left out.
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

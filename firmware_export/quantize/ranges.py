"""The range of values of each tensor over the calibration samples.

The quantizer's own calibration keeps a moving average of the minimum and maximum of each sample. The average
clips rare values. A tensor with one value a sample, such as a gate's logit, ends with minimum = maximum, and
the gate becomes a constant. This module therefore records the extremes of every sample. A recipe chooses the
range from them.

All steps of a recurrent layer share their ranges. The steps then have the same constants, and become a loop
in C.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgefl.base.errors import ExportError
from edgefl.base.types import Array
from edgefl.program.plan.runtime import load_interpreter
from edgefl.program.plan.tflite import Operator, Subgraph, read_subgraph
from firmware_export.quantize.weight_layers import WeightLayer, find_weight_layers
from firmware_export.tflite.graph import summarize_subgraph
from firmware_export.tflite.repeated_steps import StepNode, find_repeated_steps

STEEP_OPERATORS = ("SOFTMAX", "LOGISTIC")
VIEW_OPERATORS = ("RESHAPE", "SQUEEZE", "EXPAND_DIMS", "STRIDED_SLICE", "SLICE", "SPLIT", "UNPACK")
MIN_STEEP_WIDTH = 1e-3
"""Minimum width of the inputs of these operators. Their kernels abort the process below 4e-6.

A width of 1e-3 changes a probability by at most a thousandth.
"""


@dataclass(frozen=True)
class RecordedExtremes:
    """The extremes of each activation in each calibration sample.

    Attributes:
        extremes: maps a tensor's name to the minimum and maximum in each sample, shape (samples, 2), float32.
        ranks: number of axes of each tensor, by name.
        steep: names of the tensors that are inputs of a softmax or a logistic function.
        layers: layers with a kernel and a bias.
    """

    extremes: Mapping[str, Array]
    ranks: Mapping[str, int]
    steep: frozenset[str] = frozenset()
    layers: tuple[WeightLayer, ...] = ()

    @property
    def samples(self) -> int:
        """Number of recorded calibration samples."""
        return len(next(iter(self.extremes.values())))


def check_calibration(x: Array, shape: tuple[int, ...]) -> None:
    """Check that samples can calibrate a model.

    Args:
        x: calibration samples, shape (n, *shape), float32.
        shape: shape of one input of the model.

    Raises:
        ExportError: there are no samples, their shape differs, they are not finite, or all values are equal.
    """
    if len(x) == 0:
        raise ExportError(
            "no calibration samples; the int8 ranges come from the device's own training samples, use a "
            "shard that has some"
        )
    if x.shape[1:] != shape:
        raise ExportError(
            f"the calibration samples are {x.shape[1:]}, expected {shape}; is this shard from another data "
            "set?"
        )
    if not np.isfinite(x).all():
        raise ExportError("the calibration samples contain NaN or infinite values; clean the shard")
    if x.min() == x.max():
        raise ExportError(
            f"all calibration values are {x.min():g}, which gives no range; check the sensor or the file "
            "that made the shard"
        )


def record_extremes(model: bytes, x: Array) -> RecordedExtremes:
    """Run the float model on each sample and record the extremes of each activation.

    Args:
        model: a float .tflite.
        x: calibration samples, shape (n, ...), float32.

    Raises:
        ExportError: the model computes NaN or infinite values.
    """
    subgraph = read_subgraph(model)
    graph = summarize_subgraph(subgraph)
    interpreter = load_interpreter(model, watch=True)
    interpreter.allocate_tensors()
    input_index = interpreter.get_input_details()[0]["index"]
    made = {input_index, *(index for _, outputs in graph.operators for index in outputs)}
    watched = [i for i, tensor in enumerate(graph.tensors) if tensor.dtype == "FLOAT32" and i in made]
    extremes = np.empty((len(x), len(watched), 2), np.float32)
    for row, sample in enumerate(x):
        interpreter.set_tensor(input_index, sample[None])
        interpreter.invoke()
        for column, index in enumerate(watched):
            values = interpreter.get_tensor(index)
            extremes[row, column] = values.min(), values.max()
    if not np.isfinite(extremes).all():
        raise ExportError(
            "the mixture computes NaN or infinite values on its own training samples; personalize again with "
            "a smaller learning rate"
        )
    for group in group_step_tensors(subgraph):
        columns = [watched.index(index) for index in group if index in watched]
        extremes[:, columns, 0] = extremes[:, columns, 0].min(axis=1, keepdims=True)
        extremes[:, columns, 1] = extremes[:, columns, 1].max(axis=1, keepdims=True)
    names = [graph.tensors[index].name for index in watched]
    ranks = {name: interpreter.get_tensor(index).ndim for name, index in zip(names, watched, strict=True)}
    steep = {
        graph.tensors[i[0]].name
        for (name, _), i in zip(graph.operators, graph.inputs, strict=True)
        if name in STEEP_OPERATORS
    }
    return RecordedExtremes(
        extremes={name: extremes[:, column] for column, name in enumerate(names)},
        ranks=ranks,
        steep=frozenset(steep),
        layers=find_weight_layers(subgraph),
    )


def group_step_tensors(graph: Subgraph) -> list[list[int]]:
    """Return groups of tensors that play the same role in the steps of a recurrent layer.

    The state that the first step reads belongs to the group of the states that the steps make. So do all
    tensors that are concatenated with one of these states, because int8 tensors in a concatenation have the
    same scale.

    Args:
        graph: the graph of a float .tflite.

    Returns:
        Indices of the tensors of each group. Empty for a model without a recurrent layer.
    """
    root: dict[int, int] = {}
    nodes = []
    for operator in graph.operators:
        inputs = [i for i in operator.inputs if i >= 0]
        constants = tuple(i for i in inputs if graph.tensors[i].data is not None)
        activations = [i for i in inputs if i not in constants]
        if operator.name in VIEW_OPERATORS and activations:
            root |= dict.fromkeys(operator.outputs, root.get(activations[0], activations[0]))
            continue
        nodes.append(
            StepNode(
                key=(operator.name, repr(operator.options), constants),
                inputs=tuple((root.get(i, i), int(i in root)) for i in activations),
                output=operator.outputs[0],
                has_weights=operator.name == "FULLY_CONNECTED" and operator.inputs[1] in constants,
            )
        )
    return _join_concatenated(_collect_groups(nodes), graph.operators, root)


def _collect_groups(nodes: Sequence[StepNode]) -> list[list[int]]:
    groups = []
    for steps in find_repeated_steps(nodes):
        for position in range(steps.length):
            group = steps.list_outputs(nodes, position)
            groups.append([steps.carried[position], *group] if position in steps.carried else group)
    return groups


def _join_concatenated(
    groups: list[list[int]], operators: Sequence[Operator], root: Mapping[int, int]
) -> list[list[int]]:
    for operator in operators:
        if operator.name not in ("CONCATENATION", "PACK"):
            continue
        members = {root.get(i, i) for i in operator.inputs} | {operator.outputs[0]}
        joined = [group for group in groups if members & set(group)]
        if joined:
            groups = [group for group in groups if group not in joined]
            groups.append(sorted(members.union(*joined)))
    return groups


def choose_ranges(
    observed: RecordedExtremes, samples: int, percentile: float, margin: float
) -> dict[str, dict[str, Any]]:
    """Return each tensor's range in the quantizer's form.

    A tensor that is always zero gets a width too, because the kernels divide by the width. An example is a
    gate of zeros, which weighs all experts equally.

    Args:
        samples: number of samples to use, from the first.
        percentile: percentile of the samples' extremes. 100 keeps them all.
        margin: how much wider the range becomes. 0.1 is a tenth.
    """
    tensor_ranges = {}
    for name, extremes in observed.extremes.items():
        low = min(0.0, float(np.percentile(extremes[:samples, 0], 100 - percentile)))
        high = max(0.0, float(np.percentile(extremes[:samples, 1], percentile)))
        if high - low < (MIN_STEEP_WIDTH if name in observed.steep else 0.0) or high == low:
            high = low + (MIN_STEEP_WIDTH if name in observed.steep else 1.0)
        wider = (high - low) * margin / 2
        shape = (1,) * observed.ranks[name]
        tensor_ranges[name] = {
            "min": np.full(shape, low - (wider if low < 0 else 0), np.float32),
            "max": np.full(shape, high + (wider if high > 0 else 0), np.float32),
        }
    return tensor_ranges

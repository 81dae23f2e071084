"""Finds PAD operators that the following convolutions can do themselves.

A convolution reads its zero point outside its input. A PAD with that value before it is then a copy that
costs RAM and time. Models from PyTorch have one before each convolution.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from edgefl.program.plan.tflite import Operator, TfliteTensor
from firmware_export.codegen.c_movement import RESHAPE_OPERATORS
from firmware_export.tflite.quantized_model import QuantizedModel

PAD_OPERATORS = ("PAD", "PADV2")
PADDED_OPERATORS = ("CONV_2D", "DEPTHWISE_CONV_2D")
SAME = 0
"""Option of a convolution that pads itself. Both paddings together could leave a kernel without any input."""


@dataclass(frozen=True)
class PaddedInput:
    """The input of a convolution that does the padding of a PAD.

    Attributes:
        pad: index of the PAD.
        source: the PAD's input, in the shape (batch, height, width, channels) of the convolution.
        padding: rows before and after the input, then columns before and after it.
    """

    pad: int
    source: TfliteTensor
    padding: tuple[tuple[int, int], tuple[int, int]]


def find_padded_inputs(network: QuantizedModel) -> dict[int, PaddedInput]:
    """Return the padded input of each convolution that can do the padding of the PAD before it.

    A reshape may stand between the two, as in a convolution of one dimension. A PAD stays if an operator
    reads it that cannot do the padding, or if it is an output of the model.

    Returns:
        The padded inputs by the index of the convolution's operator.
    """
    readers: dict[int, list[int]] = {}
    for number, operator in enumerate(network.operators):
        for index in set(operator.inputs):
            readers.setdefault(index, []).append(number)
    inputs: dict[int, PaddedInput] = {}
    for number, operator in enumerate(network.operators):
        if operator.name not in PAD_OPERATORS or operator.inputs[0] < 0:
            continue
        convolutions = _find_readers(network, readers, operator.outputs[0])
        padded = {i: _merge(network, number, i) for i in convolutions or ()}
        merged = {i: value for i, value in padded.items() if value is not None}
        if len(merged) == len(padded):
            inputs |= merged
    return inputs


def _find_readers(network: QuantizedModel, readers: Mapping[int, list[int]], index: int) -> list[int] | None:
    """Return the operators that read a tensor or a reshaped form of it. None if it is an output."""
    numbers: list[int] = []
    todo = [index]
    while todo:
        tensor = todo.pop()
        if tensor in network.outputs:
            return None
        for number in readers.get(tensor, ()):
            if network.operators[number].name in RESHAPE_OPERATORS:
                todo += network.operators[number].outputs
            else:
                numbers.append(number)
    return numbers


def _merge(network: QuantizedModel, pad: int, reader: int) -> PaddedInput | None:
    """Return the padded input of a reader of a PAD. None if the reader cannot do the padding."""
    padding = _read_padding(network, network.operators[pad])
    convolution = network.operators[reader]
    if padding is None or convolution.name not in PADDED_OPERATORS:
        return None
    source, output = (
        network.get_tensor(i) for i in (network.operators[pad].inputs[0], network.operators[pad].outputs[0])
    )
    wide, kernel = (network.get_tensor(i) for i in convolution.inputs[:2])
    sizes = [n + before + after for n, (before, after) in zip(source.shape, padding, strict=True)]
    axes = _match_axes(sizes, wide.shape)
    if (
        axes is None
        or tuple(sizes) != output.shape
        or convolution.inputs.count(wide.index) != 1
        or not _is_alike(source, wide)
        or _read_value(network, network.operators[pad]) != wide.zero_point
    ):
        return None
    shape = list(wide.shape)
    edges = [(0, 0)] * 4
    for axis, target in axes.items():
        shape[target] = source.shape[axis]
        edges[target] = padding[axis]
    options = convolution.options
    if options.get("padding", SAME) == SAME or len(kernel.shape) != 4:
        return None
    reach = [
        (kernel.shape[i] - 1) * options.get(f"dilation{'HW'[i - 1]}Factor", 1) for i in (1, 2)
    ]  # more padding than this leaves a kernel without any input
    if any(map(any, (edges[0], edges[3]))) or any(
        edge > limit for pair, limit in zip(edges[1:3], reach, strict=True) for edge in pair
    ):
        return None
    return PaddedInput(pad, replace(source, shape=tuple(shape)), (edges[1], edges[2]))


def _read_padding(network: QuantizedModel, operator: Operator) -> list[tuple[int, int]] | None:
    """Return the number of elements that a PAD adds before and after each axis.

    Returns:
        A pair for each axis. None if the numbers are computed or negative.
    """
    data = network.get_tensor(operator.inputs[1]).data if len(operator.inputs) > 1 else None
    rank = len(network.get_tensor(operator.inputs[0]).shape)
    if data is None or data.size != 2 * rank or (data < 0).any():
        return None
    return [(int(before), int(after)) for before, after in data.reshape(rank, 2)]


def _read_value(network: QuantizedModel, operator: Operator) -> int | None:
    """Return the value that a PAD writes. None if it is computed."""
    if len(operator.inputs) < 3:
        return network.get_tensor(operator.outputs[0]).zero_point
    data = network.get_tensor(operator.inputs[2]).data
    return None if data is None else int(data.ravel()[0])


def _is_alike(a: TfliteTensor, b: TfliteTensor) -> bool:
    """Return whether two tensors have the same quantization."""
    return a.zero_points == b.zero_points and np.array_equal(a.scale, b.scale)


def _match_axes(sizes: list[int], shape: tuple[int, ...]) -> dict[int, int] | None:
    """Return the axis of an image for each padded axis, if a reshape only adds or removes axes of size 1."""
    if len(shape) != 4:
        return None
    if tuple(sizes) == shape:
        return dict(enumerate(range(4)))
    longer = [axis for axis, size in enumerate(sizes) if size != 1]
    targets = [axis for axis, size in enumerate(shape) if size != 1]
    if [sizes[axis] for axis in longer] != [shape[axis] for axis in targets]:
        return None
    return dict(zip(longer, targets, strict=True))

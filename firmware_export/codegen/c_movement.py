"""Builds layers that only move values.

A view needs no copy. Pad, concatenate, transpose and slice copy between layouts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgefl.plan.tflite import Operator, TfliteTensor
from firmware_export.codegen.layer import Layer, refuse
from firmware_export.tflite.quantized_model import QuantizedModel

RESHAPE_OPERATORS = ("RESHAPE", "SQUEEZE", "EXPAND_DIMS")
SLICE_OPERATORS = ("STRIDED_SLICE", "SLICE", "SPLIT")


@dataclass(frozen=True)
class TensorView:
    """A tensor whose values lie inside another tensor.

    Attributes:
        base: index of the other tensor.
        offset: offset of the first value in it.
    """

    base: int
    offset: int


def find_views(network: QuantizedModel) -> dict[int, TensorView]:
    """Return the tensors that need no copy: reshaped tensors, and slices with contiguous values.

    Raises:
        ExportError: the positions of a slice are computed, or it has an ellipsis or a new axis.
    """
    views: dict[int, TensorView] = {}
    for operator in network.operators:
        if operator.name in RESHAPE_OPERATORS:
            starts = [0]
        elif operator.name in SLICE_OPERATORS:
            layouts = [_make_slice_layout(network, operator, i) for i in range(len(operator.outputs))]
            if not all(_is_contiguous(layout) for layout in layouts):
                continue
            starts = [start for start, _, _ in layouts]
        else:
            continue
        source = operator.inputs[1] if operator.name == "SPLIT" else operator.inputs[0]
        base = views.get(source, TensorView(source, 0))
        for output, start in zip(operator.outputs, starts, strict=True):
            views[output] = TensorView(base.base, base.offset + start)
    return views


Layout = tuple[int, tuple[int, ...], tuple[int, ...]]
"""First element, and the counts and steps of the axes."""


def _compute_strides(shape: Sequence[int]) -> list[int]:
    return [int(s) for s in np.cumprod((1, *shape[:0:-1]))[::-1]] if shape else []


def _is_contiguous(layout: Layout) -> bool:
    _, counts, steps = layout
    expected = 1
    for count, step in zip(reversed(counts), reversed(steps), strict=True):
        if count > 1:
            if step != expected:
                return False
            expected *= count
    return True


def _read_constant(network: QuantizedModel, operator: Operator, index: int) -> Any:
    data = network.get_tensor(operator.inputs[index]).data
    if data is None:
        raise refuse(network, operator, "has computed positions", "fix the shapes in the model")
    return data.ravel()


def _make_slice_layout(network: QuantizedModel, operator: Operator, which: int) -> Layout:
    output = network.get_tensor(operator.outputs[which])
    if operator.name == "SPLIT":
        source = network.get_tensor(operator.inputs[1])
        axis = int(_read_constant(network, operator, 0)[0]) % len(source.shape)
        begins = [which * output.shape[i] if i == axis else 0 for i in range(len(source.shape))]
        return _make_layout(source, begins, [1] * len(begins), output.shape)
    source = network.get_tensor(operator.inputs[0])
    begin = [int(v) for v in _read_constant(network, operator, 1)]
    if operator.name == "SLICE":
        return _make_layout(source, begin, [1] * len(begin), output.shape)
    options = operator.options
    if options.get("ellipsisMask") or options.get("newAxisMask"):
        raise refuse(network, operator, "has an ellipsis or a new axis", "index each axis")
    end = [int(v) for v in _read_constant(network, operator, 2)]
    step = [int(v) for v in _read_constant(network, operator, 3)]
    begins = []
    counts = []
    for axis, size in enumerate(source.shape):
        whole = slice(
            None if options["beginMask"] >> axis & 1 else begin[axis],
            None if options["endMask"] >> axis & 1 else end[axis],
            step[axis],
        )
        if options["shrinkAxisMask"] >> axis & 1:
            first = begin[axis] % size
            whole = slice(first, first + 1, 1)
        chosen = range(*whole.indices(size))
        begins.append(chosen.start)
        counts.append(len(chosen))
    return _make_layout(source, begins, step, counts)


def _make_layout(
    source: TfliteTensor, begin: Sequence[int], step: Sequence[int], counts: Sequence[int]
) -> Layout:
    strides = _compute_strides(source.shape)
    start = sum(b * s for b, s in zip(begin, strides, strict=True))
    return start, tuple(counts), tuple(a * s for a, s in zip(step, strides, strict=True))


def build_copy_layer(
    network: QuantizedModel,
    operator: Operator,
    name: str,
    source: int,
    output: int,
    inward: Layout,
    outward: Layout,
) -> Layer:
    """Build a layer that copies elements of the source to elements of the output.

    Neighbouring axes that step alike become one loop.

    Args:
        network: the model.
        operator: the operator.
        name: C identifier of the layer.
        source: index of the source tensor.
        output: index of the output tensor.
        inward: elements to read.
        outward: elements to write.

    Raises:
        ExportError: the copy needs more than four loops.
    """
    merged: list[tuple[int, int, int]] = []
    for count, step_in, step_out in zip(inward[1], inward[2], outward[2], strict=True):
        if count == 1:
            continue
        if merged and merged[-1][1:] == (step_in * count, step_out * count):
            merged[-1] = (merged[-1][0] * count, step_in, step_out)
        else:
            merged.append((count, step_in, step_out))
    if len(merged) > 4:
        raise refuse(
            network,
            operator,
            f"moves values over {len(merged)} axes",
            "reshape to at most four axes before it",
        )
    merged = [(1, 0, 0)] * (4 - len(merged)) + merged
    shape = tuple(
        (key, tuple(row[i] for row in merged)) for i, key in enumerate(("count", "step_in", "step_out"))
    )
    call = f"copy(&{name}_shape, {{a}} + {inward[0]}, {{out}} + {outward[0]});"
    return Layer(name, operator.name, (source,), output, ("copy",), call, (), "struct copy", shape)


def _make_full_layout(shape: Sequence[int]) -> Layout:
    return 0, tuple(shape), tuple(_compute_strides(shape))


def build_slices(network: QuantizedModel, operator: Operator, name: str) -> list[Layer]:
    """Build the layers of a STRIDED_SLICE, SLICE or SPLIT whose values are not contiguous.

    Args:
        network: the model.
        operator: the operator.
        name: C identifier of the first output's layer. The layers of the other outputs append
            `_1`, `_2` and so on.

    Raises:
        ExportError: as in `find_views` or `build_copy_layer`.
    """
    source = operator.inputs[1] if operator.name == "SPLIT" else operator.inputs[0]
    return [
        build_copy_layer(
            network,
            operator,
            f"{name}_{i}" if i else name,
            source,
            output,
            layout,
            _make_full_layout(layout[1]),
        )
        for i, output in enumerate(operator.outputs)
        for layout in [_make_slice_layout(network, operator, i)]
    ]


def build_transpose(network: QuantizedModel, operator: Operator, name: str) -> list[Layer]:
    """Build the layer of a TRANSPOSE.

    Args:
        network: the model.
        operator: the operator.
        name: C identifier of the layer.

    Raises:
        ExportError: the order of the axes is computed, or as in `build_copy_layer`.
    """
    source = network.get_tensor(operator.inputs[0])
    output = network.get_tensor(operator.outputs[0])
    strides = _compute_strides(source.shape)
    inward = 0, output.shape, tuple(strides[int(axis)] for axis in _read_constant(network, operator, 1))
    return [
        build_copy_layer(
            network, operator, name, source.index, output.index, inward, _make_full_layout(output.shape)
        )
    ]


def build_concatenation(network: QuantizedModel, operator: Operator, name: str) -> list[Layer]:
    """Build the layers of a CONCATENATION, one for each input.

    Args:
        network: the model.
        operator: the operator.
        name: C identifier to which each layer appends `_0`, `_1` and so on.

    Raises:
        ExportError: an input is constant or has another scale or zero point than the output, or as in
            `build_copy_layer`.
    """
    output = network.get_tensor(operator.outputs[0])
    axis = int(operator.options["axis"]) % len(output.shape)
    strides = _compute_strides(output.shape)
    layers = []
    position = 0
    for i, index in enumerate(operator.inputs):
        source = network.get_tensor(index)
        if (
            source.data is not None
            or source.scale[0] != output.scale[0]
            or source.zero_point != output.zero_point
        ):
            raise refuse(
                network, operator, "joins constants or tensors of different scales", "export the model again"
            )
        outward = position * strides[axis], source.shape, tuple(strides)
        layers.append(
            build_copy_layer(
                network,
                operator,
                f"{name}_{i}",
                index,
                output.index,
                _make_full_layout(source.shape),
                outward,
            )
        )
        position += source.shape[axis]
    return layers


def build_pad(network: QuantizedModel, operator: Operator, name: str) -> list[Layer]:
    """Build the layers of a PAD or PADV2, which fill the output and then copy the input into its middle.

    Args:
        network: the model.
        operator: the operator.
        name: C identifier of the layer that copies. The layer that fills appends `_fill`.

    Raises:
        ExportError: the padding or its value is computed, or as in `build_copy_layer`.
    """
    source = network.get_tensor(operator.inputs[0])
    output = network.get_tensor(operator.outputs[0])
    value = int(_read_constant(network, operator, 2)[0]) if len(operator.inputs) > 2 else output.zero_point
    before = _read_constant(network, operator, 1).reshape(-1, 2)[:, 0]
    outward = _make_layout(output, [int(v) for v in before], [1] * len(before), source.shape)
    fill = Layer(
        f"{name}_fill", operator.name, (), output.index, ("fill",), f"fill({output.size}, {value}, {{out}});"
    )
    return [
        fill,
        build_copy_layer(
            network, operator, name, source.index, output.index, _make_full_layout(source.shape), outward
        ),
    ]

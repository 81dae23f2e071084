"""Layers that only move values: views that need no copy, and copies between layouts (pad, concatenate,
transpose, slice).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgefl.plan.tflite import Operator, Tensor
from firmware_export.codegen.layer import Layer, refuse
from firmware_export.tflite.quantized_model import QuantizedModel

SAME_ELEMENTS = ("RESHAPE", "SQUEEZE", "EXPAND_DIMS")
SLICES = ("STRIDED_SLICE", "SLICE", "SPLIT")


@dataclass(frozen=True)
class View:
    """A tensor that is `size` values of another, from `offset` on."""

    base: int
    offset: int


def views(network: QuantizedModel) -> dict[int, View]:
    """Return the tensors that need no copy: reshaped ones, and slices whose values lie together."""
    found: dict[int, View] = {}
    for operator in network.operators:
        if operator.name in SAME_ELEMENTS:
            starts = [0]
        elif operator.name in SLICES:
            layouts = [_slice(network, operator, i) for i in range(len(operator.outputs))]
            if not all(_together(layout) for layout in layouts):
                continue
            starts = [start for start, _, _ in layouts]
        else:
            continue
        source = operator.inputs[1] if operator.name == "SPLIT" else operator.inputs[0]
        base = found.get(source, View(source, 0))
        for output, start in zip(operator.outputs, starts, strict=True):
            found[output] = View(base.base, base.offset + start)
    return found


Layout = tuple[int, tuple[int, ...], tuple[int, ...]]
"""First element, counts and steps of the axes."""


def _strides(shape: Sequence[int]) -> list[int]:
    return [int(s) for s in np.cumprod((1, *shape[:0:-1]))[::-1]] if shape else []


def _together(layout: Layout) -> bool:
    _, counts, steps = layout
    expected = 1
    for count, step in zip(reversed(counts), reversed(steps), strict=True):
        if count > 1:
            if step != expected:
                return False
            expected *= count
    return True


def _constant(network: QuantizedModel, operator: Operator, index: int) -> Any:
    data = network.tensor(operator.inputs[index]).data
    if data is None:
        raise refuse(network, operator, "takes positions that are computed", "fix the shapes in the model")
    return data.ravel()


def _slice(network: QuantizedModel, operator: Operator, which: int) -> Layout:
    output = network.tensor(operator.outputs[which])
    if operator.name == "SPLIT":
        source = network.tensor(operator.inputs[1])
        axis = int(_constant(network, operator, 0)[0]) % len(source.shape)
        begins = [which * output.shape[i] if i == axis else 0 for i in range(len(source.shape))]
        return _layout(source, begins, [1] * len(begins), output.shape)
    source = network.tensor(operator.inputs[0])
    begin = [int(v) for v in _constant(network, operator, 1)]
    if operator.name == "SLICE":
        return _layout(source, begin, [1] * len(begin), output.shape)
    options = operator.options
    if options.get("ellipsisMask") or options.get("newAxisMask"):
        raise refuse(network, operator, "has an ellipsis or a new axis", "index each axis")
    end = [int(v) for v in _constant(network, operator, 2)]
    step = [int(v) for v in _constant(network, operator, 3)]
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
    return _layout(source, begins, step, counts)


def _layout(source: Tensor, begin: Sequence[int], step: Sequence[int], counts: Sequence[int]) -> Layout:
    strides = _strides(source.shape)
    start = sum(b * s for b, s in zip(begin, strides, strict=True))
    return start, tuple(counts), tuple(a * s for a, s in zip(step, strides, strict=True))


def copy_layer(
    network: QuantizedModel,
    operator: Operator,
    name: str,
    source: int,
    output: int,
    inward: Layout,
    outward: Layout,
) -> Layer:
    """Return a copy of inward's elements of the source to outward's of the output.

    Neighbouring axes that step alike are one loop.
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
        (key, tuple(each[i] for each in merged)) for i, key in enumerate(("count", "step_in", "step_out"))
    )
    call = f"copy(&{name}_shape, {{a}} + {inward[0]}, {{out}} + {outward[0]});"
    return Layer(name, operator.name, (source,), output, ("copy",), call, (), "struct copy", shape)


def _whole(shape: Sequence[int]) -> Layout:
    return 0, tuple(shape), tuple(_strides(shape))


def slices(network: QuantizedModel, operator: Operator, name: str) -> list[Layer]:
    """STRIDED_SLICE, SLICE, SPLIT whose values do not lie together."""
    source = operator.inputs[1] if operator.name == "SPLIT" else operator.inputs[0]
    return [
        copy_layer(network, operator, f"{name}_{i}" if i else name, source, output, layout, _whole(layout[1]))
        for i, output in enumerate(operator.outputs)
        for layout in [_slice(network, operator, i)]
    ]


def transpose(network: QuantizedModel, operator: Operator, name: str) -> list[Layer]:
    """TRANSPOSE."""
    source = network.tensor(operator.inputs[0])
    output = network.tensor(operator.outputs[0])
    strides = _strides(source.shape)
    inward = 0, output.shape, tuple(strides[int(axis)] for axis in _constant(network, operator, 1))
    return [copy_layer(network, operator, name, source.index, output.index, inward, _whole(output.shape))]


def concatenation(network: QuantizedModel, operator: Operator, name: str) -> list[Layer]:
    """CONCATENATION of activations of one scale."""
    output = network.tensor(operator.outputs[0])
    axis = int(operator.options["axis"]) % len(output.shape)
    strides = _strides(output.shape)
    layers = []
    position = 0
    for i, index in enumerate(operator.inputs):
        source = network.tensor(index)
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
            copy_layer(network, operator, f"{name}_{i}", index, output.index, _whole(source.shape), outward)
        )
        position += source.shape[axis]
    return layers


def pad(network: QuantizedModel, operator: Operator, name: str) -> list[Layer]:
    """PAD and PADV2: fill, then copy into the middle."""
    source = network.tensor(operator.inputs[0])
    output = network.tensor(operator.outputs[0])
    value = int(_constant(network, operator, 2)[0]) if len(operator.inputs) > 2 else output.zero_point
    before = _constant(network, operator, 1).reshape(-1, 2)[:, 0]
    outward = _layout(output, [int(v) for v in before], [1] * len(before), source.shape)
    fill = Layer(
        f"{name}_fill", operator.name, (), output.index, ("fill",), f"fill({output.size}, {value}, {{out}});"
    )
    return [
        fill,
        copy_layer(network, operator, name, source.index, output.index, _whole(source.shape), outward),
    ]

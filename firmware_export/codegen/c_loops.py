"""Folds the steps of a recurrent layer into a loop.

The steps have the same kernels, shapes and constants. Each tensor of a step takes the place of the same
tensor of the previous step. Only addresses in sequences, which the loop reads or writes, move from step to
step.
"""

import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from firmware_export.codegen.c_movement import TensorView
from firmware_export.codegen.layer import Layer
from firmware_export.tflite.repeated_steps import RepeatedSteps, StepNode, find_repeated_steps

JOIN_OPERATORS = ("CONCATENATION", "PACK")
WRITTEN_PATTERN = re.compile(r"\{out\} \+ (\d+)")
"""The first byte that the copy of a concatenation writes."""


@dataclass(frozen=True)
class StepLoop:
    """A loop of the generated C.

    Attributes:
        first: index of its first layer.
        length: number of its layers.
        count: number of steps.
        lasting: tensors that must keep their values from step to step: the state, and inputs of the loop.
    """

    first: int
    length: int
    count: int
    lasting: tuple[int, ...]


@dataclass(frozen=True)
class FoldedLayers:
    """Layers after folding.

    Attributes:
        layers: part and layer of each kernel call. Of a loop, only the layers of the first step.
        loops: the loops, in order.
        views: where the values of each tensor lie.
    """

    layers: tuple[tuple[str, Layer], ...]
    loops: tuple[StepLoop, ...]
    views: Mapping[int, TensorView]


def fold_steps(
    layers: Sequence[tuple[str, Layer]],
    views: Mapping[int, TensorView],
    sizes: Mapping[int, int],
    network_ends: Sequence[int],
) -> FoldedLayers:
    """Fold repeated steps into loops.

    Args:
        layers: part and layer of each kernel call, in the order of their run.
        views: where the values of each tensor lie, for all tensors.
        sizes: size of each tensor in bytes.
        network_ends: the network's inputs, outputs, gate values and variables.

    Returns:
        The layers, unchanged if there are no repeated steps.
    """
    ends = {views[i].base for i in network_ends}
    plain, advanced = (_fold(made, views, sizes, ends) for made in (layers, _advance_copies(layers, views)))
    return advanced if len(advanced.layers) < len(plain.layers) else plain


def _advance_copies(
    layers: Sequence[tuple[str, Layer]], views: Mapping[int, TensorView]
) -> list[tuple[str, Layer]]:
    """Return the layers with each copy of a concatenation directly after the layer that makes its input.

    A step then contains the copy of its output into the sequence.
    """
    moved: list[tuple[str, Layer]] = []
    for part, layer in layers:
        makers = [
            i
            for i, (_, maker) in enumerate(moved)
            if layer.op in JOIN_OPERATORS and views[maker.output].base == views[layer.inputs[0]].base
        ]
        if makers and moved[makers[-1]][0] == part:
            moved.insert(makers[-1] + 1, (part, layer))
        else:
            moved.append((part, layer))
    return moved


def _make_node(part: str, layer: Layer, number: int, views: Mapping[int, TensorView]) -> StepNode:
    inputs = tuple((views[i].base, views[i].offset) for i in layer.inputs)
    output = views[layer.output]
    if layer.op in JOIN_OPERATORS:  # Several layers write to this output, so it is like an input that moves
        position = int(WRITTEN_PATTERN.search(layer.call)[1])  # type: ignore[index]
        return StepNode(
            key=_make_key(part, layer),
            inputs=(*inputs, (output.base, output.offset + position)),
            output=-number,
            has_weights=False,
        )
    return StepNode(key=_make_key(part, layer), inputs=inputs, output=output.base, has_weights=layer.macs > 0)


def _fold(
    layers: Sequence[tuple[str, Layer]],
    views: Mapping[int, TensorView],
    sizes: Mapping[int, int],
    ends: set[int],
) -> FoldedLayers:
    nodes = [_make_node(part, layer, number, views) for number, (part, layer) in enumerate(layers, 1)]
    folded: list[tuple[str, Layer]] = []
    loops = []
    merged: dict[int, int] = {}
    strides: dict[int, int] = {}
    after = 0
    for steps in find_repeated_steps(nodes):
        if not _can_fold(layers, nodes, steps, sizes, ends):
            continue
        folded += layers[after : steps.first]
        after = steps.first + steps.length * steps.count
        body = [layer for _, layer in layers[steps.first : steps.first + steps.length]]
        lasting = set(steps.carried.values())
        for position in range(steps.length):
            target = nodes[steps.first + position].output
            merged |= dict.fromkeys(steps.list_outputs(nodes, position), target)
            if position in steps.carried:
                merged[steps.carried[position]] = target
        for (position, slot), stride in steps.strides.items():
            layer = body[position]
            if slot < len(layer.inputs):
                strides[layer.inputs[slot]] = stride
                lasting.add(layer.inputs[slot])
            else:
                call = WRITTEN_PATTERN.sub(rf"{{out}} + \1 + step * {stride}", layer.call)
                body[position] = replace(layer, call=call)
                lasting.add(layer.output)
        loops.append(
            StepLoop(
                first=len(folded), length=steps.length, count=steps.count, lasting=tuple(sorted(lasting))
            )
        )
        part = layers[steps.first][0]
        folded += [(part, replace(layer, macs=layer.macs * steps.count, lead_bytes=None)) for layer in body]
    folded += layers[after:]
    moved = {
        index: TensorView(merged.get(view.base, view.base), view.offset, strides.get(index, 0))
        for index, view in views.items()
    }
    return FoldedLayers(tuple(folded), tuple(loops), moved)


def list_planned_layers(folded: FoldedLayers) -> tuple[list[Layer], list[int]]:
    """Return the layers for the memory plan, and the positions of its layers that are calls of kernels.

    At the end of each loop, a further layer reads all tensors that must last. Their bytes are then not reused
    within the loop.
    """
    planned: list[Layer] = []
    positions: list[int] = []
    ends = {loop.first + loop.length - 1: loop for loop in folded.loops}
    for number, (_, layer) in enumerate(folded.layers):
        positions.append(len(planned))
        planned.append(layer)
        if number in ends:
            planned.append(
                Layer(
                    name="", op="loop", inputs=ends[number].lasting, output=layer.output, kernels=(), call=""
                )
            )
    return planned, positions


def _make_key(part: str, layer: Layer) -> Hashable:
    """Return a key that is equal for layers of the same kernel, shapes and constants."""

    def strip(text: str) -> str:
        return re.sub(rf"\b{re.escape(layer.name)}_", "", text)

    call = WRITTEN_PATTERN.sub("", layer.call) if layer.op in JOIN_OPERATORS else layer.call
    fields = tuple((strip(field.name), field.ctype, field.values) for field in layer.fields)
    overwritable = tuple(i in layer.overwritable for i in layer.inputs)
    return part, layer.op, strip(call), fields, layer.shape_type, layer.shape, overwritable


def _can_fold(
    layers: Sequence[tuple[str, Layer]],
    nodes: Sequence[StepNode],
    steps: RepeatedSteps,
    sizes: Mapping[int, int],
    ends: set[int],
) -> bool:
    """Return whether each tensor of a step can take the place of the one of the previous step."""
    end = steps.first + steps.length * steps.count
    body = range(steps.first, steps.first + steps.length)
    outside = {
        tensor for i, node in enumerate(nodes) if not steps.first <= i < end for tensor, _ in node.inputs
    }
    made_before = {node.output for node in nodes[: steps.first]}
    made = [node.output for node in nodes[steps.first : end]]
    if layers[steps.first][0] == "mix" or ends & set(made) or outside & set(made[: -steps.length]):
        return False
    fixed = {nodes[steps.first + position].inputs[slot][0] for position, slot in steps.strides}
    late = {tensor for node in nodes[end:] for tensor, _ in node.inputs}
    for position, start in steps.carried.items():
        target = nodes[steps.first + position].output
        if start in ends | late | fixed or start not in made_before or sizes[start] != sizes[target]:
            return False
        for i in body:
            reads = [
                layers[i][1].inputs[slot]
                for slot, (tensor, _) in enumerate(nodes[i].inputs)
                if tensor == start
            ]
            overwrites = i - steps.first == position and set(reads) <= set(layers[i][1].overwritable)
            if reads and i - steps.first >= position and not overwrites:
                return False
    readers = [i for _, layer in layers for i in layer.inputs]
    moving: list[tuple[int, int]] = []
    for (position, slot), stride in steps.strides.items():
        layer = layers[steps.first + position][1]
        if slot < len(layer.inputs):
            moving.append((layer.inputs[slot], stride))
        elif layer.output not in [other.output for _, other in layers[: steps.first]]:
            return False  # The bytes of the first step could be reused in the second one
    return all(
        not stride or readers.count(index) == moving.count((index, stride)) for index, stride in moving
    )

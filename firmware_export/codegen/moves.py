"""Moves activations within the arena, so that an output fits below its input where both share memory.

In a chain of convolutions each output begins before its input. A copy of an input to a later place makes room
for the next output.
"""

from collections.abc import Collection
from dataclasses import replace

from firmware_export.codegen.buffers import align, plan_buffers
from firmware_export.codegen.c_loops import FoldedLayers, list_planned_layers
from firmware_export.codegen.c_movement import TensorView
from firmware_export.codegen.layer import Layer
from firmware_export.tflite.quantized_model import QuantizedModel


def add_moves(network: QuantizedModel, folded: FoldedLayers) -> tuple[QuantizedModel, FoldedLayers]:
    """Return the network and the layers with the moves that give the smallest arena, and no move more.

    Each move has a tensor of its own, the moved one, at the end of the network's tensors.
    """

    def plan(numbers: Collection[int]) -> int:
        return _plan_arena(*_insert_moves(network, folded, numbers))

    candidates = _list_candidates(network, folded)
    least = plan(candidates)
    if plan(()) <= least:
        return network, folded
    chosen = set(candidates)
    todo = [candidates]
    while todo:
        some = todo.pop()
        if plan(chosen - set(some)) <= least:
            chosen -= set(some)
        elif len(some) > 1:
            todo += [some[: len(some) // 2], some[len(some) // 2 :]]
    return _insert_moves(network, folded, chosen)


def _plan_arena(network: QuantizedModel, folded: FoldedLayers) -> int:
    """Return the bytes of the arena."""
    bases = {index: view.base for index, view in folded.views.items()}
    sizes = {tensor.index: tensor.size for tensor in network.tensors}
    planned, _ = list_planned_layers(folded)
    return plan_buffers(planned, bases, sizes, network.inputs[0], bases[network.outputs[0]]).arena_bytes


def _list_candidates(network: QuantizedModel, folded: FoldedLayers) -> list[int]:
    """Return the numbers of the layers whose input may be moved before they run.

    No later layer reads the input, and neither it nor the output lies in memory of the caller.
    """
    last = {
        folded.views[i].base: number for number, (_, layer) in enumerate(folded.layers) for i in layer.inputs
    }
    ends = {folded.views[i].base for i in (*network.inputs, *network.outputs)}
    numbers = []
    for number, (_, layer) in enumerate(folded.layers):
        if layer.lead_bytes is not None:
            view = folded.views[layer.inputs[0]]
            if last[view.base] == number and view.base not in ends and not view.offset:
                numbers.append(number)
    return numbers


def _insert_moves(
    network: QuantizedModel, folded: FoldedLayers, numbers: Collection[int]
) -> tuple[QuantizedModel, FoldedLayers]:
    """Return the network and the layers with a move of the input before each of these layers."""
    tensors = list(network.tensors)
    layers: list[tuple[str, Layer]] = []
    for number, (part, layer) in enumerate(folded.layers):
        if number in numbers:
            source = tensors[layer.inputs[0]]
            moved = replace(source, index=len(tensors))
            move = Layer(
                name=f"{layer.name}_move",
                op="MOVE",
                inputs=(source.index,),
                output=moved.index,
                kernels=("move",),
                call=f"move({align(source.size) // 8}, {{a}}, {{out}});",
                lead_bytes=-source.size,
            )
            tensors.append(moved)
            layers.append((part, move))
            layer = replace(layer, inputs=(moved.index,))
        layers.append((part, layer))
    loops = tuple(
        replace(loop, first=loop.first + sum(number < loop.first for number in numbers))
        for loop in folded.loops
    )
    views = {tensor.index: TensorView(tensor.index, 0) for tensor in tensors[len(network.tensors) :]}
    return (
        replace(network, tensors=tuple(tensors)),
        FoldedLayers(layers=tuple(layers), loops=loops, views={**folded.views, **views}),
    )

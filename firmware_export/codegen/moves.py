"""Moves activations within the arena, so that an output fits below its input where both share memory.

In a chain of convolutions each output begins before its input. A copy of an input to a later place makes room
for the next output.
"""

from bisect import bisect_left
from collections.abc import Collection
from dataclasses import replace

from firmware_export.codegen.buffers import align, count_living_bytes, plan_buffers
from firmware_export.codegen.c_loops import FoldedLayers, list_planned_layers
from firmware_export.codegen.c_movement import TensorView
from firmware_export.codegen.c_state import list_arena_bytes
from firmware_export.codegen.layer import Layer
from firmware_export.tflite.quantized_model import QuantizedModel


def add_moves(network: QuantizedModel, folded: FoldedLayers) -> tuple[QuantizedModel, FoldedLayers]:
    """Return the network and the layers with moves, if they lower the arena.

    The layers with most living bytes come first. As few of them get a move as give the arena that moves
    before all layers give. Each move makes a tensor of its own, at the end of the network's tensors.
    """

    def plan(numbers: Collection[int]) -> int:
        buffers = _describe_buffers(*_insert_moves(network, folded, numbers))
        return plan_buffers(*buffers).arena_bytes

    living = count_living_bytes(*_describe_buffers(network, folded))
    _, positions = list_planned_layers(folded)
    numbers = sorted(_list_candidates(network, folded), key=lambda number: -living[positions[number]])
    least = plan(numbers)
    if plan(()) <= least:
        return network, folded
    counts = range(len(numbers))
    count = bisect_left(counts, True, key=lambda count: plan(numbers[:count]) <= least)
    return _insert_moves(network, folded, numbers[:count])


def _describe_buffers(
    network: QuantizedModel, folded: FoldedLayers
) -> tuple[list[Layer], dict[int, int], dict[int, int], int, int]:
    """Return the arguments of `plan_buffers`."""
    planned, _ = list_planned_layers(folded)
    bases = {index: view.base for index, view in folded.views.items()}
    sizes = list_arena_bytes(network)
    return planned, bases, sizes, network.inputs[0], bases[network.outputs[0]]


def _list_candidates(network: QuantizedModel, folded: FoldedLayers) -> list[int]:
    """Return the numbers of the layers whose input may be moved before they run.

    No later layer reads such an input, and it does not lie in memory of the caller.
    """
    last = {
        folded.views[i].base: number for number, (_, layer) in enumerate(folded.layers) for i in layer.inputs
    }
    variables = (variable.tensor for variable in network.variables)
    ends = {folded.views[i].base for i in (*network.inputs, *network.outputs, *variables)}
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
                call=f"move({align(source.bytes) // 8}, {{a}}, {{out}});",
                lead_bytes=-source.bytes,
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

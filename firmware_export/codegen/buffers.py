"""Assigns the activations to addresses in RAM.

An activation lives from the layer that makes it to the last layer that reads it. Activations whose lifetimes
do not overlap share bytes. An output replaces its input if the layer reads each value before it writes it and
no later layer reads the input.

Source: Pisarchyk and Lee, "Efficient memory management for deep neural net inference", 2020, for offsets by
first fit, largest first.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from firmware_export.codegen.layer import Layer

ARENA_ALIGNMENT_BYTES = 4


@dataclass(frozen=True)
class MemoryPlan:
    """Addresses of the activations.

    Attributes:
        offsets: offset of each activation in the arena, in bytes.
        arena_bytes: size of the arena in bytes.
    """

    offsets: Mapping[int, int]
    arena_bytes: int


@dataclass
class _Lifetime:
    tensors: list[int]
    size: int
    first: int
    last: int


def plan_buffers(
    layers: Sequence[Layer], base_of: Mapping[int, int], sizes: Mapping[int, int], outside: Set[int]
) -> MemoryPlan:
    """Return the offsets of the base tensors that the layers make.

    Args:
        layers: layers in the order of their run.
        base_of: maps a tensor to the tensor in whose bytes it lies.
        sizes: size of each tensor in bytes.
        outside: tensors that are not in the arena: the network's input and output.
    """
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for position, layer in enumerate(layers):
        for index in layer.inputs:
            base = base_of[index]
            last[base] = max(last.get(base, position), position)
        base = base_of[layer.output]
        first.setdefault(base, position)
        last[base] = max(last.get(base, position), position)
    lives: dict[int, _Lifetime] = {}
    for position, layer in enumerate(layers):
        base = base_of[layer.output]
        if base in outside or first[base] != position:
            continue
        size = -(-sizes[base] // ARENA_ALIGNMENT_BYTES) * ARENA_ALIGNMENT_BYTES
        dying = [
            lives[base_of[i]]
            for i in layer.overwritable
            if base_of[i] in lives and sizes[base_of[i]] == sizes[base]
        ]
        reused = next((life for life in dying if life.last == position), None)
        if reused is None:
            lives[base] = _Lifetime([base], size, position, last[base])
        else:
            reused.tensors.append(base)
            reused.last = last[base]
            lives[base] = reused
    unique = list({id(life): life for life in lives.values()}.values())
    allocated: list[tuple[int, _Lifetime]] = []
    for life in sorted(unique, key=lambda lifetime: (-lifetime.size, lifetime.first)):
        offset = 0
        for start, other in sorted(allocated, key=lambda pair: pair[0]):
            if (
                other.first <= life.last
                and life.first <= other.last
                and offset < start + other.size
                and start < offset + life.size
            ):
                offset = start + other.size
        allocated.append((offset, life))
    offsets = {tensor: offset for offset, life in allocated for tensor in life.tensors}
    return MemoryPlan(offsets, max((offset + life.size for offset, life in allocated), default=0))

"""Assigns activations and scratch memory to addresses in RAM.

An activation lives from the layer that makes it to the last layer that reads it. The input lives from the
start, and the output to the end. The scratch memory of a layer lives during that layer. Buffers whose
lifetimes do not overlap share bytes. An output replaces its input if the layer reads each value before it
writes it and no later layer reads the input.

Source: Pisarchyk and Lee, "Efficient memory management for deep neural net inference", 2020, for offsets by
first fit, largest first.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from firmware_export.codegen.layer import Layer

ARENA_ALIGNMENT_BYTES = 8
"""Alignment of each buffer. Kernels store pairs of words of the scratch memory with one instruction."""
MAX_SCRATCH_SHARE = 0.05
"""Share of the activations that live at the same time, by which scratch memory may raise the arena."""
SMALL_ARENA_BYTES = 4096
"""Scratch memory may raise any arena to this size, which is a small part of the RAM of the boards in use."""


@dataclass(frozen=True)
class MemoryPlan:
    """Addresses of the buffers.

    Attributes:
        offsets: offset of each activation in the arena, in bytes.
        input_offset: offset of the network's input, in bytes.
        output_offset: offset of the network's output, in bytes.
        scratch_offsets: offset of each layer's scratch memory, in bytes. 0 for a layer without scratch.
        arena_bytes: size of the arena in bytes.
        bound_bytes: lower bound of the arena in bytes: the most activations that live at the same time.
    """

    offsets: Mapping[int, int]
    input_offset: int
    output_offset: int
    scratch_offsets: tuple[int, ...]
    arena_bytes: int
    bound_bytes: int


@dataclass
class _Lifetime:
    size: int
    first: int
    last: int


def plan_buffers(
    layers: Sequence[Layer], base_of: Mapping[int, int], sizes: Mapping[int, int], entry: int, result: int
) -> MemoryPlan:
    """Return the offsets of the base tensors and of the scratch memory.

    Several orders of placement are tried, and the smallest arena is kept.

    Args:
        layers: layers in the order of their run.
        base_of: maps a tensor to the tensor in whose bytes it lies.
        sizes: size of each tensor in bytes.
        entry: the network's input, a base tensor.
        result: the network's output, a base tensor.
    """
    lives = _find_lifetimes(layers, base_of, sizes, entry, result)
    scratch = [
        _Lifetime(align(layer.scratch_bytes), position, position) for position, layer in enumerate(layers)
    ]
    unique = list({id(life): life for life in (*lives.values(), *scratch) if life.size}.values())
    orders: tuple[Callable[[_Lifetime], tuple[int, ...]], ...] = (
        lambda life: (-life.size, life.first),
        lambda life: (-life.size * (life.last - life.first + 1), life.first),
        lambda life: (life.first, -life.size),
        lambda life: (-life.last, -life.size),
    )
    plans = (_assign_offsets(sorted(unique, key=order)) for order in orders)
    offsets, arena_bytes = min(plans, key=lambda plan: plan[1])
    return MemoryPlan(
        offsets={tensor: offsets[id(life)] for tensor, life in lives.items() if life.size},
        input_offset=offsets[id(lives[entry])],
        output_offset=offsets[id(lives[result])],
        scratch_offsets=tuple(offsets.get(id(life), 0) for life in scratch),
        arena_bytes=arena_bytes,
        bound_bytes=max(_count_living_bytes(lives, len(layers)), default=0),
    )


def limit_scratch(
    layers: Sequence[Layer],
    base_of: Mapping[int, int],
    sizes: Mapping[int, int],
    entry: int,
    result: int,
    small_arena: int = SMALL_ARENA_BYTES,
) -> list[Layer]:
    """Return the layers, with less scratch memory for those whose scratch would raise the arena.

    The other parameters are those of `plan_buffers`.

    Args:
        small_arena: size in bytes to which scratch memory may raise any arena.
    """
    living = _count_living_bytes(_find_lifetimes(layers, base_of, sizes, entry, result), len(layers))
    limit = max(small_arena, math.floor((1 + MAX_SCRATCH_SHARE) * max(living, default=0)))
    return [_fit_scratch(layer, limit - bytes_now) for layer, bytes_now in zip(layers, living, strict=True)]


def _fit_scratch(layer: Layer, room: int) -> Layer:
    """Return the form of a layer with most scratch memory within this room in bytes, or with the least."""
    while layer.smaller is not None and align(layer.scratch_bytes) > room:
        layer = replace(layer.smaller, macs=layer.macs)  # a loop over steps has counted those of all steps
    return layer


def _count_living_bytes(lives: Mapping[int, _Lifetime], count: int) -> list[int]:
    """Return the bytes of the activations that live during each layer, for this number of layers."""
    unique = {id(life): life for life in lives.values()}.values()
    return [
        sum(life.size for life in unique if life.first <= position <= life.last) for position in range(count)
    ]


def align(size: int) -> int:
    """Return a size in bytes, rounded up to the alignment."""
    return -(-size // ARENA_ALIGNMENT_BYTES) * ARENA_ALIGNMENT_BYTES


def _find_lifetimes(
    layers: Sequence[Layer], base_of: Mapping[int, int], sizes: Mapping[int, int], entry: int, result: int
) -> dict[int, _Lifetime]:
    """Return the lifetime of each base tensor. A tensor that replaces another one shares its lifetime."""
    first: dict[int, int] = {entry: 0}
    last: dict[int, int] = {entry: 0}
    for position, layer in enumerate(layers):
        for index in layer.inputs:
            base = base_of[index]
            last[base] = max(last.get(base, position), position)
        base = base_of[layer.output]
        first.setdefault(base, position)
        last[base] = max(last.get(base, position), position)
    last[result] = len(layers) - 1
    lives = {entry: _Lifetime(align(sizes[entry]), 0, last[entry])}
    for position, layer in enumerate(layers):
        base = base_of[layer.output]
        if base == entry or first[base] != position:
            continue
        # The caller may pass other memory for the input and the output, so neither shares a buffer. A layer
        # that also reads another view of the same bytes would read what it has written.
        read = [base_of[i] for i in layer.inputs]
        dying = [
            lives[base_of[i]]
            for i in layer.overwritable
            if base_of[i] in lives
            and base_of[i] not in (entry, result)
            and sizes[base_of[i]] == sizes[base]
            and (read.count(base_of[i]) == 1 or len(set(layer.inputs)) == 1)
        ]
        reused = next((life for life in dying if life.last == position and base != result), None)
        if reused is None:
            lives[base] = _Lifetime(align(sizes[base]), position, last[base])
        else:
            reused.last = last[base]
            lives[base] = reused
    return lives


def _assign_offsets(lives: Iterable[_Lifetime]) -> tuple[dict[int, int], int]:
    """Place buffers by first fit, in this order.

    Returns:
        The offset of each buffer by the id of its lifetime, and the size of the arena in bytes.
    """
    assigned: list[tuple[int, _Lifetime]] = []
    for life in lives:
        offset = 0
        for start, other in sorted(assigned, key=lambda pair: pair[0]):
            if (
                other.first <= life.last
                and life.first <= other.last
                and offset < start + other.size
                and start < offset + life.size
            ):
                offset = start + other.size
        assigned.append((offset, life))
    return (
        {id(life): offset for offset, life in assigned},
        max((offset + life.size for offset, life in assigned), default=0),
    )

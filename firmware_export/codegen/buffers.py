"""Assigns activations and scratch memory to addresses in RAM.

An activation lives from the layer that makes it to the last layer that reads it. The input lives from the
start, and the output to the end. The scratch memory of a layer lives during that layer. Buffers whose
lifetimes do not overlap share bytes. An output replaces its input if the layer reads each value before it
writes it and no later layer reads the input.

An output and an input that may share memory need only a distance between their starts. See
`Layer.lead_bytes`.

Source: Pisarchyk and Lee, "Efficient memory management for deep neural net inference", 2020, for offsets by
first fit, largest first.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from firmware_export.codegen.layer import Layer

ARENA_ALIGNMENT_BYTES = 8
"""Alignment of each buffer. Kernels store pairs of words of the scratch memory with one instruction."""
MAX_SCRATCH_SHARE = 0.05
"""Share of the activations that live at the same time, by which scratch memory may raise the arena."""
MAX_SEARCH_PLANS = 20
"""Changes of each order of placement that are tried."""
MAX_SEARCH_PAIRS = 1_000_000
"""Pairs of buffers that these trials may compare. Networks of more than 220 buffers have fewer trials."""
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
        bound_bytes: lower bound of the arena in bytes: the most activations that live at the same time. Bytes
            that an input and an output share count once.
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


_Leads = Mapping[tuple[int, int], int]
"""Bytes by which an output must begin before its input, by the ids of both lifetimes."""


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
    leads = _find_leads(layers, base_of, sizes, lives, result)
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
    plans = (plan for order in orders for plan in _search_offsets(sorted(unique, key=order), leads))
    offsets, arena_bytes = min(plans, key=lambda plan: plan[1])
    return MemoryPlan(
        offsets={tensor: offsets[id(life)] for tensor, life in lives.items() if life.size},
        input_offset=offsets[id(lives[entry])],
        output_offset=offsets[id(lives[result])],
        scratch_offsets=tuple(offsets.get(id(life), 0) for life in scratch),
        arena_bytes=arena_bytes,
        bound_bytes=max(count_living_bytes(layers, base_of, sizes, entry, result), default=0),
    )


def limit_scratch(
    layers: Sequence[Layer],
    base_of: Mapping[int, int],
    sizes: Mapping[int, int],
    entry: int,
    result: int,
    *,
    least: bool = False,
) -> list[Layer]:
    """Return the layers, with less scratch memory for those whose scratch would raise the arena.

    The other parameters are those of `plan_buffers`.

    Args:
        least: whether the scratch memory must not raise the arena of outputs that share memory with inputs.
            Otherwise the scratch memory may have the bytes that sharing saves, and more in a small arena.
    """
    living = count_living_bytes(layers, base_of, sizes, entry, result, shared=least)
    small = 0 if least else SMALL_ARENA_BYTES
    limit = max(small, math.floor((1 + MAX_SCRATCH_SHARE) * max(living, default=0)))
    return [_fit_scratch(layer, limit - bytes_now) for layer, bytes_now in zip(layers, living, strict=True)]


def _fit_scratch(layer: Layer, room: int) -> Layer:
    """Return the form of a layer with most scratch memory within this room in bytes, or with the least."""
    while layer.smaller is not None and align(layer.scratch_bytes) > room:
        # A loop over steps has changed both values
        layer = replace(layer.smaller, macs=layer.macs, lead_bytes=layer.lead_bytes)
    return layer


def count_living_bytes(
    layers: Sequence[Layer],
    base_of: Mapping[int, int],
    sizes: Mapping[int, int],
    entry: int,
    result: int,
    *,
    shared: bool = True,
) -> list[int]:
    """Return the bytes of the activations that live during each layer.

    The other parameters are those of `plan_buffers`.

    Args:
        shared: whether bytes that an input and an output can share count once.
    """
    lives = _find_lifetimes(layers, base_of, sizes, entry, result)
    unique = {id(life): life for life in lives.values()}
    living = [
        sum(life.size for life in unique.values() if life.first <= position <= life.last)
        for position in range(len(layers))
    ]
    leads = _find_leads(layers, base_of, sizes, lives, result) if shared else {}
    for (output, source), lead in leads.items():
        made, read = unique[output], unique[source]
        living[made.first] -= made.size + read.size - max(max(lead, 0) + read.size, made.size)
    return living


def _find_leads(
    layers: Sequence[Layer],
    base_of: Mapping[int, int],
    sizes: Mapping[int, int],
    lives: Mapping[int, _Lifetime],
    result: int,
) -> _Leads:
    """Return the leads of outputs that may share memory with their input, because no later layer reads it.

    The network's output lives on, also if a layer after it reads it.
    """
    leads = {}
    for position, layer in enumerate(layers):
        if layer.lead_bytes is None or base_of[layer.output] not in lives:
            continue
        (source,) = {base_of[i] for i in layer.inputs}
        if not sizes[source]:  # a variable, which lies in the state
            continue
        made, read = lives[base_of[layer.output]], lives[source]
        if source != result and read.last == position == made.first:
            leads[id(made), id(read)] = align(layer.lead_bytes)
    return leads


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


def _search_offsets(order: list[_Lifetime], leads: _Leads) -> Iterator[tuple[dict[int, int], int]]:
    """Yield the result of `_assign_offsets` for an order of placement, and for changes of that order.

    The buffers at the end of the arena are placed earlier in the next order.

    Source: Joslin and Clements, "Squeaky wheel optimization", 1999.
    """
    offsets, arena_bytes = _assign_offsets(order, leads)
    yield offsets, arena_bytes
    for number in range(min(MAX_SEARCH_PLANS, MAX_SEARCH_PAIRS // max(len(order), 1) ** 2)):
        order = order.copy()
        for life in [life for life in order if offsets[id(life)] + life.size == arena_bytes]:
            position = order.index(life)
            order.insert(position * (number % 3) // 3, order.pop(position))
        offsets, arena_bytes = _assign_offsets(order, leads)
        yield offsets, arena_bytes


def _assign_offsets(lives: Iterable[_Lifetime], leads: _Leads) -> tuple[dict[int, int], int]:
    """Place buffers by first fit, in this order.

    Args:
        leads: as in `_find_leads`.

    Returns:
        The offset of each buffer by the id of its lifetime, and the size of the arena in bytes.
    """
    assigned: list[tuple[int, _Lifetime]] = []

    def measure_distance(lower: _Lifetime, upper: _Lifetime) -> int:
        """Return the least distance between the starts of two buffers that live at the same time."""
        return min(leads.get((id(lower), id(upper)), lower.size), lower.size)

    for life in lives:
        excluded = [
            (start - measure_distance(life, other), start + measure_distance(other, life))
            for start, other in assigned
            if other.first <= life.last and life.first <= other.last
        ]
        offset = 0
        for before, after in sorted(excluded):
            if before < offset < after:
                offset = after
        assigned.append((offset, life))
    return (
        {id(life): offset for offset, life in assigned},
        max((offset + life.size for offset, life in assigned), default=0),
    )

"""Buffer plans: activations with overlapping lifetimes share no byte.

An operator such as relu may overwrite its input.
"""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from firmware_export.codegen.buffers import limit_scratch, plan_buffers
from firmware_export.codegen.layer import Layer


def make_layer(inputs, output, overwritable=(), scratch_bytes=0, lead_bytes=None):
    return Layer(
        name="l",
        op="OP",
        inputs=tuple(inputs),
        output=output,
        kernels=(),
        call="",
        overwritable=tuple(overwritable),
        scratch_bytes=scratch_bytes,
        lead_bytes=lead_bytes,
    )


def make_plan(layers, sizes):
    """Plan a network whose input is tensor 0. The last layer makes its output."""
    tensors = {t for entry in layers for t in (*entry.inputs, entry.output)}
    return plan_buffers(layers, {t: t for t in tensors}, sizes, 0, layers[-1].output)


def test_buffers_of_a_chain_match_hand_computed_offsets() -> None:
    made = make_plan(
        [make_layer([0], 1), make_layer([1], 2), make_layer([2], 3), make_layer([3], 4)],
        {0: 8, 1: 96, 2: 40, 3: 88, 4: 8},
    )
    assert made.arena_bytes == made.bound_bytes == 136  # layers 2 and 3 at the same time: 96 + 40, 40 + 88


def test_scratch_memory_lives_during_its_layer_only() -> None:
    layers = [make_layer([0], 1, scratch_bytes=30), make_layer([1], 2), make_layer([2], 3, scratch_bytes=5)]
    made = make_plan(layers, {0: 8, 1: 16, 2: 32, 3: 8})
    assert made.bound_bytes == 16 + 32
    assert made.arena_bytes == 8 + 16 + 32  # the first layer with its scratch memory
    used = [(made.input_offset, 8), (made.offsets[1], 16), (made.scratch_offsets[0], 30)]
    ends = [end for start, size in sorted(used) for end in (start, start + size)]
    assert ends == sorted(ends), "input, output and scratch of the first layer overlap"


def test_scratch_memory_shrinks_where_it_would_raise_the_arena() -> None:
    """The second layer has 10,000 bytes of activations, so scratch memory may raise the arena to 10,500."""
    small = make_layer([0], 1, scratch_bytes=1)
    sizes = {0: 800, 1: 4800, 2: 5200, 3: 400}
    bases = dict(zip(sizes, sizes, strict=True))
    for scratch, fits in ((4896, True), (4897, False)):
        large = replace(small, macs=15, scratch_bytes=scratch, smaller=replace(small, macs=3))
        layers = [large, make_layer([1], 2), make_layer([2], 3)]
        limited = limit_scratch(layers, bases, sizes, 0, 3)
        assert limited == [large if fits else replace(small, macs=15), *layers[1:]]


def test_scratch_memory_may_raise_an_arena_to_4096_bytes() -> None:
    small = make_layer([0], 1, scratch_bytes=1)
    sizes = {0: 96, 1: 1000}
    for scratch, least, fits in ((3000, False, True), (3001, False, False), (3000, True, False)):
        large = replace(small, scratch_bytes=scratch, smaller=small)
        assert limit_scratch([large], {0: 0, 1: 1}, sizes, 0, 1, least=least) == [large if fits else small]


def test_output_keeps_its_own_memory() -> None:
    """The caller may pass other memory for input and output, so no buffer is replaced by them."""
    made = make_plan(
        [make_layer([0], 1, overwritable=[0]), make_layer([1], 2, overwritable=[1])], {0: 8, 1: 8, 2: 8}
    )
    assert made.input_offset != made.offsets[1] != made.output_offset
    assert made.arena_bytes == 16


def test_an_output_overwrites_an_input_at_its_last_use() -> None:
    layers = [make_layer([0], 1), make_layer([1], 2, overwritable=[1]), make_layer([2], 3, overwritable=[2])]
    made = make_plan([*layers, make_layer([3], 4)], {0: 8, 1: 64, 2: 64, 3: 64, 4: 8})
    assert made.arena_bytes == 72 and made.offsets[1] == made.offsets[2] == made.offsets[3]
    made = make_plan([*layers, make_layer([1, 3], 4)], {0: 8, 1: 64, 2: 64, 3: 64, 4: 8})
    assert made.offsets[2] != made.offsets[1] and made.offsets[3] == made.offsets[2], "tensor 1 is read again"


def test_dead_layer_does_not_overwrite_the_output() -> None:
    layers = [make_layer([0], 1), make_layer([1], 2, overwritable=[1])]
    made = plan_buffers(layers, {0: 0, 1: 1, 2: 2}, {0: 8, 1: 8, 2: 8}, 0, 1)
    assert made.offsets[2] != made.output_offset


def test_layer_that_reads_a_view_of_its_input_does_not_overwrite_it() -> None:
    """Tensor 2 is a slice of tensor 1, so that writing element 0 would change what element 8 reads."""
    layers = [make_layer([0], 1), make_layer([1, 2], 3, overwritable=[1]), make_layer([3], 4)]
    made = plan_buffers(layers, {0: 0, 1: 1, 2: 1, 3: 3, 4: 4}, {0: 8, 1: 64, 3: 64, 4: 8}, 0, 4)
    assert made.offsets[3] != made.offsets[1]
    layers[1] = make_layer([1, 1], 3, overwritable=[1, 1])
    made = plan_buffers(layers, {0: 0, 1: 1, 3: 3, 4: 4}, {0: 8, 1: 64, 3: 64, 4: 8}, 0, 4)
    assert made.offsets[3] == made.offsets[1], "x + x reads each element before it writes it"


def test_each_output_of_a_chain_begins_before_its_input() -> None:
    """Leads of 16 and 40 bytes: the output lies at 0, tensor 1 at 40 and the input at 56."""
    layers = [make_layer([0], 1, lead_bytes=10), make_layer([1], 2, lead_bytes=40)]
    made = make_plan(layers, {0: 80, 1: 88, 2: 64})
    assert (made.output_offset, made.offsets[1], made.input_offset) == (0, 40, 56)
    assert made.arena_bytes == 136 and made.bound_bytes == 40 + 88
    made = make_plan([layers[0], make_layer([1, 0], 2)], {0: 80, 1: 88, 2: 64})
    assert made.arena_bytes == 80 + 88 + 64, "tensor 0 is read again"


def test_output_after_the_network_s_output_does_not_share_its_memory() -> None:
    layers = [make_layer([0], 1), make_layer([1], 2, lead_bytes=8)]
    made = plan_buffers(layers, {0: 0, 1: 1, 2: 2}, {0: 8, 1: 64, 2: 64}, 0, 1)
    assert made.arena_bytes == made.bound_bytes == 128


def test_moved_input_may_overlap_in_both_directions() -> None:
    """Without the move the output lies at 0 and the input at 40. The move frees the end of the arena."""
    chain = [make_layer([0], 1, lead_bytes=16), make_layer([1], 2, lead_bytes=24)]
    assert make_plan(chain, {0: 64, 1: 64, 2: 64}).arena_bytes == 64 + 24 + 16
    moved = [chain[0], make_layer([1], 3, lead_bytes=-64), make_layer([3], 2, lead_bytes=24)]
    made = make_plan(moved, dict.fromkeys(range(4), 64))
    assert made.arena_bytes == made.bound_bytes == 64 + 24
    assert made.offsets[3] >= made.output_offset + 24 and made.input_offset >= made.offsets[1] + 16


@st.composite
def networks(draw):
    """Draw layers that each read one or two earlier tensors."""
    count = draw(st.integers(1, 12))
    layers = []
    sizes = {0: 10}
    for output in range(1, count + 1):
        inputs = draw(st.lists(st.integers(0, output - 1), min_size=1, max_size=2, unique=True))
        sizes[output] = draw(st.integers(1, 40))
        overwritable = [i for i in inputs if draw(st.booleans())]
        alone = len(inputs) == 1 and not overwritable
        lead = draw(st.none() | st.integers(-40, 40)) if alone else None
        layers.append(make_layer(inputs, output, overwritable, draw(st.integers(0, 20)), lead))
    return layers, sizes


@given(networks())
def test_buffers_are_not_overwritten_before_their_last_use(network) -> None:
    """Write each tensor's number over its bytes, layer by layer, and check that every input is intact.

    A layer with a lead needs the bytes of its input from the number of written bytes minus the lead.
    """
    layers, sizes = network
    made = make_plan(layers, sizes)
    memory = [0] * made.arena_bytes
    assert made.bound_bytes <= made.arena_bytes
    for entry, scratch in zip(layers, made.scratch_offsets, strict=True):
        memory[scratch : scratch + entry.scratch_bytes] = [-1] * entry.scratch_bytes
        for i in entry.inputs:
            assert memory[made.offsets[i] : made.offsets[i] + sizes[i]] == [i] * sizes[i]
        for written in range(sizes[entry.output]):
            memory[made.offsets[entry.output] + written] = entry.output
            if entry.lead_bytes is not None:
                (i,) = entry.inputs
                needed = range(max(0, written + 1 - entry.lead_bytes), sizes[i])
                assert all(memory[made.offsets[i] + byte] == i for byte in needed)
        assert memory[scratch : scratch + entry.scratch_bytes] == [-1] * entry.scratch_bytes
    result = layers[-1].output
    assert memory[made.output_offset : made.output_offset + sizes[result]] == [result] * sizes[result]
    assert all(offset % 8 == 0 for offset in (*made.offsets.values(), *made.scratch_offsets))

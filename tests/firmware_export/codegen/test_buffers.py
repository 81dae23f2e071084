"""Buffer plans: activations with overlapping lifetimes share no byte.

An operator such as relu may overwrite its input.
"""

from hypothesis import given
from hypothesis import strategies as st

from firmware_export.codegen.buffers import plan_buffers
from firmware_export.codegen.layer import Layer


def make_layer(inputs, output, overwritable=()):
    return Layer("l", "OP", tuple(inputs), output, (), "", overwritable=tuple(overwritable))


def make_plan(layers, sizes, outside=frozenset({0})):
    tensors = {t for entry in layers for t in (*entry.inputs, entry.output)}
    return plan_buffers(layers, {t: t for t in tensors}, sizes, outside)


def test_buffers_of_a_chain_match_hand_computed_offsets() -> None:
    made = make_plan(
        [make_layer([0], 1), make_layer([1], 2), make_layer([2], 3), make_layer([3], 4)],
        {1: 100, 2: 40, 3: 90, 4: 8},
    )
    assert made.arena_bytes == 140 and made.offsets[1] == 0


def test_an_output_overwrites_an_input_at_its_last_use() -> None:
    layers = [make_layer([0], 1), make_layer([1], 2, overwritable=[1]), make_layer([2], 3, overwritable=[2])]
    made = make_plan(layers, {1: 64, 2: 64, 3: 64})
    assert made.arena_bytes == 64 and set(made.offsets.values()) == {0}
    made = make_plan([*layers, make_layer([1, 3], 4)], {1: 64, 2: 64, 3: 64, 4: 4})
    assert made.offsets[2] != made.offsets[1] and made.offsets[3] == made.offsets[2], "tensor 1 is read again"


@st.composite
def networks(draw):
    """Draw layers that each read one or two earlier tensors."""
    count = draw(st.integers(1, 12))
    layers = []
    sizes = {0: 10}
    for output in range(1, count + 1):
        inputs = draw(st.lists(st.integers(0, output - 1), min_size=1, max_size=2, unique=True))
        sizes[output] = draw(st.integers(1, 40))
        layers.append(make_layer(inputs, output, [i for i in inputs if draw(st.booleans())]))
    return layers, sizes


@given(networks())
def test_buffers_are_not_overwritten_before_their_last_use(network) -> None:
    """Write each tensor's number over its bytes, layer by layer, and check that every input is intact."""
    layers, sizes = network
    made = make_plan(layers, sizes)
    memory = [0] * made.arena_bytes
    for entry in layers:
        for i in entry.inputs:
            if i:
                assert memory[made.offsets[i] : made.offsets[i] + sizes[i]] == [i] * sizes[i]
        memory[made.offsets[entry.output] : made.offsets[entry.output] + sizes[entry.output]] = [
            entry.output
        ] * sizes[entry.output]
    assert all(offset % 4 == 0 for offset in made.offsets.values())

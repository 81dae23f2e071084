"""The plan of buffers: activations with overlapping lifetimes share no byte.

relu overwrites its input.
"""

from hypothesis import given
from hypothesis import strategies as st

from firmware_export.codegen.buffers import plan_buffers
from firmware_export.codegen.layer import Layer


def layer(inputs, output, overwritable=()):
    return Layer("l", "OP", tuple(inputs), output, (), "", overwritable=tuple(overwritable))


def plan(layers, sizes, outside=frozenset({0})):
    tensors = {t for entry in layers for t in (*entry.inputs, entry.output)}
    return plan_buffers(layers, {t: t for t in tensors}, sizes, outside)


def test_a_chain_by_hand() -> None:
    made = plan([layer([0], 1), layer([1], 2), layer([2], 3), layer([3], 4)], {1: 100, 2: 40, 3: 90, 4: 8})
    assert made.arena_bytes == 140 and made.offsets[1] == 0


def test_an_output_overwrites_an_input_at_its_last_use() -> None:
    layers = [layer([0], 1), layer([1], 2, overwritable=[1]), layer([2], 3, overwritable=[2])]
    made = plan(layers, {1: 64, 2: 64, 3: 64})
    assert made.arena_bytes == 64 and set(made.offsets.values()) == {0}
    made = plan([*layers, layer([1, 3], 4)], {1: 64, 2: 64, 3: 64, 4: 4})
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
        layers.append(layer(inputs, output, [i for i in inputs if draw(st.booleans())]))
    return layers, sizes


@given(networks())
def test_nothing_is_overwritten_before_it_is_read(network) -> None:
    """Write each tensor's number over its bytes, layer by layer, and check that every input is intact."""
    layers, sizes = network
    made = plan(layers, sizes)
    memory = [0] * made.arena_bytes
    for entry in layers:
        for i in entry.inputs:
            if i:
                assert memory[made.offsets[i] : made.offsets[i] + sizes[i]] == [i] * sizes[i]
        memory[made.offsets[entry.output] : made.offsets[entry.output] + sizes[entry.output]] = [
            entry.output
        ] * sizes[entry.output]
    assert all(offset % 4 == 0 for offset in made.offsets.values())

"""The search for repeated steps finds the state, the length and the number of steps."""

import numpy as np
import pytest

from firmware_export.tflite.repeated_steps import RepeatedSteps, StepNode, find_repeated_steps

SEQUENCE = 100
FIRST_STATE = 50


def make_steps(count: int, first: int = 0) -> list[StepNode]:
    """Return steps of a dense layer on the state and an addition of 4 bytes of the sequence."""
    nodes = []
    state = FIRST_STATE
    for step in range(count):
        product, state_new = first + 2 * step, first + 2 * step + 1
        nodes.append(StepNode(key="dense", inputs=((state, 0),), output=product, has_weights=True))
        nodes.append(
            StepNode(
                key="add",
                inputs=((product, 0), (SEQUENCE, 4 * step + 4)),
                output=state_new,
                has_weights=False,
            )
        )
        state = state_new
    return nodes


def test_steps_with_a_state_are_repeated() -> None:
    before = [StepNode(key="tanh", inputs=((SEQUENCE, 0),), output=FIRST_STATE, has_weights=False)]
    after = [StepNode(key="dense", inputs=((5, 0),), output=60, has_weights=True)]
    nodes = [*before, *make_steps(3), *after]
    (steps,) = find_repeated_steps(nodes)
    assert steps == RepeatedSteps(first=1, length=2, count=3, carried={1: FIRST_STATE}, strides={(1, 1): 4})
    assert steps.list_outputs(nodes, 1) == [1, 3, 5]


def test_layers_of_two_loops_are_found_in_order() -> None:
    nodes = [
        *make_steps(2),
        StepNode(key="pool", inputs=((3, 0),), output=40, has_weights=False),
        *make_steps(4, first=20),
    ]
    assert [(steps.first, steps.length, steps.count) for steps in find_repeated_steps(nodes)] == [
        (0, 2, 2),
        (5, 2, 4),
    ]


def test_other_blocks_are_not_repeated() -> None:
    steps = make_steps(3)
    changed = {
        "one step": steps[:2],
        "another weight": [
            *steps[:2],
            StepNode(key="other", inputs=steps[2].inputs, output=2, has_weights=True),
            *steps[3:4],
        ],
        "no state": [
            StepNode(key="dense", inputs=((SEQUENCE, 4 * i),), output=i, has_weights=True) for i in range(4)
        ],
        "no weights": [
            StepNode(key=n.key, inputs=n.inputs, output=n.output, has_weights=False) for n in steps
        ],
        "the first state is a part of a tensor": [
            StepNode(key="dense", inputs=((FIRST_STATE, 4),), output=0, has_weights=True),
            *steps[1:],
        ],
    }
    found = {name: find_repeated_steps(nodes) for name, nodes in changed.items()}
    assert not [name for name, repeats in found.items() if repeats and repeats[0].first == 0], found


@pytest.mark.parametrize("seed", range(5))
def test_steps_end_where_the_distance_changes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(3, 20))
    changed = int(rng.integers(2, count))
    nodes = make_steps(count)
    moved = nodes[2 * changed + 1]
    inputs = (moved.inputs[0], (SEQUENCE, 4 * changed + 5))
    nodes[2 * changed + 1] = StepNode(key="add", inputs=inputs, output=moved.output, has_weights=False)
    first, *_ = find_repeated_steps(nodes)
    assert (first.first, first.length, first.count) == (0, 2, changed)

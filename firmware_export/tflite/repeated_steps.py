"""Finds the steps of recurrent layers: successive blocks of the same operators with the same weights.

Each block reads its own part of a sequence, and the state that the previous block has made.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

MIN_REPEATS = 2
_MAX_INPUTS = 4


@dataclass(frozen=True)
class StepNode:
    """An operator as the search for repeated steps sees it.

    Attributes:
        key: equal for operators that compute the same function, with the same constants.
        inputs: tensor and offset of each activation that it reads. The offset is 0 for a whole tensor.
        output: tensor that it makes.
        has_weights: whether it has a constant kernel. Steps start at such an operator.
    """

    key: Hashable
    inputs: tuple[tuple[int, int], ...]
    output: int
    has_weights: bool


@dataclass(frozen=True)
class RepeatedSteps:
    """The steps of a recurrent layer.

    Attributes:
        first: index of the first operator of the first step.
        length: number of operators of a step.
        count: number of steps.
        carried: maps the position of an operator in a step to the tensor that the first step reads in index
            of this operator's output in the previous step.
        strides: maps the position of an operator and the index of its input to the distance from step to step
            of an input that no step makes.
    """

    first: int
    length: int
    count: int
    carried: Mapping[int, int]
    strides: Mapping[tuple[int, int], int]

    def list_outputs(self, nodes: Sequence[StepNode], position: int) -> list[int]:
        """Return the tensor that the operator at a position makes in each step.

        Args:
            nodes: the operators that were searched.
        """
        return [nodes[self.first + step * self.length + position].output for step in range(self.count)]


def find_repeated_steps(nodes: Sequence[StepNode]) -> list[RepeatedSteps]:
    """Return all repeated steps, in order and without an overlap.

    Args:
        nodes: operators in the order of their run, without those that only give a view of their input.
    """
    repeats = []
    first = 0
    while first < len(nodes):
        candidates = list(_generate_candidates(nodes, first)) if nodes[first].has_weights else []
        if candidates:
            best = max(candidates, key=lambda steps: (steps.count, steps.length))
            repeats.append(best)
            first += best.length * best.count
        else:
            first += 1
    return repeats


def _generate_candidates(nodes: Sequence[StepNode], first: int) -> Iterator[RepeatedSteps]:
    for second in range(first + 1, (first + len(nodes)) // 2 + 1):
        if second < len(nodes) and nodes[second].key == nodes[first].key:
            steps = _match_steps(nodes, first, second - first)
            if steps is not None:
                yield steps


Reference = tuple[str, int, int]
"""Whether an input is made in this step, in the one before, or outside, with its position or tensor, and its
offset.
"""


def _match_steps(nodes: Sequence[StepNode], first: int, length: int) -> RepeatedSteps | None:
    """Return the steps of this length from an operator on, or None if there are no two steps with a state."""
    keys = [node.key for node in nodes[first : first + length]]
    starting = _describe_inputs(nodes, first, length, first)
    pattern = _describe_inputs(nodes, first + length, length, first)
    carried: dict[int, int] = {}
    strides: dict[tuple[int, int], int] = {}
    for index, (before, now) in enumerate(zip(starting, pattern, strict=False)):
        position, slot = divmod(index, _MAX_INPUTS)
        if before is None or now is None:
            if before is not now:
                return None
        elif now[0] == "previous":
            if (
                before[0] != "outside"
                or before[2] != now[2]
                or carried.setdefault(now[1], before[1]) != before[1]
            ):
                return None
        elif before[:2] != now[:2] or (now[0] == "step" and before != now):
            return None
        elif now[0] == "outside":
            strides[position, slot] = now[2] - before[2]
    if not carried or len(set(carried.values())) < len(carried):
        return None
    count = 1
    while first + (count + 1) * length <= len(nodes):
        start = first + count * length
        if [node.key for node in nodes[start : start + length]] != keys:
            break
        expected = [
            (ref[0], ref[1], ref[2] + (count - 1) * strides.get(divmod(index, _MAX_INPUTS), 0))
            if ref
            else None
            for index, ref in enumerate(pattern)
        ]
        if _describe_inputs(nodes, start, length, first) != expected:
            break
        count += 1
    return (
        RepeatedSteps(first=first, length=length, count=count, carried=carried, strides=strides)
        if count >= MIN_REPEATS
        else None
    )


def _describe_inputs(
    nodes: Sequence[StepNode], start: int, length: int, first: int
) -> list[Reference | None]:
    """Return _MAX_INPUTS references for each operator of a step. The first step has no previous step."""
    current = {node.output: i for i, node in enumerate(nodes[start : start + length])}
    previous = {node.output: i for i, node in enumerate(nodes[max(first, start - length) : start])}
    references: list[Reference | None] = []
    for node in nodes[start : start + length]:
        described: list[Reference | None] = []
        for tensor, offset in node.inputs[:_MAX_INPUTS]:
            if tensor in current:
                described.append(("step", current[tensor], offset))
            elif tensor in previous:
                described.append(("previous", previous[tensor], offset))
            else:
                described.append(("outside", tensor, offset))
        references += described + [None] * (_MAX_INPUTS - len(described))
    return references

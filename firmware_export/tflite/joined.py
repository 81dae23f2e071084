"""Joins float models into one whose output is the sum of their probabilities, each times its share pi_m.

Models of a regression have no probabilities, so their outputs are added.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgefl.program.plan.tflite import (
    add_operator,
    add_tensor,
    pack_model,
    read_subgraph,
    report_damage,
    unpack_model,
)


@dataclass(frozen=True)
class JoinedModel:
    """One of the models to join.

    Attributes:
        model: a float `.tflite` with one input x, float32[1, ...], and one output, float32[1, outputs].
        share: its share pi_m.
        gives_logits: whether the outputs are logits. Otherwise they are added as they are.
    """

    model: bytes
    share: float
    gives_logits: bool


def join_models(parts: Sequence[JoinedModel]) -> bytes:
    """Return a float `.tflite` whose output is the sum of the models' outputs, each times its share.

    The order of operators is the order of the models, so that one model can reuse the memory of the model
    before it.

    Args:
        parts: the models, at least one. All have the same input and number of outputs.

    Raises:
        ModelFileError: a model cannot be read, or has several subgraphs.
    """
    for part in parts:
        read_subgraph(part.model, "a member of the blend")
    with report_damage(parts[0].model, "a member of the blend"):
        root = unpack_model(parts[0].model)
        graph = root.subgraphs[0]
        _prefix_names(graph.tensors, 0)
        total = _add_product(root, 0, parts[0])
        for number, part in enumerate(parts[1:], 1):
            output = _append_graph(root, unpack_model(part.model), number)
            graph.outputs = [output]
            product = _add_product(root, number, part)
            total = add_operator(root, "ADD", "AddOptions", [total, product], f"sum{number}")
        graph.outputs = [total]
        for signature in root.signatureDefs or ():
            for entry in signature.outputs:
                entry.tensorIndex = total
        return pack_model(root, sum(len(part.model) for part in parts))


def _prefix_names(tensors: Sequence[Any], number: int) -> None:
    """Make the names of tensors unique. The quantizer identifies tensors by their names."""
    for tensor in tensors:
        tensor.name = f"member{number}/".encode() + (tensor.name or b"")


def _append_graph(root: Any, other: Any, number: int) -> int:
    """Append the operators of another model, which then read the same input. Return its output tensor."""
    graph, added = root.subgraphs[0], other.subgraphs[0]
    _prefix_names(added.tensors, number)
    codes, buffers = len(root.operatorCodes), len(root.buffers)
    root.operatorCodes = [*root.operatorCodes, *other.operatorCodes]
    root.buffers = [*root.buffers, *other.buffers]
    for tensor in added.tensors:
        tensor.buffer += buffers
    moved = {-1: -1, added.inputs[0]: graph.inputs[0]}
    for index, tensor in enumerate(added.tensors):
        if index not in moved:
            moved[index] = len(graph.tensors)
            graph.tensors = [*graph.tensors, tensor]
    for operator in added.operators:
        operator.opcodeIndex += codes
        operator.inputs = [moved[index] for index in operator.inputs]
        operator.outputs = [moved[index] for index in operator.outputs]
    graph.operators = [*graph.operators, *added.operators]
    return int(moved[added.outputs[0]])


def _add_product(root: Any, number: int, part: JoinedModel) -> int:
    """Multiply the graph's output, or its softmax, by a share. Return the tensor of the product."""
    output = root.subgraphs[0].outputs[0]
    if part.gives_logits:
        output = add_operator(root, "SOFTMAX", "SoftmaxOptions", [output], f"member{number}/p", beta=1.0)
    share = add_tensor(root, f"share{number}", (1, 1), np.array([[part.share]], np.float32))
    return add_operator(root, "MUL", "MulOptions", [output, share], f"product{number}")

"""Finds the variables of a model: tensors that keep their values from one inference to the next.

A converter writes a variable in one of two forms. The operators of recurrent layers mark a tensor as a
variable. Streaming layers make a handle with VAR_HANDLE, which READ_VARIABLE and ASSIGN_VARIABLE use.
CALL_ONCE names a subgraph that sets the first values. Here a handle becomes the tensor of its variable.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from edgefl.base.errors import ExportError
from edgefl.program.plan.tflite import Operator, Subgraph, TfliteTensor, list_initial_subgraphs

HANDLE_OPERATORS = ("READ_VARIABLE", "ASSIGN_VARIABLE")
"""Operators whose first input is a handle."""
NUMPY_TYPES = {"INT8": np.int8, "INT16": np.int16}
"""Types of variables that the generated C can keep."""


@dataclass(frozen=True, eq=False)
class Variable:
    """A tensor that keeps its values from one inference to the next.

    Attributes:
        tensor: index of the tensor, which no operator needs to make.
        initial: values before the first inference, in the shape and type of the tensor.
    """

    tensor: int
    initial: Any


def resolve_variables(subgraphs: Sequence[Subgraph]) -> tuple[Subgraph, tuple[Variable, ...]]:
    """Return the main subgraph without handles, and its variables.

    A READ_VARIABLE then reads the tensor of its variable, and an ASSIGN_VARIABLE writes it.

    Args:
        subgraphs: all subgraphs of the model, the main one first.

    Raises:
        ExportError: a variable is used before its first values are set, a subgraph computes first values, or
            the types or sizes of a variable differ.
    """
    main = subgraphs[0]
    started = {
        name: values
        for number in list_initial_subgraphs(main)
        for name, values in _read_initial_values(subgraphs[number]).items()
    }
    names = _name_handles(main)
    tensors = list(main.tensors)
    operators: list[Operator] = []
    added: dict[str, int] = {}
    assigned = {
        _find_name(names, operator): tensors[operator.inputs[-1]]
        for operator in reversed(main.operators)
        if operator.name == "ASSIGN_VARIABLE"
    }
    for operator in main.operators:
        if operator.name == "CALL_ONCE":
            if added:
                raise ExportError(
                    f"the variable {next(iter(added))} is used before CALL_ONCE sets its first values, "
                    "expected CALL_ONCE first; convert the model again"
                )
        elif operator.name in HANDLE_OPERATORS:
            name = _find_name(names, operator)
            value = tensors[(operator.outputs if operator.name == "READ_VARIABLE" else operator.inputs)[-1]]
            if name not in added:
                first = assigned.get(name, value)  # whose zero point TensorFlow Lite Micro fills in
                added[name] = len(tensors)
                tensors.append(replace(first, index=len(tensors), name=name, data=None, is_variable=True))
            _check_same_kind(name, tensors[added[name]], value)
            if operator.name == "READ_VARIABLE":
                operators.append(replace(operator, inputs=(added[name],)))
            else:
                operators.append(replace(operator, inputs=(value.index,), outputs=(added[name],)))
        elif operator.name != "VAR_HANDLE":
            operators.append(operator)
    variables = [
        Variable(index, _fill_initial_values(tensors[index], started.get(name)))
        for name, index in added.items()
    ]
    variables += [
        Variable(tensor.index, _fill_initial_values(tensor, None))
        for tensor in main.tensors
        if tensor.is_variable and tensor.data is None
    ]
    return replace(main, tensors=tuple(tensors), operators=tuple(operators)), tuple(variables)


def _name_handles(graph: Subgraph) -> dict[int, str]:
    """Return the name of the variable of each handle."""
    return {
        operator.outputs[0]: b"/".join(
            filter(None, (operator.options.get("container"), operator.options.get("sharedName")))
        ).decode(errors="replace")
        for operator in graph.operators
        if operator.name == "VAR_HANDLE"
    }


def _find_name(names: dict[int, str], operator: Operator) -> str:
    if not operator.inputs or operator.inputs[0] not in names:
        raise ExportError(
            f"operator {operator.name} has no VAR_HANDLE before it; the model is damaged, copy it again"
        )
    return names[operator.inputs[0]]


def _read_initial_values(graph: Subgraph) -> dict[str, TfliteTensor]:
    """Return the constant that a subgraph assigns to each variable."""
    names = _name_handles(graph)
    values = {}
    for operator in graph.operators:
        if operator.name == "VAR_HANDLE":
            continue
        constant = graph.tensors[operator.inputs[-1]] if operator.inputs else None
        if operator.name != "ASSIGN_VARIABLE" or constant is None or constant.data is None:
            raise ExportError(
                f"the first values of the model's state come from {operator.name}, expected constants; "
                "convert the model with constant initial states"
            )
        values[_find_name(names, operator)] = constant
    return values


def _check_same_kind(name: str, variable: TfliteTensor, value: TfliteTensor) -> None:
    if (variable.dtype, variable.size) != (value.dtype, value.size):
        raise ExportError(
            f"the variable {name} has {variable.size} values of type {variable.dtype} and {value.size} of "
            f"type {value.dtype}, expected one size and type; convert the model again"
        )


def _fill_initial_values(tensor: TfliteTensor, constant: TfliteTensor | None) -> Any:
    """Return the first values of a variable: the constant, or the zero point as in TensorFlow Lite Micro."""
    dtype = NUMPY_TYPES.get(tensor.dtype)
    if dtype is None:
        raise ExportError(
            f"the variable {tensor.name} is {tensor.dtype}, expected INT8 or INT16; quantize the model to "
            "full int8"
        )
    if constant is None:
        return np.full(tensor.shape, tensor.zero_point, dtype)
    _check_same_kind(tensor.name, tensor, constant)
    return constant.data.reshape(tensor.shape)

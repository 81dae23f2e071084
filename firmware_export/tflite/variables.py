"""Finds the variables of a model: tensors that keep their values from one inference to the next.

A converter writes a variable in one of two forms. The operators of recurrent layers mark a tensor as a
variable. Streaming layers make a handle with VAR_HANDLE, which READ_VARIABLE and ASSIGN_VARIABLE use.
CALL_ONCE names a subgraph that sets the first values. Here a handle becomes the tensor of its variable.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from edgefl.base.errors import ExportError
from edgefl.program.plan.tflite import Operator, Subgraph, TfliteTensor, list_initial_subgraphs

HANDLE_OPERATORS = ("READ_VARIABLE", "ASSIGN_VARIABLE")
"""Operators whose first input is a handle."""
NUMPY_TYPES = {"INT8": np.int8, "INT16": np.int16}
"""Types of variables that the generated C can keep."""
MAX_VARIABLE_VALUES = 1 << 24
Identity = tuple[bytes, bytes]
"""Container and shared name of a variable. Handles of the same two names are handles of one variable."""


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
        ExportError: a variable is used before its first values are set or never gets values, a subgraph
            computes first values, or the types or sizes of a variable differ.
    """
    main = subgraphs[0]
    started = {
        identity: values
        for number in list_initial_subgraphs(main)
        for identity, values in _read_initial_values(subgraphs[number]).items()
    }
    handles = _identify_handles(main)
    tensors = list(main.tensors)
    operators: list[Operator] = []
    added: dict[Identity, int] = {}
    assigned = {
        _identify(handles, operator): _get_value(main, operator)
        for operator in reversed(main.operators)
        if operator.name == "ASSIGN_VARIABLE"
    }
    for operator in main.operators:
        if operator.name == "CALL_ONCE":
            if added:
                raise ExportError(
                    f"the variable {tensors[-1].name} is used before CALL_ONCE sets its first values, "
                    "expected CALL_ONCE first; convert the model again"
                )
        elif operator.name in HANDLE_OPERATORS:
            identity = _identify(handles, operator)
            value = _get_value(main, operator)
            if identity not in added:
                first = assigned.get(identity, value)  # whose zero point TensorFlow Lite Micro fills in
                added[identity] = len(tensors)
                name = b"/".join(filter(None, identity)).decode(errors="replace")
                tensors.append(replace(first, index=len(tensors), name=name, data=None, is_variable=True))
            index = added[identity]
            _check_same_kind(tensors[index], value)
            if operator.name == "READ_VARIABLE":
                operators.append(replace(operator, inputs=(index,)))
            else:
                operators.append(replace(operator, inputs=(value.index,), outputs=(index,)))
        elif operator.name != "VAR_HANDLE":
            operators.append(operator)
    for identity, index in added.items():
        if identity not in assigned and identity not in started:
            raise ExportError(
                f"the variable {tensors[index].name} never gets values, expected an ASSIGN_VARIABLE; convert "
                "the model again"
            )
    first_values = {index: started.get(identity) for identity, index in added.items()}
    used = {index for operator in operators for index in operator.inputs}
    marked = [tensor.index for tensor in main.tensors if tensor.is_variable and tensor.data is None]
    first_values |= dict.fromkeys(used.intersection(marked))
    variables = tuple(
        Variable(index, _fill_initial_values(tensors[index], constant))
        for index, constant in sorted(first_values.items())
    )
    return replace(main, tensors=tuple(tensors), operators=tuple(operators)), variables


def _identify_handles(graph: Subgraph) -> dict[int, Identity]:
    """Return the variable of each handle."""
    return {
        operator.outputs[0]: (
            bytes(operator.options.get("container") or b""),
            bytes(operator.options.get("sharedName") or b""),
        )
        for operator in graph.operators
        if operator.name == "VAR_HANDLE"
    }


def _identify(handles: Mapping[int, Identity], operator: Operator) -> Identity:
    if not operator.inputs or operator.inputs[0] not in handles:
        raise ExportError(
            f"operator {operator.name} has no VAR_HANDLE before it; the model is damaged, copy it again"
        )
    return handles[operator.inputs[0]]


def _get_value(graph: Subgraph, operator: Operator) -> TfliteTensor:
    """Return the tensor that a READ_VARIABLE makes, or that an ASSIGN_VARIABLE takes."""
    ends = operator.outputs if operator.name == "READ_VARIABLE" else operator.inputs[1:]
    if len(ends) != 1 or ends[0] < 0:
        raise ExportError(f"operator {operator.name} has no value; the model is damaged, copy it again")
    return graph.tensors[ends[0]]


def _read_initial_values(graph: Subgraph) -> dict[Identity, TfliteTensor]:
    """Return the constant that a subgraph assigns to each variable."""
    handles = _identify_handles(graph)
    values = {}
    for operator in graph.operators:
        if operator.name == "VAR_HANDLE":
            continue
        constant = _get_value(graph, operator) if operator.name == "ASSIGN_VARIABLE" else None
        if constant is None or constant.data is None:
            raise ExportError(
                f"the first values of the model's state come from {operator.name}, expected constants; "
                "convert the model with constant initial states"
            )
        values[_identify(handles, operator)] = constant
    return values


def _check_same_kind(variable: TfliteTensor, value: TfliteTensor) -> None:
    if (variable.dtype, variable.size) != (value.dtype, value.size):
        raise ExportError(
            f"the variable {variable.name} has {variable.size} values of type {variable.dtype} and "
            f"{value.size} of type {value.dtype}, expected one size and type; convert the model again"
        )


def _fill_initial_values(tensor: TfliteTensor, constant: TfliteTensor | None) -> Any:
    """Return the first values of a variable: the constant, or as TensorFlow Lite Micro fills them in.

    These are the zero point of int8 values, and zeros.
    """
    dtype = NUMPY_TYPES.get(tensor.dtype)
    if dtype is None:
        raise ExportError(
            f"the variable {tensor.name} is {tensor.dtype}, expected INT8 or INT16; quantize the model to "
            "full int8"
        )
    if not 0 < tensor.size <= MAX_VARIABLE_VALUES:
        raise ExportError(
            f"the variable {tensor.name} has {tensor.size:,} values, expected 1 to {MAX_VARIABLE_VALUES:,}; "
            "convert the model with fixed sizes"
        )
    if constant is None:
        value = tensor.zero_point if dtype is np.int8 else 0
        return np.full(tensor.shape, np.clip(value, -128, 127), dtype)
    _check_same_kind(tensor, constant)
    return constant.data.reshape(tensor.shape)

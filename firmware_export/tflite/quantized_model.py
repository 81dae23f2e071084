"""An int8 `.tflite` as data: tensors with values and quantization, and operators with options, in order.

`graph.py` lists the contents of a file. This module also checks that the model can be computed, and makes its
names safe to print.
"""

import re
from dataclasses import dataclass, replace

from edgefl.base.errors import ExportError
from edgefl.program.plan.tflite import Operator, TfliteTensor, check_model_size, read_subgraphs, report_damage
from firmware_export.tflite.variables import Variable, resolve_variables

MAX_NAME_LENGTH = 200
MAX_OPERATORS = 4096
MAX_NAME_BYTES = 64 * 1024
STATE_OPERATORS = (
    "READ_VARIABLE",
    "ASSIGN_VARIABLE",
    "SVDF",
    "RNN",
    "LSTM",
    "UNIDIRECTIONAL_SEQUENCE_RNN",
    "UNIDIRECTIONAL_SEQUENCE_LSTM",
    "BIDIRECTIONAL_SEQUENCE_RNN",
    "BIDIRECTIONAL_SEQUENCE_LSTM",
)
"""Operators that may use a variable. Some have no kernel in the generated C."""


def clean_name(name: str) -> str:
    """Return a name from a model file as text that is safe in C comments, HTML, errors and on a terminal.

    Everything that this package writes uses this form of a name. ASCII letters, digits, space and `_/:.;-`
    stay. Any other character becomes `_`. A name therefore cannot end a comment or a line, and cannot contain
    a trigraph or a terminal escape.

    Returns:
        At most MAX_NAME_LENGTH characters.
    """
    return re.sub(r"[^A-Za-z0-9_/:.; -]", "_", name[:MAX_NAME_LENGTH])


@dataclass(frozen=True, eq=False)
class QuantizedModel:
    """The subgraph of an int8 model.

    Each operator's inputs are made before it runs. Names are safe to print.

    Attributes:
        tensors: tensors by index.
        operators: operators in the order of their run.
        inputs: indices of the inputs.
        outputs: indices of the outputs.
        variables: tensors that keep their values from one inference to the next.
    """

    tensors: tuple[TfliteTensor, ...]
    operators: tuple[Operator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    variables: tuple[Variable, ...] = ()

    def get_tensor(self, index: int) -> TfliteTensor:
        """Return the tensor with an operator's input or output index."""
        return self.tensors[index]


def read_quantized_model(model: bytes) -> QuantizedModel:
    """Return the main subgraph of a model, with its variables resolved as in `resolve_variables`.

    The name of a CUSTOM operator is `CUSTOM`, followed by its custom name.

    Raises:
        ExportError: the bytes are not a model, are truncated, were written by a newer schema, or name a
            tensor that is not in the file.
    """
    check_model_size(model, MAX_OPERATORS, MAX_NAME_BYTES)
    subgraphs = read_subgraphs(model)
    with report_damage(model):
        graph, variables = resolve_variables(subgraphs)
    network = QuantizedModel(
        tensors=tuple(replace(tensor, name=clean_name(tensor.name)) for tensor in graph.tensors),
        operators=tuple(
            replace(operator, name=f"CUSTOM {clean_name(operator.custom or '?')}")
            if operator.name == "CUSTOM"
            else operator
            for operator in graph.operators
        ),
        inputs=graph.inputs,
        outputs=graph.outputs,
        variables=variables,
    )
    _check(network)
    return network


def _check(network: QuantizedModel) -> None:
    """Check that indices are in range, and that every operator's inputs are made before it runs."""
    count = len(network.tensors)
    constants = {tensor.index for tensor in network.tensors if tensor.data is not None}
    variables = {variable.tensor for variable in network.variables}
    ready = constants | set(network.inputs) | variables | {-1}
    for noun, ends, wrong in (
        ("input", network.inputs, constants | variables),
        ("output", network.outputs, variables),
    ):
        if wrong.intersection(ends):
            raise ExportError(
                f"an {noun} of the model is its state or a constant, expected a layer's values; convert the "
                "model again"
            )
    for operator in network.operators:
        used = (*operator.inputs, *operator.outputs)
        made = [i for i in operator.outputs if operator.name != "ASSIGN_VARIABLE" or i not in variables]
        if ready.intersection(made) or len(set(made)) < len(made):
            raise ExportError(
                f"operator {operator.name} writes a tensor that has values already, expected a tensor of its "
                "own; the model is damaged, copy it again"
            )
        if operator.name not in STATE_OPERATORS and variables.intersection(operator.inputs):
            raise ExportError(
                f"operator {operator.name} reads the state of another layer, expected READ_VARIABLE before "
                "it; convert the model again"
            )
        if (
            not operator.outputs
            or not all(-1 <= i < count for i in used)
            or not all(i in ready for i in operator.inputs)
        ):
            raise ExportError(
                f"operator {operator.name} names a missing tensor; the model is damaged, copy it again"
            )
        ready.update(operator.outputs)
    if not network.outputs or not all(
        0 <= i < count and i in ready for i in (*network.inputs, *network.outputs)
    ):
        raise ExportError(
            "the model has no output, or no operator makes its output; it is damaged, copy it again"
        )

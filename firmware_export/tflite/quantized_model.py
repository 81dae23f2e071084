"""An int8 `.tflite` as data: tensors with values and quantization, and operators with options, in order.

`graph.py` lists the contents of a file. This module also checks that the model can be computed, and makes its
names safe to print.
"""

import re
from dataclasses import dataclass, replace

from edgefl.base.errors import ExportError
from edgefl.program.plan.tflite import Operator, TfliteTensor, check_model_size, read_subgraph

MAX_NAME_LENGTH = 200
MAX_OPERATORS = 4096
MAX_NAME_BYTES = 64 * 1024
STATEFUL_OPERATORS = (
    "SVDF",
    "RNN",
    "LSTM",
    "UNIDIRECTIONAL_SEQUENCE_RNN",
    "UNIDIRECTIONAL_SEQUENCE_LSTM",
    "BIDIRECTIONAL_SEQUENCE_RNN",
    "BIDIRECTIONAL_SEQUENCE_LSTM",
)
"""Operators that read a tensor which no operator makes: their state of the last inference."""


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
    """

    tensors: tuple[TfliteTensor, ...]
    operators: tuple[Operator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def get_tensor(self, index: int) -> TfliteTensor:
        """Return the tensor with an operator's input or output index."""
        return self.tensors[index]


def read_quantized_model(model: bytes) -> QuantizedModel:
    """Return a model with one subgraph.

    The name of a CUSTOM operator is `CUSTOM`, followed by its custom name.

    Raises:
        ExportError: the bytes are not a model, are truncated, were written by a newer schema, or name a
            tensor that is not in the file.
    """
    check_model_size(model, MAX_OPERATORS, MAX_NAME_BYTES)
    graph = read_subgraph(model)
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
    )
    _check(network)
    return network


def _check(network: QuantizedModel) -> None:
    """Check that indices are in range, and that every operator's inputs are made before it runs."""
    count = len(network.tensors)
    ready = (
        {tensor.index for tensor in network.tensors if tensor.data is not None} | set(network.inputs) | {-1}
    )
    for operator in network.operators:
        used = (*operator.inputs, *operator.outputs)
        if operator.name in STATEFUL_OPERATORS and operator.outputs and 0 <= operator.outputs[0] < count:
            layer = network.get_tensor(operator.outputs[0]).name
            raise ExportError(
                f"operator {operator.name} ({layer}) keeps a state between inferences, which the generated C "
                "cannot; use convolutions, or a recurrent layer with unroll=True"
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

"""The operators and tensors of a `.tflite` by name, without values."""

from dataclasses import dataclass

from edgefl.base.errors import ExportError
from edgefl.program.plan.tflite import Subgraph, read_subgraph
from firmware_export.tflite.quantized_model import clean_name

FORBIDDEN_OPERATORS = {
    "SUM": "its int8 reference kernel is wrong; add with ADD",
    "BATCH_MATMUL": "its int8 kernels disagree; use a Dense layer",
}


@dataclass(frozen=True)
class TensorKind:
    """A tensor without its values.

    Attributes:
        name: name in the file, by which the quantizer finds the tensor.
        dtype: type, such as "INT8".
        constant: whether the file contains its values.
    """

    name: str
    dtype: str
    constant: bool


@dataclass(frozen=True)
class OperatorGraph:
    """The operators and tensors of a subgraph.

    Attributes:
        operators: each operator's name and the indices of its outputs, in order.
        tensors: tensors by index.
        inputs: the indices of each operator's inputs, in order.
    """

    operators: tuple[tuple[str, tuple[int, ...]], ...]
    tensors: tuple[TensorKind, ...]
    inputs: tuple[tuple[int, ...], ...] = ()


def read_graph(model: bytes) -> OperatorGraph:
    """Return the operators and tensors of the main subgraph of a model.

    Raises:
        ModelFileError: as in `read_subgraph`.
    """
    return summarize_subgraph(read_subgraph(model))


def summarize_subgraph(graph: Subgraph) -> OperatorGraph:
    """Return the operators and tensors of a subgraph."""
    return OperatorGraph(
        tuple((operator.name, operator.outputs) for operator in graph.operators),
        tuple(TensorKind(tensor.name, tensor.dtype, tensor.data is not None) for tensor in graph.tensors),
        tuple(operator.inputs for operator in graph.operators),
    )


def check_integer(graph: OperatorGraph) -> None:
    """Check that a model computes with integers only.

    Raises:
        ExportError: an operator has a float output, or is forbidden. The error names the operator and its
            layer.
    """
    for name, outputs in graph.operators:
        if name in FORBIDDEN_OPERATORS:
            raise ExportError(
                f"the mixture contains int8 {name} ({_name_layer(graph, outputs)}): "
                f"{FORBIDDEN_OPERATORS[name]}"
            )
    float_operators = [
        (name, outputs)
        for name, outputs in graph.operators
        if any(graph.tensors[i].dtype == "FLOAT32" for i in outputs)
    ]
    computing = [pair for pair in float_operators if pair[0] not in ("QUANTIZE", "DEQUANTIZE")]
    for name, outputs in computing or float_operators:
        where = _name_layer(graph, outputs)
        raise ExportError(
            f"operator {name} ({where}) has no int8 form, expected integers only; use another layer "
            "instead (ReLU for a smooth activation)"
        )


def _name_layer(graph: OperatorGraph, outputs: tuple[int, ...]) -> str:
    return clean_name(graph.tensors[outputs[0]].name) if outputs else "?"

"""The operators and tensors of a `.tflite` by name, without their values."""

from dataclasses import dataclass

from edgefl.errors import ExportError
from edgefl.plan.tflite import read_subgraph
from firmware_export.tflite.quantized_model import clean_name

FORBIDDEN_OPERATORS = {
    "SUM": "its int8 reference kernel is wrong; add with ADD",
    "BATCH_MATMUL": "its int8 kernels disagree; use a Dense layer",
}


@dataclass(frozen=True)
class TensorKind:
    """Name as it is in the file (the quantizer looks it up), type, and whether its values are in the file."""

    name: str
    dtype: str
    constant: bool


@dataclass(frozen=True)
class OperatorGraph:
    """The operators' names in order with the indices of their outputs, the tensors by index, each operator's
    inputs.
    """

    operators: tuple[tuple[str, tuple[int, ...]], ...]
    tensors: tuple[TensorKind, ...]
    inputs: tuple[tuple[int, ...], ...] = ()


def read_graph(model: bytes) -> OperatorGraph:
    """Return the subgraph of a model that has one. Raises ExportError for bytes that are no model."""
    graph = read_subgraph(model)
    return OperatorGraph(
        tuple((operator.name, operator.outputs) for operator in graph.operators),
        tuple(TensorKind(tensor.name, tensor.dtype, tensor.data is not None) for tensor in graph.tensors),
        tuple(operator.inputs for operator in graph.operators),
    )


def check_integer(graph: OperatorGraph) -> None:
    """Raise ExportError that names the operator when it is forbidden, or when one is not of integers only."""
    for name, outputs in graph.operators:
        if name in FORBIDDEN_OPERATORS:
            raise ExportError(
                f"the mixture holds int8 {name} ({_name_layer(graph, outputs)}): {FORBIDDEN_OPERATORS[name]}"
            )
    left = [
        (name, outputs)
        for name, outputs in graph.operators
        if any(graph.tensors[i].dtype == "FLOAT32" for i in outputs)
    ]
    computing = [pair for pair in left if pair[0] not in ("QUANTIZE", "DEQUANTIZE")]
    for name, outputs in computing or left:
        where = _name_layer(graph, outputs)
        raise ExportError(
            f"operator {name} ({where}) has no int8 form, expected integers only; export needs another layer "
            "there (ReLU for a smooth activation)"
        )


def _name_layer(graph: OperatorGraph, outputs: tuple[int, ...]) -> str:
    return clean_name(graph.tensors[outputs[0]].name) if outputs else "?"

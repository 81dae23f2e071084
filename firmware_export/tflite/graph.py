"""What a .tflite holds: its operators and tensors, read from the flatbuffer without running it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgefl.errors import ExportError
from edgefl.types import Array
from firmware_export.tflite.network import UNREADABLE, safe_name

FORBIDDEN = {
    "SUM": "its int8 reference kernel is wrong; add with ADD",
    "BATCH_MATMUL": "its int8 kernels disagree; use a Dense layer",
}


@dataclass(frozen=True)
class Tensor:
    """Name as it is in the file (the quantizer looks it up), type, and whether its values are in the file."""

    name: str
    dtype: str
    constant: bool


@dataclass(frozen=True)
class Graph:
    """Subgraph 0: the operators' names in order with the indices of their outputs, the tensors by index, each
    operator's inputs.
    """

    operators: tuple[tuple[str, tuple[int, ...]], ...]
    tensors: tuple[Tensor, ...]
    inputs: tuple[tuple[int, ...], ...] = ()


def _names(enumeration: Any) -> dict[int, str]:
    return {value: name for name, value in vars(enumeration).items() if isinstance(value, int)}


def read_graph(model: bytes) -> Graph:
    """Return the first subgraph. Raises ExportError for bytes that are no model."""
    if model[4:8] != b"TFL3":
        raise ExportError(f"{len(model)} bytes that are no TFLite model: expected the mark TFL3 at byte 4")
    try:
        return _graph(model)
    except UNREADABLE as error:
        raise ExportError(
            f"the model's {len(model)} bytes cannot be read ({error!r}); it is truncated or damaged, copy it "
            "again"
        ) from error


def _graph(model: bytes) -> Graph:
    from ai_edge_litert import schema_py_generated as schema

    root = schema.Model.GetRootAs(model, 0)
    if root.SubgraphsLength() != 1:
        raise ExportError(
            f"the model has {root.SubgraphsLength()} subgraphs, expected one; remove loops and conditions "
            "from it"
        )
    graph = root.Subgraphs(0)
    kinds = _names(schema.TensorType)
    codes = _names(schema.BuiltinOperator)
    tensors = tuple(
        Tensor(
            tensor.Name().decode(errors="replace") if tensor.Name() else f"tensor {index}",
            kinds[tensor.Type()],
            root.Buffers(tensor.Buffer()).DataLength() > 0,
        )
        for index in range(graph.TensorsLength())
        for tensor in [graph.Tensors(index)]
    )
    operators = []
    inputs = []
    for index in range(graph.OperatorsLength()):
        operator = graph.Operators(index)
        code = root.OperatorCodes(operator.OpcodeIndex())
        name = codes[max(code.BuiltinCode(), code.DeprecatedBuiltinCode())]
        operators.append((name, tuple(operator.Outputs(i) for i in range(operator.OutputsLength()))))
        inputs.append(tuple(operator.Inputs(i) for i in range(operator.InputsLength())))
    return Graph(tuple(operators), tensors, tuple(inputs))


def constants(model: bytes) -> dict[int, Array]:
    """Return the float32 constants of subgraph 0 by tensor index."""
    from ai_edge_litert import schema_py_generated as schema

    root = schema.Model.GetRootAs(model, 0)
    graph = root.Subgraphs(0)
    found = {}
    for index in range(graph.TensorsLength()):
        tensor = graph.Tensors(index)
        data = root.Buffers(tensor.Buffer()).DataAsNumpy()
        if tensor.Type() == schema.TensorType.FLOAT32 and not isinstance(data, int) and data.size:
            found[index] = data.view(np.float32).reshape(
                tuple(tensor.ShapeAsNumpy()) if tensor.ShapeLength() else ()
            )
    return found


def with_constants(model: bytes, values: Mapping[int, Any]) -> bytes:
    """Return the .tflite with other values in these tensors of subgraph 0: int8 as they are, all else as
    float32.
    """
    from ai_edge_litert import schema_py_generated as schema

    content = bytearray(model)
    root = schema.Model.GetRootAs(content, 0)
    for index, value in values.items():
        place = root.Buffers(root.Subgraphs(0).Tensors(index).Buffer()).DataAsNumpy()
        kind = np.int8 if value.dtype == np.int8 else np.float32
        place[:] = np.frombuffer(np.ascontiguousarray(value, kind).tobytes(), np.uint8)
    return bytes(content)


def check_integer(graph: Graph) -> None:
    """Raise ExportError that names the operator when it is forbidden, or when one is not of integers only."""
    for name, outputs in graph.operators:
        if name in FORBIDDEN:
            raise ExportError(f"the mixture holds int8 {name} ({_place(graph, outputs)}): {FORBIDDEN[name]}")
    left = [
        (name, outputs)
        for name, outputs in graph.operators
        if any(graph.tensors[i].dtype == "FLOAT32" for i in outputs)
    ]
    own = [pair for pair in left if pair[0] not in ("QUANTIZE", "DEQUANTIZE")]
    for name, outputs in own or left:
        where = _place(graph, outputs)
        raise ExportError(
            f"operator {name} ({where}) has no int8 form, expected integers only; export needs another layer "
            "there (ReLU for a smooth activation)"
        )


def _place(graph: Graph, outputs: tuple[int, ...]) -> str:
    return safe_name(graph.tensors[outputs[0]].name.encode()) if outputs else "?"

"""An int8 .tflite as data: tensors with their values and quantization, operators in order with their options.

`graph.py` lists what a file holds; this reads all that is needed to compute it. Bytes that cannot be read, or
that a newer schema wrote, raise ExportError: nothing here guesses.
"""

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgefl.errors import ExportError

SCHEMA = 3
MAX_NAME_LENGTH = 200
UNREADABLE = (
    struct.error,
    IndexError,
    KeyError,
    ValueError,
    TypeError,
    AttributeError,
    OverflowError,
    MemoryError,
)


def safe_name(raw: bytes) -> str:
    """Return a name from a model file as text that is safe in C comments, HTML, errors and on a terminal.

    Everything that this package writes uses this form of a name. ASCII letters, digits, space and `_/:.;-`
    stay, any other character becomes `_`: a name cannot end a comment or a line, hold a trigraph or a
    terminal escape.

    Args:
        raw: The name's bytes. They may be invalid UTF-8.

    Returns:
        At most MAX_NAME_LENGTH characters.
    """
    return re.sub(r"[^A-Za-z0-9_/:.; -]", "_", raw[: 4 * MAX_NAME_LENGTH].decode(errors="replace"))[
        :MAX_NAME_LENGTH
    ]


@dataclass(frozen=True, eq=False)
class Tensor:
    """One tensor.

    name: see `safe_name`; scale: float32[channels or 1], empty where it is not quantized; axis: the dimension
    that scales belong to; data: its values in `shape`, None for an activation.
    """

    index: int
    name: str
    shape: tuple[int, ...]
    dtype: str
    scale: Any
    zero_points: tuple[int, ...]
    axis: int
    data: Any

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def zero_point(self) -> int:
        """The zero point of a tensor with one scale."""
        return self.zero_points[0]


@dataclass(frozen=True, eq=False)
class Operator:
    """One operator: its builtin name, version, tensors by index (-1: left out), and options by the schema's
    names.
    """

    name: str
    version: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Network:
    """Subgraph 0 of a model."""

    tensors: tuple[Tensor, ...]
    operators: tuple[Operator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def tensor(self, index: int) -> Tensor:
        """Return the tensor of an operator's input or output."""
        return self.tensors[index]


def read_network(model: bytes) -> Network:
    """Return subgraph 0. Raises ExportError for bytes that are no model, that end early, or that a newer
    schema wrote.
    """
    from ai_edge_litert import schema_py_generated as schema

    if model[4:8] != b"TFL3":
        raise ExportError(
            f"{len(model)} bytes that are no TFLite model: expected the mark TFL3 at byte 4; give a "
            "model.tflite"
        )
    try:
        root = schema.ModelT.InitFromObj(schema.Model.GetRootAs(model, 0))
        if root.version != SCHEMA:
            raise ExportError(
                f"the model is of schema version {root.version}, expected {SCHEMA}; export it again, or "
                "update edgefl"
            )
        if len(root.subgraphs) != 1:
            raise ExportError(
                f"the model has {len(root.subgraphs)} subgraphs, expected one; remove loops and conditions "
                "from it"
            )
        graph = root.subgraphs[0]
        tensors = tuple(_tensor(model, root, graph, index, schema) for index in range(len(graph.tensors)))
        operators = tuple(_operator(root, each, schema) for each in graph.operators)
        network = Network(tensors, operators, _indices(graph.inputs), _indices(graph.outputs))
    except UNREADABLE as error:
        raise ExportError(
            f"the model's {len(model)} bytes cannot be read ({error!r}); it is truncated or damaged, copy it "
            "again"
        ) from error
    _check(network)
    return network


def _indices(found: Any) -> tuple[int, ...]:
    return () if found is None else tuple(int(i) for i in found)


def _names(enumeration: Any) -> dict[int, str]:
    return {value: name for name, value in vars(enumeration).items() if isinstance(value, int)}


def _tensor(model: bytes, root: Any, graph: Any, index: int, schema: Any) -> Tensor:
    tensor = graph.tensors[index]
    name = safe_name(tensor.name) if tensor.name else f"tensor {index}"
    dtype = _names(schema.TensorType)[tensor.type]
    shape = _indices(tensor.shape)
    quantization = tensor.quantization
    scale = np.zeros(0, np.float32)
    zero_points: tuple[int, ...] = (0,)
    if quantization is not None and quantization.scale is not None and len(quantization.scale):
        scale = np.asarray(quantization.scale, np.float32)
        zero_points = _indices(quantization.zeroPoint) or (0,)
    raw = buffer_bytes(model, root.buffers[tensor.buffer])
    data = None
    if raw:
        kind = {"INT8": np.int8, "INT32": np.int32, "INT64": np.int64, "FLOAT32": np.float32}.get(
            dtype, np.uint8
        )
        data = np.frombuffer(raw, np.dtype(kind).newbyteorder("<"))
        if kind is not np.uint8:
            data = data.reshape(shape)
    axis = int(quantization.quantizedDimension) if quantization is not None else 0
    return Tensor(index, name, shape, dtype, scale, zero_points, axis, data)


def buffer_bytes(model: bytes, buffer: Any) -> bytes:
    """Return a buffer's bytes: inside of the flatbuffer, or behind it where a large model keeps them."""
    if buffer.offset > 1:
        found = model[buffer.offset : buffer.offset + buffer.size]
        if len(found) != buffer.size:
            raise IndexError(f"a buffer ends at byte {buffer.offset + buffer.size} of {len(model)}")
        return found
    return b"" if buffer.data is None else np.asarray(buffer.data, np.uint8).tobytes()


def _operator(root: Any, operator: Any, schema: Any) -> Operator:
    code = root.operatorCodes[operator.opcodeIndex]
    number = max(code.builtinCode, code.deprecatedBuiltinCode)
    names = _names(schema.BuiltinOperator)
    if number not in names:
        raise ExportError(
            f"the model holds builtin operator {number}, which this edgefl does not know; it is of a newer "
            "TFLite: update edgefl"
        )
    options = vars(operator.builtinOptions) if operator.builtinOptions is not None else {}
    name = names[number] if names[number] != "CUSTOM" else f"CUSTOM {safe_name(code.customCode or b'?')}"
    return Operator(name, int(code.version), _indices(operator.inputs), _indices(operator.outputs), options)


def _check(network: Network) -> None:
    """Indices lie inside, and every operator's input is there before it runs."""
    count = len(network.tensors)
    ready = (
        {tensor.index for tensor in network.tensors if tensor.data is not None} | set(network.inputs) | {-1}
    )
    for operator in network.operators:
        used = (*operator.inputs, *operator.outputs)
        if (
            not operator.outputs
            or not all(-1 <= i < count for i in used)
            or not all(i in ready for i in operator.inputs)
        ):
            raise ExportError(
                f"operator {operator.name} names a tensor that is not there; the model is damaged, copy it "
                "again"
            )
        ready.update(operator.outputs)
    if not network.outputs or not all(
        0 <= i < count and i in ready for i in (*network.inputs, *network.outputs)
    ):
        raise ExportError(
            "the model has no output, or one that no operator makes; it is damaged, copy it again"
        )

"""Reads and writes `.tflite` files. Only this module uses the flatbuffer schema.

`read_model` returns a model as frozen dataclasses. Their arrays are views of the bytes of the file, so
reading a large model copies no weights. `unpack_model` and `pack_model` change a model. `read_metadata` reads
one entry without ai-edge-litert, for boards that have only tflite-runtime.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from edgefl.base.errors import ModelFileError
from edgefl.base.types import Array

FILE_IDENTIFIER = b"TFL3"
"""File identifier at byte 4."""
SCHEMA_VERSION = 3
"""Version of the schema."""
FLATBUFFER_ALIGNMENT_BYTES = 16
"""Alignment of the data of a buffer: `data:[ubyte] (force_align: 16)` in schema.fbs."""
BUFFERS_FIELD = 4
METADATA_FIELD = 6
"""Numbers of the fields of the table Model in schema.fbs."""
VALUE_TYPES = {
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FLOAT32": np.float32,
}
"""Types whose constants are read as numbers. Constants of other types are read as bytes."""
DAMAGE_ERRORS = (
    struct.error,
    IndexError,
    KeyError,
    ValueError,
    TypeError,
    AttributeError,
    OverflowError,
    MemoryError,
)
"""Errors of flatbuffers for truncated or damaged bytes."""


@dataclass(frozen=True, eq=False)
class TfliteTensor:
    """One tensor of a subgraph.

    Attributes:
        index: its number in the subgraph.
        name: its name in the file. The name may contain any characters.
        shape: its shape.
        dtype: the name of its type in the schema, such as INT8.
        scale: quantization scales, shape (channels,) or (1,), float32. Empty if the tensor is not quantized.
        zero_points: one zero point for each scale, or (0,) if the tensor is not quantized.
        axis: the dimension that the scales belong to.
        data: the values of a constant in `shape`, as a view of the file. None for an activation. Values of a
            type outside VALUE_TYPES are bytes, shape (n,), uint8.
        is_variable: whether the tensor keeps its values from one run to the next.
    """

    index: int
    name: str
    shape: tuple[int, ...]
    dtype: str
    scale: Any
    zero_points: tuple[int, ...]
    axis: int
    data: Any
    is_variable: bool = False

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def element_bytes(self) -> int:
        """Size of an element in bytes. An element of a type outside VALUE_TYPES counts as one byte."""
        return int(np.dtype(VALUE_TYPES.get(self.dtype, np.int8)).itemsize)

    @property
    def bytes(self) -> int:
        """Size of all elements in bytes."""
        return self.size * self.element_bytes

    @property
    def zero_point(self) -> int:
        """The zero point of a tensor with one scale."""
        return self.zero_points[0]

    def overwrite(self, value: Any) -> None:
        """Write the bytes of an array over a constant, in a model that was read from a bytearray.

        Args:
            value: an array with as many bytes as the constant.

        Raises:
            ValueError: the tensor is not a constant of this size.
        """
        value = np.ascontiguousarray(value)
        if self.data is None or self.data.nbytes != value.nbytes:
            raise ValueError(f"tensor {self.index} is not a constant of {value.nbytes} bytes")
        self.data.reshape(-1).view(np.uint8)[:] = value.reshape(-1).view(np.uint8)


@dataclass(frozen=True, eq=False)
class Operator:
    """One operator.

    Attributes:
        name: its name in the schema, such as CONV_2D.
        custom: the name of a CUSTOM operator in the file, else "".
        version: the version that the file requires.
        inputs: indices of the input tensors. -1 marks an omitted input.
        outputs: indices of the output tensors.
        options: options by their names in the schema's object API, such as strideH. Empty if there are none.
    """

    name: str
    custom: str
    version: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Subgraph:
    """A graph of tensors and operators.

    Attributes:
        tensors: tensors by index.
        operators: operators in execution order.
        inputs: indices of the input tensors.
        outputs: indices of the output tensors.
    """

    tensors: tuple[TfliteTensor, ...]
    operators: tuple[Operator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class ModelFile:
    """A whole file.

    Attributes:
        subgraphs: all subgraphs.
        signatures: the number of the subgraph of each signature.
        bytes_behind: bytes of constants behind the flatbuffer, where TensorFlow Lite Micro does not look for
            them.
    """

    subgraphs: tuple[Subgraph, ...]
    signatures: Mapping[str, int]
    bytes_behind: int


def check_identifier(model: bytes | bytearray, name: str = "the model") -> None:
    """Check that the bytes begin like a `.tflite`.

    Args:
        model: the bytes of the file.
        name: the name of the file in errors.

    Raises:
        ModelFileError: they do not.
    """
    if bytes(model[4:8]) != FILE_IDENTIFIER:
        raise ModelFileError(
            f"{name} is not a TFLite model: expected the identifier TFL3 at byte 4, found "
            f"{bytes(model[4:8])!r} in {len(model)} bytes; use a .tflite file"
        )


@contextmanager
def report_damage(model: bytes | bytearray, name: str = "the model") -> Iterator[None]:
    """Convert errors that truncated or damaged model bytes cause inside the block.

    Args:
        model: the bytes of the file.
        name: the name of the file in errors.

    Raises:
        ModelFileError: the bytes are not a model, or are truncated or damaged.
    """
    check_identifier(model, name)
    try:
        yield
    except DAMAGE_ERRORS as error:
        raise ModelFileError(
            f"{name} cannot be read ({error!r} in {len(model)} bytes); it is truncated or damaged, copy it "
            "again"
        ) from error


def read_model(model: bytes | bytearray, name: str = "the model") -> ModelFile:
    """Read a model.

    Args:
        model: the bytes of the file. With a bytearray, constants can be overwritten in place.
        name: the name of the file in errors.

    Raises:
        ModelFileError: the bytes are not a model, are truncated or damaged, or were written by a newer
            schema.
    """
    with report_damage(model, name):
        root = _unpack_objects(model)
        if root.version != SCHEMA_VERSION:
            raise ModelFileError(
                f"{name} has schema version {root.version}, expected {SCHEMA_VERSION}; export it again, or "
                "update edgefl"
            )
        return ModelFile(
            tuple(_convert_subgraph(model, root, graph, name) for graph in root.subgraphs),
            {entry.signatureKey.decode(): entry.subgraphIndex for entry in root.signatureDefs or ()},
            sum(buffer.size for buffer in root.buffers if buffer.offset > 1),
        )


def check_model_size(
    model: bytes | bytearray, max_operators: int, max_name_bytes: int, name: str = "the model"
) -> None:
    """Check the number of operators and tensors and the length of names, before the model is read.

    Reading takes milliseconds for each operator, so a small file could take hours.

    Args:
        model: the bytes of the file.
        max_operators: maximum number of operators. A model may have four times as many tensors.
        max_name_bytes: maximum length of a tensor's name, in bytes.
        name: the name of the file in errors.

    Raises:
        ModelFileError: a limit is exceeded, or the bytes are not a model, or are truncated or damaged.
    """
    from ai_edge_litert import schema_py_generated as schema

    with report_damage(model, name):
        root = schema.Model.GetRootAs(model, 0)
        graphs = [root.Subgraphs(index) for index in range(root.SubgraphsLength())]
        for noun, count, limit in (
            ("operators", sum(graph.OperatorsLength() for graph in graphs), max_operators),
            ("tensors", sum(graph.TensorsLength() for graph in graphs), 4 * max_operators),
        ):
            if count > limit:
                raise ModelFileError(
                    f"{name} has {count} {noun}, expected at most {limit}; use a smaller model"
                )
        for graph in graphs:
            for index in range(graph.TensorsLength()):
                size = len(graph.Tensors(index).Name() or b"")
                if size > max_name_bytes:
                    raise ModelFileError(
                        f"{name} has a tensor whose name has {size} bytes, expected at most "
                        f"{max_name_bytes}; use shorter names of layers"
                    )


def read_subgraph(model: bytes | bytearray, name: str = "the model") -> Subgraph:
    """Read the main subgraph of a model, as `read_subgraphs`."""
    return read_subgraphs(model, name)[0]


def read_subgraphs(model: bytes | bytearray, name: str = "the model") -> tuple[Subgraph, ...]:
    """Read the main subgraph of a model, and those that set its first state.

    Args:
        model: the bytes of the file. With a bytearray, constants can be overwritten in place.
        name: the name of the file in errors.

    Raises:
        ModelFileError: the model cannot be read, or has other subgraphs.
    """
    subgraphs = read_model(model, name).subgraphs
    with report_damage(model, name):
        starts = {number for graph in subgraphs[:1] for number in list_initial_subgraphs(graph)}
    if not subgraphs or set(range(1, len(subgraphs))) - starts:
        raise ModelFileError(
            f"{name} has {len(subgraphs)} subgraphs, expected one; remove loops and conditions from it"
        )
    return subgraphs


def list_initial_subgraphs(graph: Subgraph) -> list[int]:
    """Return the numbers of the subgraphs that run once, before the first run of this one."""
    return [
        int(operator.options["initSubgraphIndex"])
        for operator in graph.operators
        if operator.name == "CALL_ONCE"
    ]


def read_float_constants(model: bytes) -> dict[int, Array]:
    """Return the float32 constants of the main subgraph, by tensor index.

    Returns:
        Arrays in the shapes of their tensors, float32, as views of the bytes of the model.

    Raises:
        ModelFileError: as in `read_subgraphs`.
    """
    return list_float_constants(read_subgraph(model))


def list_float_constants(graph: Subgraph) -> dict[int, Array]:
    """Return the float32 constants of a graph by tensor index, see `read_float_constants`."""
    return {
        tensor.index: tensor.data
        for tensor in graph.tensors
        if tensor.dtype == "FLOAT32" and tensor.data is not None
    }


def with_constants(model: bytes, values: Mapping[int, Any]) -> bytes:
    """Return a model whose main subgraph has other constants.

    Args:
        model: the bytes of the file.
        values: new values by tensor index. int8 arrays are written unchanged, and other arrays as float32.

    Raises:
        ModelFileError: as in `read_subgraphs`.
        ValueError: a tensor is not a constant of this size.
    """
    content = bytearray(model)
    tensors = read_subgraph(content).tensors
    for index, value in values.items():
        tensors[index].overwrite(value if value.dtype == np.int8 else np.asarray(value, np.float32))
    return bytes(content)


def unpack_model(model: bytes) -> Any:
    """Return a model as the schema's ModelT, an object tree that may be changed and packed again.

    Buffers behind the flatbuffer are moved inside. Call this function and change the tree within
    `report_damage`, then pack it with `pack_model`.
    """
    root = _unpack_objects(model)
    for buffer in root.buffers:
        buffer.data = _read_buffer(model, buffer)
        buffer.offset = 0
        buffer.size = 0
    return root


def pack_model(root: Any, size: int, *, align_all: bool = False) -> bytes:
    """Return the bytes of a ModelT.

    Args:
        root: the object tree that `unpack_model` returns, changed or unchanged.
        size: the approximate number of bytes.
        align_all: align every vector to FLATBUFFER_ALIGNMENT_BYTES. Otherwise only buffer data are aligned,
            which need it.
    """
    import flatbuffers

    class AlignedBuilder(flatbuffers.Builder):  # type: ignore[misc]
        """A builder that aligns vectors. flatbuffers for Python ignores `force_align`."""

        def CreateNumpyVector(self, x: Any) -> Any:
            if align_all or x.dtype == np.uint8:
                self.Prep(FLATBUFFER_ALIGNMENT_BYTES, x.nbytes)
            return super().CreateNumpyVector(x)

    builder = AlignedBuilder(size)
    builder.Finish(root.Pack(builder), FILE_IDENTIFIER)
    return bytes(builder.Output())


def set_operator_options(operator: Any, name: str, **members: Any) -> None:
    """Set the options of an OperatorT.

    For example: `set_operator_options(operator, "ReshapeOptions", newShape=[1, 8])`.

    Args:
        operator: the OperatorT.
        name: the name of the options table in the schema.
        members: values by their names in the schema's object API.
    """
    from ai_edge_litert import schema_py_generated as schema

    operator.builtinOptions = getattr(schema, f"{name}T")()
    for member, value in members.items():
        setattr(operator.builtinOptions, member, value)
    operator.builtinOptionsType = getattr(schema.BuiltinOptions, name)


def make_operator_code(name: str, version: int) -> Any:
    """Return an OperatorCodeT for the list `operatorCodes` of a ModelT.

    Args:
        name: the name of the operator in the schema, such as CONV_2D.
    """
    from ai_edge_litert import schema_py_generated as schema

    code = schema.OperatorCodeT()
    code.builtinCode = getattr(schema.BuiltinOperator, name)
    code.deprecatedBuiltinCode = min(code.builtinCode, 127)
    code.version = version
    return code


def add_tensor(root: Any, name: str, shape: Sequence[int], data: Array | None = None) -> int:
    """Add a float32 tensor to the only subgraph of a ModelT, and return its index.

    Args:
        root: the ModelT.
        shape: its shape.
        data: the values of a constant, float32. None for an activation.
    """
    from ai_edge_litert import schema_py_generated as schema

    graph = root.subgraphs[0]
    tensor, buffer = schema.TensorT(), schema.BufferT()
    tensor.name = name.encode()
    tensor.shape = np.array(shape, np.int32)
    tensor.type = schema.TensorType.FLOAT32
    tensor.buffer = len(root.buffers)
    tensor.hasRank = True
    buffer.data = None if data is None else data.reshape(-1).view(np.uint8)
    root.buffers = [*root.buffers, buffer]
    graph.tensors = [*graph.tensors, tensor]
    return len(graph.tensors) - 1


def add_operator(
    root: Any, name: str, options: str, inputs: Sequence[int], output: str, **members: Any
) -> int:
    """Add an operator to the end of the only subgraph of a ModelT, and return the index of its output.

    The output has the shape of the first input.

    Args:
        root: the ModelT.
        name: the name of the operator in the schema, such as ADD.
        options: the name of its options table in the schema, such as AddOptions.
        inputs: indices of the inputs.
        output: name of the output tensor.
        members: options by their names in the schema's object API.
    """
    from ai_edge_litert import schema_py_generated as schema

    graph = root.subgraphs[0]
    operator = schema.OperatorT()
    operator.opcodeIndex = len(root.operatorCodes)
    root.operatorCodes = [*root.operatorCodes, make_operator_code(name, 1)]
    operator.inputs = list(inputs)
    operator.outputs = [add_tensor(root, output, graph.tensors[inputs[0]].shape)]
    set_operator_options(operator, options, **members)
    graph.operators = [*graph.operators, operator]
    return int(operator.outputs[0])


def with_metadata(model: bytes, entries: Mapping[str, bytes]) -> bytes:
    """Return the model with further metadata entries.

    An entry is a buffer that travels with the model and that runtimes ignore. Weights, operators and outputs
    do not change.

    Args:
        model: the bytes of a `.tflite`.
        entries: content of each entry by its name, which the model does not contain yet.

    Raises:
        ModelFileError: the model is damaged.
    """
    from ai_edge_litert import schema_py_generated as schema

    with report_damage(model):
        root = unpack_model(model)
        for name, content in entries.items():
            entry = schema.MetadataT()
            entry.name = name
            entry.buffer = len(root.buffers)
            buffer = schema.BufferT()
            buffer.data = np.frombuffer(content, np.uint8)
            root.buffers = [*root.buffers, buffer]
            root.metadata = [*(root.metadata or []), entry]
        return pack_model(root, len(model) + sum(map(len, entries.values())), align_all=True)


def read_metadata(model: bytes, name: str) -> bytes | None:
    """Return the content of a metadata entry, or None if there is no such entry or the model is damaged.

    Args:
        model: the bytes of a `.tflite`.
    """
    try:
        root = _follow_offset(model, 0)
        buffers = _find_tables(model, _find_field(model, root, BUFFERS_FIELD))
        for entry in _find_tables(model, _find_field(model, root, METADATA_FIELD)):
            name_field = _find_field(model, entry, 0)
            if name_field and _read_vector(model, name_field) == name.encode():
                index = _find_field(model, entry, 1)
                data = _find_field(model, buffers[_read_uint32(model, index)], 0) if index else 0
                return _read_vector(model, data) if data else None
    except (struct.error, IndexError):
        pass
    return None


def _unpack_objects(model: bytes | bytearray) -> Any:
    from ai_edge_litert import schema_py_generated as schema

    return schema.ModelT.InitFromObj(schema.Model.GetRootAs(model, 0))


@cache
def _read_enum_names(enumeration: str) -> dict[int, str]:
    from ai_edge_litert import schema_py_generated as schema

    members = vars(getattr(schema, enumeration))
    return {value: name for name, value in members.items() if isinstance(value, int)}


def read_builtin_code(code: Any) -> int:
    """Return the operator number of an OperatorCodeT. Old files store it in another field."""
    return int(max(code.builtinCode, code.deprecatedBuiltinCode))


def _convert_operator(operator: Any, codes: Any, name: str) -> Operator:
    code = codes[operator.opcodeIndex]
    number = read_builtin_code(code)
    names = _read_enum_names("BuiltinOperator")
    if number not in names:
        raise ModelFileError(
            f"{name} contains builtin operator {number}, which this edgefl does not know; it was made by a "
            "newer TFLite: update edgefl"
        )
    return Operator(
        name=names[number],
        custom=(code.customCode or b"").decode(errors="replace"),
        version=int(code.version),
        inputs=_convert_indices(operator.inputs),
        outputs=_convert_indices(operator.outputs),
        options=vars(operator.builtinOptions) if operator.builtinOptions is not None else {},
    )


def _convert_subgraph(model: bytes | bytearray, root: Any, graph: Any, name: str) -> Subgraph:
    return Subgraph(
        tensors=tuple(
            _convert_tensor(model, root, index, tensor) for index, tensor in enumerate(graph.tensors or ())
        ),
        operators=tuple(
            _convert_operator(operator, root.operatorCodes, name) for operator in graph.operators or ()
        ),
        inputs=_convert_indices(graph.inputs),
        outputs=_convert_indices(graph.outputs),
    )


def _convert_tensor(model: bytes | bytearray, root: Any, index: int, tensor: Any) -> TfliteTensor:
    name = tensor.name.decode(errors="replace") if tensor.name else f"tensor {index}"
    dtype = _read_enum_names("TensorType")[tensor.type]
    shape = _convert_indices(tensor.shape)
    quantization = tensor.quantization
    scale = np.zeros(0, np.float32)
    zero_points: tuple[int, ...] = (0,)
    if quantization is not None and quantization.scale is not None and len(quantization.scale):
        scale = np.asarray(quantization.scale, np.float32)
        zero_points = _convert_indices(quantization.zeroPoint) or (0,)
    axis = int(quantization.quantizedDimension) if quantization is not None else 0
    data = _read_buffer(model, root.buffers[tensor.buffer])
    if data is not None and dtype in VALUE_TYPES:
        data = data.view(np.dtype(VALUE_TYPES[dtype]).newbyteorder("<")).reshape(shape)
    return TfliteTensor(
        index=index,
        name=name,
        shape=shape,
        dtype=dtype,
        scale=scale,
        zero_points=zero_points,
        axis=axis,
        data=data,
        is_variable=bool(tensor.isVariable),
    )


def _read_buffer(model: bytes | bytearray, buffer: Any) -> Any:
    """Return the bytes of a buffer as uint8, a view of the file, or None if the buffer is empty.

    A large model stores buffers behind the flatbuffer instead of inside.
    """
    if buffer.offset > 1:
        return np.frombuffer(model, np.uint8, buffer.size, buffer.offset)
    if buffer.data is None or not len(buffer.data):
        return None
    return np.asarray(buffer.data, np.uint8)


def _convert_indices(values: Any) -> tuple[int, ...]:
    return () if values is None else tuple(int(value) for value in values)


# Reads single fields without the schema: https://flatbuffers.dev/internals/


def _read_uint32(model: bytes, position: int) -> int:
    return int(struct.unpack_from("<I", model, position)[0])


def _follow_offset(model: bytes, position: int) -> int:
    return position + _read_uint32(model, position)


def _find_field(model: bytes, table: int, number: int) -> int:
    """Return the position of a field of a table, or 0 if the table does not contain it."""
    vtable = table - struct.unpack_from("<i", model, table)[0]
    if vtable < 0 or 4 + 2 * number >= struct.unpack_from("<H", model, vtable)[0]:
        return 0
    inside = struct.unpack_from("<H", model, vtable + 4 + 2 * number)[0]
    return table + inside if inside else 0


def _find_tables(model: bytes, field: int) -> list[int]:
    """Return the positions of the tables of a vector."""
    if not field:
        return []
    start = _follow_offset(model, field)
    count = _read_uint32(model, start)
    if 4 * count > len(model) - start - 4:
        raise IndexError("the vector is longer than the file")
    return [_follow_offset(model, start + 4 + 4 * i) for i in range(count)]


def _read_vector(model: bytes, field: int) -> bytes:
    start = _follow_offset(model, field)
    return model[start + 4 : start + 4 + _read_uint32(model, start)]

"""Named metadata in a .tflite: a buffer that runtimes ignore and that travels with the model.

Writing needs ai-edge-litert, as the quantizer does. Reading needs nothing: `edgefl infer` runs on boards that
have only tflite-runtime.
"""

import struct
from typing import Any

import numpy as np

from edgefl.errors import ExportError
from firmware_export.tflite.network import UNREADABLE, buffer_bytes

SPLIT = "EDGEFL_SPLIT"
BUFFERS = 4
METADATA = 6
"""Fields of the table Model in TensorFlow's schema.fbs."""
ALIGNMENT = 16
"""Of a buffer's data, in bytes: schema.fbs says `force_align: 16`."""


def with_metadata(model: bytes, name: str, content: bytes) -> bytes:
    """Return the model with this content under this name. Weights, operators and outputs stay as they are.

    Args:
        model: a .tflite.
        name: a name that the model does not hold yet.
        content: any bytes.

    Raises:
        ExportError: the model is damaged.
    """
    from ai_edge_litert import schema_py_generated as schema

    try:
        root = schema.ModelT.InitFromObj(schema.Model.GetRootAs(model, 0))
        for buffer in root.buffers:
            if buffer.offset > 1:
                buffer.data = np.frombuffer(buffer_bytes(model, buffer), np.uint8)
                buffer.offset = buffer.size = 0
        added = schema.BufferT()
        added.data = np.frombuffer(content, np.uint8)
        note = schema.MetadataT()
        note.name = name
        note.buffer = len(root.buffers)
        root.buffers = [*root.buffers, added]
        root.metadata = [*(root.metadata or []), note]
        return _packed(root, len(model) + len(content))
    except UNREADABLE as error:
        raise ExportError(
            f"the model's {len(model)} bytes cannot be read ({error!r}); it is truncated or damaged, copy it "
            "again"
        ) from error


def _packed(root: Any, size: int) -> bytes:
    import flatbuffers

    class Aligned(flatbuffers.Builder):  # type: ignore[misc]
        """Python's builder aligns a vector by the size of its elements, and a buffer's are bytes."""

        def CreateNumpyVector(self, x: Any) -> Any:
            self.Prep(ALIGNMENT, x.nbytes)
            return super().CreateNumpyVector(x)

    builder = Aligned(size)
    builder.Finish(root.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def read_metadata(model: bytes, name: str) -> bytes | None:
    """Return the content under this name, or None when the model holds none or is damaged."""
    try:
        root = _offset(model, 0)
        buffers = _vector(model, _field(model, root, BUFFERS))
        for entry in _vector(model, _field(model, root, METADATA)):
            place = _field(model, entry, 0)
            if place and _bytes(model, place) == name.encode():
                index = _field(model, entry, 1)
                data = _field(model, buffers[_number(model, index)], 0) if index else 0
                return _bytes(model, data) if data else None
    except (struct.error, IndexError):
        pass
    return None


def _number(model: bytes, place: int) -> int:
    return int(struct.unpack_from("<I", model, place)[0])


def _offset(model: bytes, place: int) -> int:
    return place + _number(model, place)


def _field(model: bytes, table: int, number: int) -> int:
    """Return where a field of a table lies, 0 when the table has none."""
    vtable = table - struct.unpack_from("<i", model, table)[0]
    if vtable < 0 or 4 + 2 * number >= struct.unpack_from("<H", model, vtable)[0]:
        return 0
    inside = struct.unpack_from("<H", model, vtable + 4 + 2 * number)[0]
    return table + inside if inside else 0


def _vector(model: bytes, field: int) -> list[int]:
    """Return where the tables of a vector lie."""
    if not field:
        return []
    start = _offset(model, field)
    count = _number(model, start)
    if 4 * count > len(model) - start - 4:
        raise IndexError("the vector is longer than the file")
    return [_offset(model, start + 4 + 4 * i) for i in range(count)]


def _bytes(model: bytes, field: int) -> bytes:
    start = _offset(model, field)
    return model[start + 4 : start + 4 + _number(model, start)]

"""Large models keep their weights behind the flatbuffer, at offsets that TensorFlow Lite Micro does not follow: it reads zeros.

`with_inline_buffers` moves them inside, so that every runtime reads the same model.
"""

import numpy as np

from edgefl.errors import ExportError
from firmware_export.network import UNREADABLE, buffer_bytes


def with_inline_buffers(model: bytes) -> bytes:
    """Return the same model with all buffers inside the flatbuffer; the same bytes where they are already."""
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    try:
        root = schema.ModelT.InitFromObj(schema.Model.GetRootAs(model, 0))
        if not any(buffer.offset > 1 for buffer in root.buffers):
            return model
        for buffer in root.buffers:
            if buffer.offset > 1:
                buffer.data = np.frombuffer(buffer_bytes(model, buffer), np.uint8)
                buffer.offset = buffer.size = 0
        builder = flatbuffers.Builder(len(model))
        builder.Finish(root.Pack(builder), b"TFL3")
    except UNREADABLE as error:
        raise ExportError(
            f"the model's {len(model)} bytes cannot be read ({error!r}); it is truncated or damaged, copy it again"
        ) from error
    return bytes(builder.Output())

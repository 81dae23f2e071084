"""The form of a model that strict readers take: aligned buffers inside the flatbuffer, operator versions and
options as the schema asks.

ai-edge-quantizer puts the weights of a large model (256 KiB and more) behind the flatbuffer, at offsets that
TensorFlow Lite Micro does not follow: it reads zeros. It also writes version 1 for every operator, which
strict importers refuse, as they do a RESHAPE without options.
"""

from typing import Any

from edgefl.errors import ExportError
from firmware_export.tflite.network import UNREADABLE, buffer_bytes
from firmware_export.tflite.operator_versions import version_of_operator

ALIGNMENT = 16
"""Of a buffer's data, as the schema asks (`data:[ubyte] (force_align: 16)`)."""


class _AlignedBuffer:
    """A buffer whose data start at a multiple of ALIGNMENT; the schema's generated class does not align
    them.
    """

    def __init__(self, content: bytes) -> None:
        self.content = content

    # the name that ModelT.Pack calls
    def Pack(self, builder: Any) -> Any:
        from ai_edge_litert import schema_py_generated as schema

        data = None
        if self.content:
            builder.Prep(ALIGNMENT, len(self.content))
            data = builder.CreateByteVector(self.content)
        schema.BufferStart(builder)
        if data is not None:
            schema.BufferAddData(builder, data)
        return schema.BufferEnd(builder)


def to_portable(model: bytes) -> bytes:
    """Return the same model with its buffers inside the flatbuffer and with the operator versions of the
    schema.

    Args:
        model: A .tflite of any size.

    Raises:
        ExportError: The bytes cannot be read.
    """
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    try:
        root = schema.ModelT.InitFromObj(schema.Model.GetRootAs(model, 0))
        root.buffers = [_AlignedBuffer(buffer_bytes(model, buffer)) for buffer in root.buffers]
        _set_versions(root, schema)
        _complete_reshapes(root, schema)
        builder = flatbuffers.Builder(len(model))
        builder.Finish(root.Pack(builder), b"TFL3")
    except UNREADABLE as error:
        raise ExportError(
            f"the model's {len(model)} bytes cannot be read ({error!r}); it is truncated or damaged, copy it "
            "again"
        ) from error
    return bytes(builder.Output())


def check_inside(model: bytes) -> None:
    """Raise ExportError if weights lie behind the flatbuffer, where TensorFlow Lite Micro reads zeros without
    an error.

    Bytes that cannot be read pass: the runtime refuses them.
    """
    from ai_edge_litert import schema_py_generated as schema

    try:
        root = schema.Model.GetRootAs(model, 0)
        outside = sum(
            root.Buffers(i).Size() for i in range(root.BuffersLength()) if root.Buffers(i).Offset() > 1
        )
    except UNREADABLE:
        return
    if outside:
        raise ExportError(
            f"{outside:,} bytes of weights lie behind the model's flatbuffer, expected all inside: "
            "TensorFlow Lite Micro would read zeros; export the model again with this edgefl"
        )


def _set_versions(root: Any, schema: Any) -> None:
    """Give each operator the code of its own version; operators of one kind may need different ones."""
    builtins = {value: name for name, value in vars(schema.BuiltinOperator).items() if isinstance(value, int)}
    codes: dict[tuple[int, bytes, int], int] = {}
    found: list[Any] = []
    for graph in root.subgraphs:
        for operator in graph.operators:
            before = root.operatorCodes[operator.opcodeIndex]
            number = max(before.builtinCode, before.deprecatedBuiltinCode)
            version = (
                version_of_operator(builtins.get(number, ""), operator, graph.tensors, schema)
                or before.version
            )
            key = (number, before.customCode or b"", version)
            if key not in codes:
                codes[key] = len(found)
                code = schema.OperatorCodeT()
                code.builtinCode = number
                code.deprecatedBuiltinCode = min(number, 127)
                code.customCode = before.customCode
                code.version = version
                found.append(code)
            operator.opcodeIndex = codes[key]
    root.operatorCodes = found


def _complete_reshapes(root: Any, schema: Any) -> None:
    """Give each RESHAPE the options that name its new shape; the converter leaves them out where a tensor
    holds the shape.
    """
    for graph in root.subgraphs:
        for operator in graph.operators:
            if (
                root.operatorCodes[operator.opcodeIndex].builtinCode == schema.BuiltinOperator.RESHAPE
                and operator.builtinOptions is None
            ):
                operator.builtinOptions = schema.ReshapeOptionsT()
                operator.builtinOptions.newShape = [
                    int(size) for size in graph.tensors[operator.outputs[0]].shape
                ]
                operator.builtinOptionsType = schema.BuiltinOptions.ReshapeOptions

"""Rewrites a model for strict readers, with buffers in the flatbuffer and operators as in the schema.

ai-edge-quantizer puts the weights of a large model (256 KiB and more) behind the flatbuffer. TensorFlow Lite
Micro does not follow such offsets and reads zeros. The quantizer also writes version 1 for every operator.
Strict importers refuse this, and a RESHAPE without options.
"""

from collections.abc import Sequence
from copy import copy
from typing import Any

from edgefl.base.errors import ExportError, ModelFileError
from edgefl.program.plan.tflite import (
    Subgraph,
    pack_model,
    read_builtin_code,
    read_model,
    report_damage,
    set_operator_options,
    unpack_model,
)
from firmware_export.tflite.operator_versions import find_operator_version


def to_portable(model: bytes) -> bytes:
    """Return the same model with its buffers inside the flatbuffer and the schema's operator versions.

    Args:
        model: a .tflite of any size.

    Raises:
        ExportError: the bytes cannot be read.
    """
    subgraphs = read_model(model).subgraphs
    with report_damage(model):
        root = unpack_model(model)
        _set_versions(root, subgraphs)
        _complete_reshapes(root, subgraphs)
        _correct_axes(root)
        return pack_model(root, len(model))


def check_inside(model: bytes) -> None:
    """Check that all weights lie inside the flatbuffer.

    TensorFlow Lite Micro reads weights behind the flatbuffer as zeros, without an error. Bytes that cannot be
    read pass this check, because the runtime refuses them.

    Raises:
        ExportError: weights lie behind the flatbuffer.
    """
    try:
        outside = read_model(model).bytes_behind
    except ModelFileError:
        return
    if outside:
        raise ExportError(
            f"{outside:,} bytes of weights lie behind the model's flatbuffer, expected all inside it: "
            "TensorFlow Lite Micro would read zeros; export the model again with this edgefl"
        )


def _set_versions(root: Any, subgraphs: Sequence[Subgraph]) -> None:
    """Set the version of each operator. Operators of one kind may need different versions."""
    codes: dict[tuple[int, bytes, int], int] = {}
    new_codes: list[Any] = []
    for graph, subgraph in zip(root.subgraphs, subgraphs, strict=True):
        for packed, operator in zip(graph.operators, subgraph.operators, strict=True):
            before = root.operatorCodes[packed.opcodeIndex]
            version = find_operator_version(operator, subgraph.tensors) or operator.version
            key = (read_builtin_code(before), before.customCode or b"", version)
            if key not in codes:
                codes[key] = len(new_codes)
                code = copy(before)
                code.builtinCode = key[0]
                code.deprecatedBuiltinCode = min(key[0], 127)
                code.version = version
                new_codes.append(code)
            packed.opcodeIndex = codes[key]
    root.operatorCodes = new_codes


def _complete_reshapes(root: Any, subgraphs: Sequence[Subgraph]) -> None:
    """Add the options with the new shape to each RESHAPE.

    The converter omits them if a tensor holds the shape.
    """
    for graph, subgraph in zip(root.subgraphs, subgraphs, strict=True):
        for packed, operator in zip(graph.operators, subgraph.operators, strict=True):
            if operator.name == "RESHAPE" and packed.builtinOptions is None:
                shape = list(subgraph.tensors[operator.outputs[0]].shape)
                set_operator_options(packed, "ReshapeOptions", newShape=shape)


def _correct_axes(root: Any) -> None:
    """Set the axis of the scales to 0 where the tensor does not have the stored axis.

    Old converters store the axis of the weights, 3, with the bias of a depthwise convolution. LiteRT refuses
    such a file.
    """
    for graph in root.subgraphs:
        for tensor in graph.tensors:
            if tensor.quantization is not None and tensor.shape is not None and len(tensor.shape) <= 1:
                tensor.quantization.quantizedDimension = 0

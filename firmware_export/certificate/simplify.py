"""Rewrites a given .tflite so that it has fixed shapes and int8 ends.

A converter leaves operators in a model that a microcontroller does not need. A dynamic batch size leaves
operators that compute shapes. Float or uint8 ends leave a QUANTIZE or DEQUANTIZE before and after the int8
layers. Keras upsamples with TILE, which TensorFlow Lite Micro does not have.
"""

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from edgefl.base.errors import ExportError
from edgefl.base.types import Array
from edgefl.program.plan.tflite import (
    Subgraph,
    make_operator_code,
    pack_model,
    read_subgraph,
    report_damage,
    set_operator_options,
    unpack_model,
)
from firmware_export.firmware.limits import TOOL_LIMITS, run_limited
from firmware_export.tflite.quantized_model import clean_name

SHAPE_OPERATORS = ("SHAPE", "FILL", "SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND")
"""Operators whose presence means that stored shapes may be wrong, or that shapes are computed."""
RUN_DEADLINE_S = 120.0
END_TYPES = ("FLOAT32", "UINT8")
QUANTIZED_TYPES = ("INT8", "INT16")


@dataclass(frozen=True)
class SimplifiedModel:
    """A model after its simplification.

    Attributes:
        content: the .tflite.
        notes: what was left out at the ends of the model, for the user.
    """

    content: bytes
    notes: tuple[str, ...] = ()


def simplify_model(model: bytes) -> SimplifiedModel:
    """Return a model with fixed shapes and int8 ends. A model without such operators is returned unchanged.

    Args:
        model: a .tflite.

    Raises:
        ModelFileError: the model is damaged.
        ExportError: the model cannot be run to compute its shapes.
    """
    with report_damage(model):
        return remove_ends(quantize_elu(separate_padding(replace_tiles(fold_shapes(model)))))


def fold_shapes(model: bytes) -> bytes:
    """Return a model in which every shape is fixed and no operator computes a constant.

    The model runs once with an input of zeros, in a separate process. This gives the shape of each tensor and
    the values of the tensors that do not depend on the input.

    Args:
        model: a .tflite.

    Raises:
        ExportError: the model cannot be run.
    """
    graph = read_subgraph(model)
    if not any(operator.name in SHAPE_OPERATORS for operator in graph.operators):
        return model
    constants = find_constants(graph)
    arrays = _run_once(model)
    removed = [
        all(index in constants for index in operator.outputs)
        and not set(operator.outputs) & set(graph.outputs)
        for operator in graph.operators
    ]
    read = {
        i
        for operator, is_constant in zip(graph.operators, removed, strict=True)
        if not is_constant
        for i in operator.inputs
    }
    root = unpack_model(model)
    packed = root.subgraphs[0]
    for tensor, described in zip(packed.tensors, graph.tensors, strict=True):
        key = str(described.index)
        if f"shape{key}" not in arrays or described.data is not None:
            continue
        tensor.shape = arrays[f"shape{key}"].astype(np.int32)
        tensor.shapeSignature = None
        if described.index in constants and described.index in read:
            _set_constant(root, tensor, arrays[f"value{key}"])
    packed.operators = [
        operator for operator, is_constant in zip(packed.operators, removed, strict=True) if not is_constant
    ]
    return pack_model(root, len(model))


def find_constants(graph: Subgraph) -> set[int]:
    """Return the tensors that do not depend on the values of the input, except the stored constants.

    Args:
        graph: the model. Its shapes are fixed once the shape of its input is fixed.
    """
    constant = {tensor.index for tensor in graph.tensors if tensor.data is not None}
    computed: set[int] = set()
    for operator in graph.operators:
        if operator.name.startswith("RANDOM") or operator.name in ("MULTINOMIAL", "CUSTOM"):
            continue
        inputs = {index for index in operator.inputs if index >= 0}
        if operator.name == "SHAPE" or (inputs and inputs <= constant | computed):
            computed.update(operator.outputs)
    return computed


def _run_once(model: bytes) -> Mapping[str, Array]:
    """Return the arrays that `shapes_runner` writes."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "model.tflite"
        path.write_bytes(model)
        out = Path(name) / "arrays.npz"
        command = [sys.executable, "-m", "firmware_export.certificate.shapes_runner", str(path), str(out)]
        try:
            done = run_limited(command, Path.cwd(), replace(TOOL_LIMITS, time_s=RUN_DEADLINE_S))
        except subprocess.TimeoutExpired as error:
            raise ExportError(
                f"the model's shapes were not computed within {RUN_DEADLINE_S:.0f} s; convert the model with "
                "a fixed batch of 1"
            ) from error
        if done.returncode:
            last = done.text.strip().splitlines()[-1:] or [f"the process exited with {done.returncode}"]
            raise ExportError(
                f"the model's shapes cannot be computed: {clean_name(last[0])}; convert the model with a "
                "fixed batch of 1"
            )
        with np.load(out) as arrays:
            return dict(arrays)


def _set_constant(root: Any, tensor: Any, value: Array) -> None:
    """Store the values of a TensorT in a new buffer."""
    buffer = copy(root.buffers[0])
    buffer.data = np.frombuffer(np.ascontiguousarray(value).tobytes(), np.uint8)
    tensor.buffer = len(root.buffers)
    root.buffers = [*root.buffers, buffer]


def replace_tiles(model: bytes) -> bytes:
    """Return a model with a BROADCAST_TO for each int8 TILE that repeats only axes of size 1.

    Args:
        model: a .tflite with fixed shapes.
    """
    graph = read_subgraph(model)
    shapes = [tensor.shape for tensor in graph.tensors]
    tiles = [
        number
        for number, operator in enumerate(graph.operators)
        if operator.name == "TILE"
        and graph.tensors[operator.inputs[0]].dtype == "INT8"
        and graph.tensors[operator.inputs[1]].dtype == "INT32"
        and all(
            before in (1, after)
            for before, after in zip(shapes[operator.inputs[0]], shapes[operator.outputs[0]], strict=True)
        )
    ]
    if not tiles:
        return model
    root = unpack_model(model)
    packed = root.subgraphs[0]
    code = _add_code(root, "BROADCAST_TO", 3)
    for number in tiles:
        operator = packed.operators[number]
        shape = shapes[operator.outputs[0]]
        operator.opcodeIndex = code
        operator.inputs = [operator.inputs[0], _add_constant(root, operator.inputs[1], shape)]
        set_operator_options(operator, "BroadcastToOptions")
    return pack_model(root, len(model))


def separate_padding(model: bytes) -> bytes:
    """Return a model with a PAD before each SPACE_TO_BATCH_ND that pads.

    TensorFlow Lite Micro pads in a SPACE_TO_BATCH_ND with a value that it does not set.

    Args:
        model: a .tflite with fixed shapes.
    """
    graph = read_subgraph(model)
    edges = {
        number: graph.tensors[operator.inputs[2]].data
        for number, operator in enumerate(graph.operators)
        if operator.name == "SPACE_TO_BATCH_ND"
        and graph.tensors[operator.inputs[2]].dtype == "INT32"
        and graph.tensors[operator.inputs[2]].data is not None
    }
    if not any(np.any(values) for values in edges.values()):
        return model
    root = unpack_model(model)
    packed = root.subgraphs[0]
    code = _add_code(root, "PAD", 2)
    operators = []
    for number, operator in enumerate(packed.operators):
        if np.any(edges.get(number, 0)):
            source = graph.tensors[operator.inputs[0]]
            padding = np.zeros((len(source.shape), 2), np.int32)
            padding[1 : 1 + len(edges[number])] = edges[number]
            padded = copy(packed.tensors[source.index])
            padded.name = clean_name(f"{source.name}/padded").encode()
            padded.shape = np.array(source.shape, np.int32) + padding.sum(axis=1, dtype=np.int32)
            packed.tensors = [*packed.tensors, padded]
            pad = copy(operator)
            pad.opcodeIndex = code
            pad.outputs = [len(packed.tensors) - 1]
            pad.inputs = [source.index, _add_constant(root, operator.inputs[2], padding)]
            set_operator_options(pad, "PadOptions")
            zeros = _add_constant(root, operator.inputs[2], np.zeros_like(edges[number]))
            operator.inputs = [pad.outputs[0], operator.inputs[1], zeros]
            operators.append(pad)
        operators.append(operator)
    packed.operators = operators
    return pack_model(root, len(model))


def quantize_elu(model: bytes) -> bytes:
    """Return a model with an int8 ELU for each DEQUANTIZE, float ELU and QUANTIZE in a row.

    Args:
        model: a .tflite.
    """
    graph = read_subgraph(model)
    readers: dict[int, list[int]] = {}
    for number, operator in enumerate(graph.operators):
        for index in operator.inputs:
            readers.setdefault(index, []).append(number)
    writers = {operator.outputs[0]: n for n, operator in enumerate(graph.operators) if operator.outputs}
    ends: dict[int, tuple[int, int]] = {}  # the int8 input and output of an ELU
    removed = set()
    for number, operator in enumerate(graph.operators):
        if operator.name != "ELU" or operator.inputs[0] not in writers:
            continue
        before = writers[operator.inputs[0]]
        after = readers.get(operator.outputs[0], [])
        if len(after) != 1 or operator.outputs[0] in graph.outputs:
            continue
        names = graph.operators[before].name, graph.operators[after[0]].name
        source = graph.operators[before].inputs[0]
        output = graph.operators[after[0]].outputs[0]
        types = {graph.tensors[source].dtype, graph.tensors[output].dtype}
        if names != ("DEQUANTIZE", "QUANTIZE") or types != {"INT8"}:
            continue
        ends[number] = source, output
        removed.add(after[0])
        if len(readers[operator.inputs[0]]) == 1 and operator.inputs[0] not in graph.outputs:
            removed.add(before)
    if not ends:
        return model
    root = unpack_model(model)
    packed = root.subgraphs[0]
    for number, (source, output) in ends.items():
        packed.operators[number].inputs = [source]
        packed.operators[number].outputs = [output]
    packed.operators = [operator for n, operator in enumerate(packed.operators) if n not in removed]
    return pack_model(root, len(model))


def _add_code(root: Any, name: str, version: int) -> int:
    """Add an operator code, and return its index."""
    root.operatorCodes = [*root.operatorCodes, make_operator_code(name, version)]
    return len(root.operatorCodes) - 1


def _add_constant(root: Any, template: int, values: Any) -> int:
    """Add a constant tensor of type int32, and return its index.

    Args:
        root: the model.
        template: index of a tensor of type int32.
    """
    packed = root.subgraphs[0]
    tensor = copy(packed.tensors[template])
    value = np.asarray(values, "<i4")
    tensor.name = f"constant_{len(packed.tensors)}".encode()
    tensor.shape = np.array(value.shape, np.int32)
    _set_constant(root, tensor, value)
    packed.tensors = [*packed.tensors, tensor]
    return len(packed.tensors) - 1


def remove_ends(model: bytes) -> SimplifiedModel:
    """Return a model without the QUANTIZE or DEQUANTIZE of a float or uint8 input and output.

    The quantized tensor behind or before such an operator becomes the input or output.

    Args:
        model: a .tflite.
    """
    graph = read_subgraph(model)
    inputs = list(graph.inputs)
    outputs = list(graph.outputs)
    removed = set()
    notes = []
    for position, index in enumerate(inputs):
        readers = [n for n, operator in enumerate(graph.operators) if index in operator.inputs]
        if len(readers) != 1 or graph.tensors[index].dtype not in END_TYPES or index in outputs:
            continue
        operator = graph.operators[readers[0]]
        if operator.name == "QUANTIZE" and graph.tensors[operator.outputs[0]].dtype in QUANTIZED_TYPES:
            inputs[position] = operator.outputs[0]
            removed.add(readers[0])
            notes.append(_describe_end("input", graph, index, operator.outputs[0]))
    for position, index in enumerate(outputs):
        writers = [n for n, operator in enumerate(graph.operators) if index in operator.outputs]
        read = any(index in operator.inputs for operator in graph.operators)
        if len(writers) != 1 or graph.tensors[index].dtype not in END_TYPES or read:
            continue
        operator = graph.operators[writers[0]]
        if (
            operator.name in ("QUANTIZE", "DEQUANTIZE")
            and graph.tensors[operator.inputs[0]].dtype in QUANTIZED_TYPES
        ):
            outputs[position] = operator.inputs[0]
            removed.add(writers[0])
            notes.append(_describe_end("output", graph, index, operator.inputs[0]))
    if not removed:
        return SimplifiedModel(model)
    root = unpack_model(model)
    packed = root.subgraphs[0]
    packed.inputs = inputs
    packed.outputs = outputs
    packed.operators = [operator for n, operator in enumerate(packed.operators) if n not in removed]
    root.signatureDefs = None
    return SimplifiedModel(pack_model(root, len(model)), tuple(notes))


def _describe_end(end: str, graph: Subgraph, index: int, quantized: int) -> str:
    before, after = (graph.tensors[i].dtype.lower() for i in (index, quantized))
    return (
        f"the {end} of the C is {after} instead of {before}: the C leaves out this conversion, and model.h "
        "has the scale and a function for it"
    )

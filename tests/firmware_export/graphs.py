"""int8 .tflite files with one or a few operators, written with the schema.

They serve as test models of single kernels and as damaged input.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class T:
    """A tensor. Without data it is an activation.

    Attributes:
        scales: scale, or one scale per channel.
        zero: zero point.
        axis: axis of the scales.
        is_variable: whether the tensor keeps its values from one inference to the next.
    """

    shape: tuple[int, ...]
    scales: Any = 0.05
    zero: int = 0
    data: Any = None
    axis: int = 0
    name: str = ""
    kind: str = "INT8"
    is_variable: bool = False


@dataclass(frozen=True)
class Op:
    """An operator.

    Attributes:
        options_class: class of the options, without its suffix `OptionsT`.
        options: members of the options.
        intermediates: number of empty tensors for what the operator computes on the way.
    """

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: dict[str, Any] = field(default_factory=dict)
    options_class: str = ""
    version: int = 1
    intermediates: int = 0


def make_tflite(
    tensors: list[T],
    operators: list[Op],
    inputs: tuple[int, ...] = (0,),
    outputs: tuple[int, ...] | None = None,
    initial: Mapping[str, T] | None = None,
) -> bytes:
    """Return the file. The last tensor is the output unless another one is passed.

    Args:
        initial: first values by the name of their variable. A second subgraph sets them, which the first
            operator should call.
    """
    from ai_edge_litert import schema_py_generated as schema

    from edgefl.program.plan.tflite import pack_model

    model = schema.ModelT()
    model.version = 3
    model.buffers = [schema.BufferT()]
    model.operatorCodes = []
    model.subgraphs = [_make_subgraph(model, tensors, operators, inputs, outputs or (len(tensors) - 1,))]
    if initial is not None:
        constants = [item for value in initial.values() for item in (make_handle(), value)]
        setting = [
            op
            for number, name in enumerate(initial)
            for op in (
                name_variable(name, 2 * number),
                Op(name="ASSIGN_VARIABLE", inputs=(2 * number, 2 * number + 1), outputs=()),
            )
        ]
        model.subgraphs.append(_make_subgraph(model, constants, setting, (), ()))
    return pack_model(model, 1024)


def make_handle() -> T:
    """Return the tensor of a variable's handle."""
    return T(shape=(), kind="RESOURCE")


def name_variable(name: str, handle: int) -> Op:
    """Return the operator that makes the handle of a variable."""
    return Op(
        name="VAR_HANDLE",
        inputs=(),
        outputs=(handle,),
        options={"sharedName": name.encode()},
        options_class="VarHandle",
    )


def _make_subgraph(
    model: Any, tensors: list[T], operators: list[Op], inputs: tuple[int, ...], outputs: tuple[int, ...]
) -> Any:
    from ai_edge_litert import schema_py_generated as schema

    graph = schema.SubGraphT()
    graph.tensors = []
    graph.operators = []
    graph.inputs = list(inputs)
    graph.outputs = list(outputs)
    for number, described in enumerate(tensors):
        tensor = schema.TensorT()
        buffer = schema.BufferT()
        kind = described.kind if described.data is None else str(described.data.dtype).upper()
        tensor.name = (described.name or f"t{number}").encode()
        tensor.shape = list(described.shape)
        tensor.type = getattr(schema.TensorType, kind)
        if described.data is not None:
            buffer.data = np.frombuffer(np.ascontiguousarray(described.data).tobytes(), np.uint8)
        if kind in ("INT8", "UINT8", "INT16") or (kind in ("INT32", "INT64") and np.ndim(described.scales)):
            scales = np.atleast_1d(np.asarray(described.scales, np.float32))
            tensor.quantization = schema.QuantizationParametersT()
            tensor.quantization.scale = scales
            tensor.quantization.zeroPoint = np.full(len(scales), described.zero, np.int64)
            tensor.quantization.quantizedDimension = described.axis
        tensor.isVariable = described.is_variable
        tensor.buffer = len(model.buffers)
        model.buffers.append(buffer)
        graph.tensors.append(tensor)
    for described in operators:
        code = schema.OperatorCodeT()
        operator = schema.OperatorT()
        code.builtinCode = getattr(schema.BuiltinOperator, described.name)
        code.deprecatedBuiltinCode = min(code.builtinCode, 127)
        code.version = described.version
        operator.opcodeIndex = len(model.operatorCodes)
        operator.inputs = list(described.inputs)
        operator.outputs = list(described.outputs)
        if described.intermediates:
            operator.intermediates = [len(graph.tensors) + i for i in range(described.intermediates)]
            for number in operator.intermediates:
                tensor = schema.TensorT()
                tensor.name = f"intermediate{number}".encode()
                tensor.shape = [0]
                tensor.type = schema.TensorType.INT8
                tensor.quantization = schema.QuantizationParametersT()
                tensor.quantization.scale = np.ones(1, np.float32)
                tensor.quantization.zeroPoint = np.zeros(1, np.int64)
                graph.tensors.append(tensor)
        if described.options_class:
            options = getattr(schema, f"{described.options_class}OptionsT")()
            for key, value in described.options.items():
                assert hasattr(options, key), key
                setattr(options, key, value)
            operator.builtinOptions = options
            operator.builtinOptionsType = getattr(schema.BuiltinOptions, f"{described.options_class}Options")
        model.operatorCodes.append(code)
        graph.operators.append(operator)
    return graph

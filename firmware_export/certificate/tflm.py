"""Files for TensorFlow Lite Micro: an aligned C array, a resolver of the operators, the arena's size."""

import re
from collections.abc import Mapping

from edgefl.base.errors import ExportError
from firmware_export.tflite.graph import OperatorGraph

RESOLVER_METHODS: Mapping[str, str] = {
    "ABS": "Abs",
    "ADD": "Add",
    "ASSIGN_VARIABLE": "AssignVariable",
    "AVERAGE_POOL_2D": "AveragePool2D",
    "BATCH_TO_SPACE_ND": "BatchToSpaceNd",
    "BROADCAST_TO": "BroadcastTo",
    "CALL_ONCE": "CallOnce",
    "CONCATENATION": "Concatenation",
    "CONV_2D": "Conv2D",
    "DEPTHWISE_CONV_2D": "DepthwiseConv2D",
    "DEPTH_TO_SPACE": "DepthToSpace",
    "DEQUANTIZE": "Dequantize",
    "ELU": "Elu",
    "EXPAND_DIMS": "ExpandDims",
    "FULLY_CONNECTED": "FullyConnected",
    "HARD_SWISH": "HardSwish",
    "LEAKY_RELU": "LeakyRelu",
    "LOGISTIC": "Logistic",
    "MAXIMUM": "Maximum",
    "MAX_POOL_2D": "MaxPool2D",
    "MEAN": "Mean",
    "MINIMUM": "Minimum",
    "MUL": "Mul",
    "PACK": "Pack",
    "PAD": "Pad",
    "PADV2": "PadV2",
    "PRELU": "Prelu",
    "QUANTIZE": "Quantize",
    "READ_VARIABLE": "ReadVariable",
    "REDUCE_MAX": "ReduceMax",
    "RELU": "Relu",
    "RELU6": "Relu6",
    "RESHAPE": "Reshape",
    "RESIZE_BILINEAR": "ResizeBilinear",
    "RESIZE_NEAREST_NEIGHBOR": "ResizeNearestNeighbor",
    "RSQRT": "Rsqrt",
    "SLICE": "Slice",
    "SOFTMAX": "Softmax",
    "SPACE_TO_BATCH_ND": "SpaceToBatchNd",
    "SPACE_TO_DEPTH": "SpaceToDepth",
    "SPLIT": "Split",
    "SPLIT_V": "SplitV",
    "SQUARED_DIFFERENCE": "SquaredDifference",
    "SQUEEZE": "Squeeze",
    "STRIDED_SLICE": "StridedSlice",
    "SUB": "Sub",
    "SVDF": "Svdf",
    "TANH": "Tanh",
    "TRANSPOSE": "Transpose",
    "TRANSPOSE_CONV": "TransposeConv",
    "UNIDIRECTIONAL_SEQUENCE_LSTM": "UnidirectionalSequenceLSTM",
    "UNPACK": "Unpack",
    "VAR_HANDLE": "VarHandle",
}
"""Maps an operator of a .tflite to its method of `MicroMutableOpResolver`, without the prefix Add."""

MODEL_DATA_H = """// The model for TensorFlow Lite Micro. Written by `edgefl export`.
#ifndef MODEL_DATA_H
#define MODEL_DATA_H

#ifdef __cplusplus
extern "C" {
#endif
extern const unsigned char model_data[];
extern const unsigned int model_data_bytes;
#ifdef __cplusplus
}
#endif

#endif
"""
USAGE = (
    "//   tflite::MicroInterpreter interpreter(tflite::GetModel(model_data), model_resolver(), "
    "arena, kModelArenaBytes);"
)
USAGE_WITH_VARIABLES = """\
//   tflite::MicroAllocator* allocator = tflite::MicroAllocator::Create(arena, kModelArenaBytes);
//   tflite::MicroInterpreter interpreter(tflite::GetModel(model_data), model_resolver(), allocator,
//       tflite::MicroResourceVariables::Create(allocator, kModelVariables));"""
MODEL_OPS_H = """// Exactly the model's operators, and the arena that it needs. Written by `edgefl export`.
{usage}
#ifndef MODEL_OPS_H
#define MODEL_OPS_H

#include <cstddef>

#include "tensorflow/lite/micro/micro_mutable_op_resolver.h"

// Measured by bisection with tflite-micro {version} on a 64-bit computer, to 16 bytes. A 32-bit core needs somewhat less.
constexpr size_t kModelArenaBytes = {arena};
constexpr size_t kModelBytes = {size};
{variables}
using ModelResolver = tflite::MicroMutableOpResolver<{count}>;

inline const ModelResolver& model_resolver() {{
  static ModelResolver resolver;
  static const bool added = [] {{
    return {calls};
  }}();
  (void)added;
  return resolver;
}}

#endif
"""  # noqa: E501


def make_tflm_files(model: bytes, graph: OperatorGraph, arena: int, version: str) -> dict[str, str]:
    """Return model_data.h, model_data.c and model_ops.h by name.

    Args:
        model: the int8 .tflite.
        arena: size of the arena in bytes.
        version: version of tflite-micro that measured the arena.

    Raises:
        ExportError: TensorFlow Lite Micro does not have an operator.
    """
    return {
        "model_data.h": MODEL_DATA_H,
        "model_data.c": render_model_data_c(model),
        "model_ops.h": render_model_ops_h(graph, len(model), arena, version),
    }


def list_operators(graph: OperatorGraph) -> tuple[str, ...]:
    """Return the names of the model's operators, sorted and without duplicates."""
    return tuple(sorted({name for name, _ in graph.operators}))


def render_model_data_c(model: bytes) -> str:
    """Return the C file that holds the model, aligned to the 16 bytes that the flatbuffer needs."""
    rows = (
        "  " + ", ".join(f"0x{byte:02x}" for byte in model[i : i + 16]) + ",\n"
        for i in range(0, len(model), 16)
    )
    return (
        '#include "model_data.h"\n\n'
        "#if defined(__GNUC__)\n__attribute__((aligned(16)))\n#endif\n"
        f"const unsigned char model_data[] = {{\n{''.join(rows)}}};\n\n"
        f"const unsigned int model_data_bytes = {len(model)};\n"
    )


def render_model_ops_h(graph: OperatorGraph, size: int, arena: int, version: str) -> str:
    """Return the C++ header with the resolver.

    Args:
        graph: the model's operators.
        size: size of the model in bytes.
        arena: size of the arena in bytes.
        version: version of tflite-micro that measured the arena.

    Raises:
        ExportError: TensorFlow Lite Micro does not have an operator.
    """
    used = list_operators(graph)
    if unknown := [name for name in used if name not in RESOLVER_METHODS]:
        raise ExportError(
            f"TensorFlow Lite Micro has no resolver call for {', '.join(unknown)}; use layers that `edgefl "
            "plan` lists"
        )
    calls = " &&\n           ".join(f"resolver.Add{RESOLVER_METHODS[name]}() == kTfLiteOk" for name in used)
    handles = sum(name == "VAR_HANDLE" for name, _ in graph.operators)
    # The version comes from a certificate, which may come from a stranger
    plain = re.sub(r"[^\w.+-]", "_", version, flags=re.ASCII)[:40]
    return MODEL_OPS_H.format(
        version=plain,
        arena=arena,
        size=size,
        count=len(used),
        calls=calls,
        usage=USAGE_WITH_VARIABLES if handles else USAGE,
        variables=f"constexpr int kModelVariables = {handles};\n" if handles else "",
    )

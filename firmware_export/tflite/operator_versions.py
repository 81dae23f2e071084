"""The version that each integer operator must have in a .tflite file.

A reader for a lower version may misread an operator. Strict importers therefore refuse a file with other
versions.

Source: `GetBuiltinOperatorVersion` in tflite/tools/versioning/op_version.cc of LiteRT (formerly TensorFlow),
November 2026.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from edgefl.program.plan.tflite import Operator, TfliteTensor

OPERATOR_VERSIONS: dict[str, tuple[int, int]] = {
    "ABS": (2, 3),
    "ADD": (2, 3),
    "AVERAGE_POOL_2D": (2, 3),
    "BATCH_MATMUL": (2, 3),
    "CONCATENATION": (2, 3),
    "CONV_2D": (3, 1),
    "DEPTHWISE_CONV_2D": (3, 1),
    "DEQUANTIZE": (2, 3),
    "EXPAND_DIMS": (1, 1),
    "FULLY_CONNECTED": (4, 1),
    "GELU": (2, 1),
    "HARD_SWISH": (1, 1),
    "LEAKY_RELU": (1, 2),
    "LOGISTIC": (2, 3),
    "MAXIMUM": (2, 4),
    "MAX_POOL_2D": (2, 3),
    "MEAN": (2, 3),
    "MINIMUM": (2, 4),
    "MUL": (2, 4),
    "PACK": (2, 3),
    "PAD": (2, 3),
    "PADV2": (2, 3),
    "QUANTIZE": (1, 1),
    "RELU": (2, 3),
    "RELU6": (2, 3),
    "RESHAPE": (1, 1),
    "RSQRT": (2, 3),
    "SLICE": (2, 4),
    "SOFTMAX": (2, 3),
    "SPLIT": (2, 4),
    "SQUARED_DIFFERENCE": (2, 1),
    "SQUEEZE": (1, 1),
    "STRIDED_SLICE": (2, 1),
    "SUB": (2, 5),
    "SUM": (2, 1),
    "TANH": (2, 3),
    "TRANSPOSE": (2, 5),
    "UNPACK": (2, 4),
}
"""Versions for int8 and for int16 activations, before the exceptions of `find_operator_version`."""


def find_operator_version(operator: Operator, tensors: Sequence[TfliteTensor]) -> int:
    """Return the version that an operator must have.

    Args:
        operator: an operator of a subgraph.
        tensors: the subgraph's tensors.

    Returns:
        The version. 0 if the table does not contain the operator, or if its activations are neither int8 nor
            int16.
    """
    kinds = {"INT8": 0, "INT16": 1}
    name = operator.name
    inputs = [tensors[i] for i in operator.inputs if i >= 0]
    outputs = [tensors[i] for i in operator.outputs]
    activation = 1 if name == "SPLIT" else 0
    if (
        name not in OPERATOR_VERSIONS
        or len(inputs) <= activation
        or inputs[activation].dtype not in kinds
        or not outputs
    ):
        return 0
    of_int16 = kinds[inputs[activation].dtype]
    options = operator.options
    rank = max(len(tensor.shape) for tensor in inputs)
    if name == "FULLY_CONNECTED":
        return _find_fully_connected_version(inputs, options, of_int16)
    if name == "CONV_2D":
        if of_int16 and options["quantizedBiasType"]:
            return 8
        if inputs[0].shape[-1] != inputs[1].shape[-1]:  # a grouped convolution
            return 6
    if (
        name == "DEPTHWISE_CONV_2D"
        and of_int16
        and (options["dilationHFactor"] != 1 or options["dilationWFactor"] != 1)
    ):
        return 2
    if name == "MUL" and not of_int16 and _compute_product_scale(inputs, outputs[0]) >= 1:
        return 3
    if name in ("ADD", "SUB") and of_int16 and options.get("potScaleInt16", True):
        return 1
    if name == "STRIDED_SLICE" and (options["ellipsisMask"] or options["newAxisMask"]):
        return 6
    if name == "TRANSPOSE" and len(inputs[0].shape) > 4:
        return 6 if len(inputs[0].shape) > 5 else max(4, OPERATOR_VERSIONS[name][of_int16])
    if rank > 4 and name in ("SLICE", "PAD", "PADV2", "STRIDED_SLICE"):
        return 5 if name == "SLICE" else 4
    if (
        rank > 4
        and name in ("MAXIMUM", "MINIMUM", "SUB")
        and not of_int16
        and inputs[0].shape != inputs[1].shape
    ):
        return 3
    if name == "QUANTIZE" and outputs[0].dtype == "INT16":
        return 2
    return OPERATOR_VERSIONS[name][of_int16]


def _find_fully_connected_version(
    inputs: Sequence[TfliteTensor], options: Mapping[str, Any], of_int16: int
) -> int:
    if of_int16 and options["quantizedBiasType"]:
        return 11
    if len(inputs) == 2:  # without a bias
        return 6
    if options["keepNumDims"]:
        return 5
    return OPERATOR_VERSIONS["FULLY_CONNECTED"][of_int16]


def _compute_product_scale(inputs: Sequence[TfliteTensor], output: TfliteTensor) -> float:
    """Return the factor that rescales a product of two int8, or 0 if a tensor has no scale."""
    scales = [tensor.scale[0] for tensor in (*inputs[:2], output) if len(tensor.scale)]
    return float(scales[0] * scales[1] / scales[2]) if len(scales) == 3 else 0.0

"""Finds operators that the generated C cannot run, with their layers and remedies.

If there are no findings, `generate_c` accepts the network.
"""

from dataclasses import dataclass

import numpy as np

from edgefl.program.plan.tflite import Operator, TfliteTensor
from firmware_export.codegen.c_layers import MOVEMENT_OPERATORS, SUPPORTED_OPERATORS, WIDE_OPERATORS
from firmware_export.codegen.layer import VALUE_RANGES, WIDE_TYPE, name_layer
from firmware_export.tflite.graph import FORBIDDEN_OPERATORS
from firmware_export.tflite.quantized_model import QuantizedModel

MAX_OPERATOR_VERSIONS = {"FULLY_CONNECTED": 11, "CONV_2D": 8, "DEPTHWISE_CONV_2D": 7}
WEIGHT_OPERATORS = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV")
RECURRENT_OPERATORS = ("UNIDIRECTIONAL_SEQUENCE_LSTM", "SVDF")
"""Operators whose kernels check the inputs that may be missing."""
ACTIVATION_INPUTS = {"SPLIT": slice(1, None), "TRANSPOSE_CONV": slice(2, 3)}
"""Inputs that are activations, of operators whose first input is something else."""
SHIFTED_OPERATORS = MOVEMENT_OPERATORS | {"QUANTIZE"}
"""Operators of 16-bit activations that may have a zero point."""
DEFAULT_MAX_VERSION = 5
"""Highest supported operator version. Higher versions have other types or newer features."""
UNROLL_REMEDY = (
    "the generated C has only the recurrent kernels UNIDIRECTIONAL_SEQUENCE_LSTM and SVDF; convert the layer "
    "with unroll=True"
)
OPERATOR_REMEDIES = {
    **FORBIDDEN_OPERATORS,
    "SQUARED_DIFFERENCE": "it has no int8 form in the generated C; use batch normalization, or "
    "group normalization of plain layers",
    "DEQUANTIZE": "the layer after it computes with float; replace that layer, or quantize it to int8",
    "TILE": "TensorFlow Lite Micro has no such operator, and only an axis of size 1 becomes a BROADCAST_TO; "
    "repeat with Concatenate",
    "GELU": "use ReLU",
    **dict.fromkeys(
        (
            "RNN",
            "LSTM",
            "UNIDIRECTIONAL_SEQUENCE_RNN",
            "BIDIRECTIONAL_SEQUENCE_RNN",
            "BIDIRECTIONAL_SEQUENCE_LSTM",
        ),
        UNROLL_REMEDY,
    ),
}


@dataclass(frozen=True)
class LintFinding:
    """One reason why the network cannot become C.

    Attributes:
        operator: name of the operator.
        layer: name of the operator's output.
        remedy: the problem and what to do about it.
    """

    operator: str
    layer: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.operator} ({self.layer}): {self.remedy}"


def lint(network: QuantizedModel) -> tuple[LintFinding, ...]:
    """Return all findings in the order of the operators."""
    findings = [finding for operator in network.operators for finding in _lint_operator(network, operator)]
    if not network.inputs:
        remedy = "the model has no inputs, expected at least one; export a model that takes samples"
        findings.append(LintFinding("the model", "input", remedy))
    made = {index for operator in network.operators for index in operator.outputs}
    made |= set(network.inputs) if len(network.outputs) > 1 else set()
    for index in dict.fromkeys((*network.inputs, *network.outputs)):
        tensor = network.get_tensor(index)
        if index in network.outputs and index not in made:
            remedy = "no operator computes it; the model is damaged or empty, export it again"
            findings.append(LintFinding("output", tensor.name, remedy))
            continue
        types = ("INT8", WIDE_TYPE) if index in network.inputs else tuple(VALUE_RANGES)
        wrong = _describe_wrong_quantization(tensor)
        if tensor.dtype in types and len(tensor.scale) != 1:
            wrong = f"{len(tensor.scale)} scales, expected one; quantize it again"
        if wrong:
            findings.append(LintFinding("input or output", tensor.name, f"it has {wrong}"))
        elif tensor.dtype not in types:
            remedy = (
                f"it is {tensor.dtype}, expected {' or '.join(types)}; quantize the model to full int8, "
                "input and output too"
            )
            findings.append(LintFinding("input or output", tensor.name, remedy))
        elif not tensor.shape or tensor.shape[0] != 1 or min(tensor.shape) < 1:
            remedy = (
                f"its shape is {tensor.shape}, expected a batch of one and fixed sizes; fix the batch to 1"
            )
            findings.append(LintFinding("input or output", tensor.name, remedy))
    for noun, indices in (("inputs", network.inputs), ("outputs", network.outputs)):
        types_of_ends = {network.get_tensor(index).dtype for index in indices}
        if len(types_of_ends) > 1:
            remedy = (
                f"they are {' and '.join(sorted(types_of_ends))}, expected one type for all {noun}; quantize "
                "them alike"
            )
            findings.append(LintFinding("the model", noun, remedy))
    return tuple(findings)


def _lint_operator(network: QuantizedModel, operator: Operator) -> list[LintFinding]:
    layer = name_layer(network, operator)
    if operator.name not in SUPPORTED_OPERATORS:
        remedy = OPERATOR_REMEDIES.get(
            operator.name,
            "the generated C has no such kernel; replace the layer (the page `Export any int8 model` of the "
            "documentation lists the operators)",
        )
        return [LintFinding(operator.name, layer, remedy)]
    needed = 3 if operator.name == "TRANSPOSE_CONV" else 2 if operator.name in WEIGHT_OPERATORS else 1
    if len(operator.inputs) < needed or min(operator.inputs[:needed]) < 0:
        return [
            LintFinding(
                operator.name,
                layer,
                f"it has the inputs {operator.inputs}, expected at least {needed}; the model is damaged",
            )
        ]
    optional = len(operator.inputs)
    if operator.name in (*WEIGHT_OPERATORS, *RECURRENT_OPERATORS):
        optional = needed
    if -1 in operator.inputs[:optional]:
        return [
            LintFinding(
                operator.name,
                layer,
                f"its inputs {operator.inputs} leave one out; only a bias may be missing, so convert the "
                "model again",
            )
        ]
    newest = MAX_OPERATOR_VERSIONS.get(operator.name, DEFAULT_MAX_VERSION)
    if operator.version > newest:
        remedy = (
            f"it has version {operator.version}, expected at most {newest}; export with full int8, or "
            "update edgefl"
        )
        return [LintFinding(operator.name, layer, remedy)]
    sources = [
        network.get_tensor(index) for index in operator.inputs[ACTIVATION_INPUTS.get(operator.name, slice(1))]
    ]
    for index in operator.outputs:
        output = network.get_tensor(index)
        if wrong := _describe_wrong_quantization(output):
            return [LintFinding(operator.name, layer, f"its output has {wrong}")]
        types = _list_output_types(operator, sources[0].dtype)
        if output.dtype not in types:
            kinds = ("INT8", WIDE_TYPE) if operator.name in WIDE_OPERATORS else ("INT8",)
            remedy = (
                f"its output is {output.dtype} of {sources[0].dtype}, expected {' or '.join(types)}"
                if types
                else f"its input is {sources[0].dtype}, expected {' or '.join(kinds)}"
            )
            return [LintFinding(operator.name, layer, f"{remedy}; quantize to full int8")]
        if sources[0].dtype == WIDE_TYPE and output.zero_point and operator.name not in SHIFTED_OPERATORS:
            return [
                LintFinding(
                    operator.name,
                    layer,
                    f"its output has the zero point {output.zero_point}, expected 0 for 16 bits; convert the "
                    "model again",
                )
            ]
        if len(output.scale) != 1:
            return [
                LintFinding(
                    operator.name,
                    layer,
                    f"its output has {len(output.scale)} scales, expected one; quantize it again",
                )
            ]
        if any(count < 1 for count in output.shape):
            return [LintFinding(operator.name, layer, f"its output's shape is {output.shape}; fix the sizes")]
    if operator.name in WEIGHT_OPERATORS:
        kernel = network.get_tensor(operator.inputs[1])
        if kernel.dtype != "INT8" or kernel.data is None:
            return [
                LintFinding(
                    operator.name,
                    layer,
                    f"its weights are {kernel.dtype} and computed or not int8, expected int8 constants; "
                    "quantize to full int8",
                )
            ]
    for source in sources:
        if wrong := _describe_wrong_quantization(source):
            return [LintFinding(operator.name, layer, f"its input has {wrong}")]
        if source.dtype != sources[0].dtype or len(source.scale) != 1:
            return [
                LintFinding(
                    operator.name,
                    layer,
                    f"its input is {source.dtype} with {len(source.scale)} scales, expected "
                    f"{sources[0].dtype} with one; quantize to full int8",
                )
            ]
        if source.dtype == WIDE_TYPE and source.zero_point and operator.name not in SHIFTED_OPERATORS:
            return [
                LintFinding(
                    operator.name,
                    layer,
                    f"its input has the zero point {source.zero_point}, expected 0 for 16 bits; convert the "
                    "model again",
                )
            ]
    return []


def _list_output_types(operator: Operator, source: str) -> tuple[str, ...]:
    """Return the types that the outputs of an operator may have.

    Args:
        source: type of its activations.

    Returns:
        The types. Empty if the generated C has no kernel for the activations.
    """
    if operator.name == "QUANTIZE" and source in ("INT8", WIDE_TYPE):
        return tuple(VALUE_RANGES)
    if operator.name == "SOFTMAX" and source == "INT8":
        return "INT8", WIDE_TYPE
    if source == "INT8" or (source == WIDE_TYPE and operator.name in WIDE_OPERATORS):
        return (source,)
    return (source,) if source == "INT32" and operator.name in MOVEMENT_OPERATORS else ()


def _describe_wrong_quantization(tensor: TfliteTensor) -> str:
    """Describe a wrong scale or zero point of a quantized tensor. Empty if both are valid."""
    if tensor.dtype not in VALUE_RANGES:
        return ""
    least, most = VALUE_RANGES[tensor.dtype]
    if not np.isfinite(tensor.scale).all() or (tensor.scale <= 0).any():
        return (
            f"the scale {tensor.scale[0]}, expected a positive number; the model is damaged, export it again"
        )
    if not all(least <= zero <= most for zero in tensor.zero_points):
        return (
            f"the zero point {tensor.zero_point}, expected {least} to {most}; the model is damaged, export "
            "it again"
        )
    return ""

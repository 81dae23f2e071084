"""What a microcontroller cannot run: operator, layer, remedy.

An empty result means that `generate` takes the network.
"""

from dataclasses import dataclass

import numpy as np

from edgefl.plan.tflite import Operator, Tensor
from firmware_export.codegen.c_layers import SUPPORTED
from firmware_export.codegen.layer import place
from firmware_export.tflite.graph import FORBIDDEN
from firmware_export.tflite.quantized_model import QuantizedModel

VERSIONS = {"FULLY_CONNECTED": 11, "CONV_2D": 7, "DEPTHWISE_CONV_2D": 7}
WITH_KERNEL = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED")
LATEST = 5
"""Highest operator versions whose int8 form is what this generator computes: versions above are of other
types or newer files.
"""
REMEDIES = {
    **FORBIDDEN,
    "SQUARED_DIFFERENCE": "it has no int8 form here; use group normalization of plain layers, or batch "
    "normalization",
    "TRANSPOSE_CONV": "use upsampling by a Dense layer, or a convolution with stride 1",
    "DEQUANTIZE": "the model is not of integers only; export it with int8 input and output",
    "GELU": "use ReLU",
    "ELU": "use LeakyReLU",
    "HARD_SWISH": "use ReLU6",
}


@dataclass(frozen=True)
class Finding:
    """One reason why the network cannot become C. layer: the name of the tensor that the operator makes."""

    operator: str
    layer: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.operator} ({self.layer}): {self.remedy}"


def lint(network: QuantizedModel) -> tuple[Finding, ...]:
    """Return all findings, in the order of the operators."""
    found = [finding for operator in network.operators for finding in _operator(network, operator)]
    if len(network.inputs) != 1 or len(network.outputs) != 1:
        remedy = (
            f"the model has {len(network.inputs)} inputs and {len(network.outputs)} outputs, expected one "
            "each; export a mixture"
        )
        found.append(Finding("the model", "input and output", remedy))
    for index in (*network.inputs, *network.outputs):
        tensor = network.tensor(index)
        if tensor.dtype != "INT8":
            remedy = f"it is {tensor.dtype}, expected INT8; quantize the model with `edgefl export`"
            found.append(Finding("input or output", tensor.name, remedy))
        elif not tensor.shape or tensor.shape[0] != 1 or min(tensor.shape) < 1:
            remedy = (
                f"its shape is {tensor.shape}, expected a batch of one and fixed sizes; fix the batch to 1"
            )
            found.append(Finding("input or output", tensor.name, remedy))
    return tuple(found)


def _operator(network: QuantizedModel, operator: Operator) -> list[Finding]:
    layer = place(network, operator)
    if operator.name not in SUPPORTED:
        remedy = REMEDIES.get(
            operator.name, f"the generated C has no such kernel; use one of {', '.join(sorted(SUPPORTED))}"
        )
        return [Finding(operator.name, layer, remedy)]
    needed = 2 if operator.name in WITH_KERNEL else 1
    if len(operator.inputs) < needed or min(operator.inputs[:needed]) < 0:
        return [
            Finding(
                operator.name,
                layer,
                f"it has the inputs {operator.inputs}, expected {needed} at least; the model is damaged",
            )
        ]
    newest = VERSIONS.get(operator.name, LATEST)
    if operator.version > newest:
        remedy = (
            f"version {operator.version} of the operator, known up to {newest}; export with full int8, or "
            "update edgefl"
        )
        return [Finding(operator.name, layer, remedy)]
    for index in operator.outputs:
        output = network.tensor(index)
        if wrong := _wrong_quantization(output):
            return [Finding(operator.name, layer, f"its output has {wrong}")]
        if output.dtype != "INT8":
            return [
                Finding(
                    operator.name,
                    layer,
                    f"its output is {output.dtype}, expected INT8; quantize to full int8",
                )
            ]
        if len(output.scale) != 1:
            return [
                Finding(
                    operator.name,
                    layer,
                    f"its output has {len(output.scale)} scales, expected one; quantize it again",
                )
            ]
        if any(count < 1 for count in output.shape):
            return [Finding(operator.name, layer, f"its output's shape is {output.shape}; fix the sizes")]
    if operator.name in WITH_KERNEL:
        kernel = network.tensor(operator.inputs[1])
        if kernel.dtype != "INT8" or kernel.data is None:
            return [
                Finding(
                    operator.name,
                    layer,
                    f"its weights are {kernel.dtype} that are computed or not int8; quantize to full int8",
                )
            ]
    read = operator.inputs[1:] if operator.name == "SPLIT" else operator.inputs[:1]
    for index in read:
        source = network.tensor(index)
        if wrong := _wrong_quantization(source):
            return [Finding(operator.name, layer, f"its input has {wrong}")]
        if source.dtype != "INT8" or len(source.scale) != 1:
            return [
                Finding(
                    operator.name,
                    layer,
                    f"its input is {source.dtype} with {len(source.scale)} scales; quantize to full int8",
                )
            ]
    return []


def _wrong_quantization(tensor: Tensor) -> str:
    """Return what is wrong with the scale or the zero point of an int8 tensor, "" for nothing."""
    if tensor.dtype != "INT8":
        return ""
    if not np.isfinite(tensor.scale).all() or (tensor.scale <= 0).any():
        return (
            f"the scale {tensor.scale[0]}, expected a positive number; the model is damaged, export it again"
        )
    if not all(-128 <= zero <= 127 for zero in tensor.zero_points):
        return (
            f"the zero point {tensor.zero_point}, expected -128 to 127; the model is damaged, export it again"
        )
    return ""

"""Tables of 256 bytes for functions of one int8, from -128 to 127.

They are computed with the interpreter's own integer arithmetic.
"""

import math

import numpy as np

from edgefl.program.plan.tflite import Operator, TfliteTensor
from firmware_export.codegen import fixed_point as fixed
from firmware_export.codegen.layer import compute_activation_range, refuse, round_half_away
from firmware_export.tflite.quantized_model import QuantizedModel

INT8_VALUES = range(-128, 128)
LOOKUP_OPERATORS = (
    "LOGISTIC",
    "TANH",
    "RSQRT",
    "LEAKY_RELU",
    "RELU",
    "RELU6",
    "QUANTIZE",
    "HARD_SWISH",
    "ABS",
    "ELU",
)
"""Operators that are a function of one int8."""


MIN_FIXED_POINT_SCALE = 2.0**-28
"""Lowest scale of the input of a LOGISTIC or TANH. Q4.27 would need a shift to the right below it."""


def _clamp_int8(value: int) -> int:
    return min(max(value, -128), 127)


def _build_fixed_point_table(function: str, source: TfliteTensor, bits: int, zero: int) -> list[int]:
    """Return the table of logistic or tanh.

    The input is Q4.27, and the result is rounded to `bits` fractional bits. Inputs outside of +-16 give the
    extremes.
    """
    fraction, shift = math.frexp(float(source.scale[0]) * (1 << 27))
    multiplier = math.floor(fraction * (1 << 31) + 0.5)
    radius = fixed.compute_input_radius(4, shift)
    table = []
    for value in INT8_VALUES:
        value -= source.zero_point
        if abs(value) >= radius:
            table.append(-128 if value < 0 else 127)
            continue
        result = getattr(fixed, function)(fixed.rescale(value, multiplier, shift))
        table.append(_clamp_int8(fixed.divide_by_power(result, 31 - bits) + zero))
    return table


def _build_rsqrt_table(source: TfliteTensor, output: TfliteTensor) -> list[int]:
    """Return the table of 1 / sqrt(x), computed with 20 extra bits.

    An input of 0 gives the largest value. So does a negative input, which the interpreter refuses.
    """
    multiplier, shift = fixed.quantize_multiplier(
        1.0 / (math.sqrt(float(source.scale[0])) * float(output.scale[0]))
    )
    table = []
    for value in INT8_VALUES:
        value -= source.zero_point
        if value <= 0:
            table.append(127)
            continue
        inverse, right = fixed.inverse_square_root(value)
        data = fixed.rescale(1, inverse, right + 20)
        table.append(_clamp_int8(fixed.rescale(data, multiplier, shift - 20) + output.zero_point))
    return table


def _build_leaky_relu_table(source: TfliteTensor, output: TfliteTensor, alpha: float) -> list[int]:
    slope = float(np.float32(alpha))
    above = fixed.quantize_multiplier(float(source.scale[0]) / float(output.scale[0]))
    below = fixed.quantize_multiplier(float(source.scale[0]) * slope / float(output.scale[0]))
    centred = [value - source.zero_point for value in INT8_VALUES]
    return [_clamp_int8(output.zero_point + fixed.rescale(v, *(above if v >= 0 else below))) for v in centred]


def _build_hard_swish_table(source: TfliteTensor, output: TfliteTensor) -> list[int]:
    """Return the table of x * relu6(x + 3) / 6, computed with 16-bit integers.

    The input has 7 extra bits. One factor is the input on the output's scale, before its shift to the right.
    The other is relu6(x + 3) / 6 with 15 fractional bits.
    """
    fine_scale = np.float32(1 / 128) * np.float32(source.scale[0])
    multiplier, shift = fixed.quantize_multiplier(float(fine_scale / np.float32(output.scale[0])))
    slope, slope_shift = fixed.quantize_multiplier(float(fine_scale / np.float32(3 / 32768)))
    table = []
    for value in INT8_VALUES:
        fine = (value - source.zero_point) * 128
        scaled = fixed.multiply_high_int16(fine, fixed.round_to_int16(multiplier))
        part = fixed.saturate_int16(fine << max(slope_shift - 1, 0))
        part = fixed.multiply_high_int16(part, fixed.round_to_int16(slope))
        part = fixed.saturate_int16(part << 1) if slope_shift > 0 else part
        part = fixed.divide_by_power(part, max(-slope_shift, 0))
        product = int((part + 32768 >> 1) * scaled / 32768)  # truncated, and exact in a float of 64 bits
        table.append(_clamp_int8(fixed.divide_by_power(product, -shift) + output.zero_point))
    return table


def _build_abs_table(source: TfliteTensor, output: TfliteTensor) -> list[int]:
    scale = fixed.quantize_multiplier(float(np.float32(source.scale[0]) / np.float32(output.scale[0])))
    rescaled = source.scale[0] != output.scale[0]
    return [
        _clamp_int8(output.zero_point + (fixed.rescale(size, *scale) if rescaled else size))
        for size in (abs(value - source.zero_point) for value in INT8_VALUES)
    ]


def _build_elu_table(source: TfliteTensor, output: TfliteTensor) -> list[int]:
    """Return the table of x, or exp(x) - 1 for a negative x, computed with floats of 32 bits."""
    inverse = np.float32(1) / np.float32(output.scale[0])
    table = []
    for value in INT8_VALUES:
        real = np.float32(source.scale[0]) * np.float32(value - source.zero_point)
        result = np.float32(math.exp(real)) - np.float32(1) if real < 0 else real
        table.append(_clamp_int8(round_half_away(float(result * inverse)) + output.zero_point))
    return table


def _build_rescale_table(source: TfliteTensor, output: TfliteTensor, low: int, high: int) -> list[int]:
    scale = fixed.quantize_multiplier(float(source.scale[0]) / float(output.scale[0]))
    return [
        min(max(fixed.rescale(v - source.zero_point, *scale) + output.zero_point, low), high)
        for v in INT8_VALUES
    ]


def build_lookup_table(network: QuantizedModel, operator: Operator) -> list[int]:
    """Return the operator's output for each int8, from -128 to 127.

    Args:
        operator: one of LOOKUP_OPERATORS.

    Raises:
        ExportError: the zero point or the scales of a LOGISTIC, TANH or HARD_SWISH are out of range, the
            slope of a LEAKY_RELU is negative, or as in `quantize_multiplier`.
    """
    source = network.get_tensor(operator.inputs[0])
    output = network.get_tensor(operator.outputs[0])
    if operator.name in ("LOGISTIC", "TANH") and source.scale[0] < MIN_FIXED_POINT_SCALE:
        raise refuse(
            network,
            operator,
            f"has an input whose scale is {source.scale[0]}, expected at least 2^-28",
            "calibrate with other samples",
        )
    if operator.name == "LOGISTIC":
        if output.zero_point != -128:
            raise refuse(
                network,
                operator,
                f"has zero point {output.zero_point}, expected -128",
                "export the model again",
            )
        return _build_fixed_point_table("logistic", source, 8, -128)
    if operator.name == "TANH":
        if output.zero_point != 0:
            raise refuse(
                network, operator, f"has zero point {output.zero_point}, expected 0", "export the model again"
            )
        return _build_fixed_point_table("tanh", source, 7, 0)
    if operator.name == "RSQRT":
        return _build_rsqrt_table(source, output)
    if operator.name == "LEAKY_RELU":
        alpha = float(operator.options["alpha"])
        if alpha < 0:
            raise refuse(network, operator, f"has the slope {alpha}", "use a slope of at least 0")
        return _build_leaky_relu_table(source, output, alpha)
    if operator.name == "HARD_SWISH":
        if np.float32(1 / 128) * source.scale[0] / output.scale[0] >= 1:
            raise refuse(
                network,
                operator,
                f"has the scales {source.scale[0]} and {output.scale[0]}, expected a quotient below 128",
                "calibrate with other samples",
            )
        return _build_hard_swish_table(source, output)
    if operator.name == "ELU":
        return _build_elu_table(source, output)
    if operator.name == "ABS":
        return _build_abs_table(source, output)
    if operator.name == "RELU":
        low = max(-128, output.zero_point)
        return _build_rescale_table(source, output, low, 127)
    if operator.name == "RELU6":  # the interpreter clamps here without a rescale
        six = source.zero_point + round_half_away(float(np.float32(6) / source.scale[0]))
        return [min(max(v, source.zero_point), six) for v in INT8_VALUES]
    return _build_rescale_table(source, output, *compute_activation_range(output, 0))  # QUANTIZE

"""Builds layers of 16-bit activations without weights, whose kernels have no int8 form.

An int8 activation function becomes a table. A table for 16 bits would be too large, so these kernels compute.

Source: the operators of TensorFlow Lite Micro for 16-bit activations and int8 weights.
"""

import math

import numpy as np

from edgefl.program.plan.tflite import Operator, TfliteTensor
from firmware_export.codegen.c_recurrent import UNIT_SCALE
from firmware_export.codegen.fixed_point import quantize_multiplier
from firmware_export.codegen.layer import (
    VALUE_RANGES,
    Field,
    Layer,
    check_output_shape,
    compute_activation_range,
    make_unary_layer,
    refuse,
    round_half_away,
)
from firmware_export.tflite.quantized_model import QuantizedModel

SCALE_TOLERANCE = 1e-3
"""TensorFlow Lite Micro accepts fixed scales with this relative error."""
TABLE_SCALE = 1 / (3 * 4096)
"""Scale of the argument of the sigmoid's table."""
LARGEST_FACTOR = (1 << 15) - 1
MAX_TABLE_SHIFT = 30
SOFTMAX_STEP = 10 / 65535
"""Scale of the argument of the exponential's table."""
IDENTITY = (1 << 30, 1)
"""Integer form of the multiplier 1."""


def build_sigmoid(network: QuantizedModel, operator: Operator, name: str) -> list[Layer]:
    """Build the layer of a LOGISTIC or TANH.

    Args:
        name: C identifier of the layer.

    Raises:
        ExportError: the scale of the output is not 2^-15, or the scale of the input is out of range.
    """
    source, output = _read_ends(network, operator)
    _check_unit_scale(network, operator, output)
    is_tanh = operator.name == "TANH"
    factor, shift = float(source.scale[0]) / TABLE_SCALE, 0
    power = math.log2(float(source.scale[0]))
    left = 12 + round(power)
    if abs(power - round(power)) < SCALE_TOLERANCE and left in ((0, 1) if is_tanh else (0,)):
        factor = 3 << left
    else:
        while factor <= LARGEST_FACTOR / 2 and shift <= MAX_TABLE_SHIFT:
            factor, shift = 2 * factor, shift + 1
    if factor > LARGEST_FACTOR or shift > MAX_TABLE_SHIFT:
        raise refuse(
            network,
            operator,
            f"has an input whose scale is {source.scale[0]:.3g}, expected 1e-9 to "
            f"{LARGEST_FACTOR * TABLE_SCALE:.3g}",
            "calibrate with other samples",
        )
    call = f"sigmoid_values({output.size}, {int(is_tanh)}, &{{p}}->{name}_scale, {{a}}, {{out}});"
    return [
        make_unary_layer(
            operator,
            name,
            ("sixteen_bits", "sigmoid", "sigmoid_values"),
            call,
            (Field(f"{name}_scale", "struct model_softmax", (int(factor), shift, 0)),),
        )
    ]


def build_softmax_16(network: QuantizedModel, operator: Operator, name: str) -> list[Layer]:
    """Build the layer of a SOFTMAX over the last axis, of 16-bit values.

    Args:
        name: C identifier of the layer.

    Raises:
        ExportError: the scale of the output is not 2^-15, or as in `quantize_multiplier`.
    """
    source, output = _read_ends(network, operator)
    _check_unit_scale(network, operator, output)
    real = float(source.scale[0]) * float(np.float32(operator.options["beta"])) / SOFTMAX_STEP
    scale = Field(f"{name}_scale", "struct model_softmax", (*quantize_multiplier(real), 0))
    classes = source.shape[-1]
    call = f"softmax_16({source.size // classes}, {classes}, &{{p}}->{name}_scale, {{a}}, {{out}});"
    return [make_unary_layer(operator, name, ("sixteen_bits", "softmax_16"), call, (scale,))]


def build_rescale(network: QuantizedModel, operator: Operator, name: str) -> list[Layer]:
    """Build the layer of a RELU, RELU6, LEAKY_RELU or QUANTIZE that reads or makes more than 8 bits.

    Args:
        name: C identifier of the layer.

    Raises:
        ExportError: the slope of a LEAKY_RELU is negative, or as in `quantize_multiplier`.
    """
    source, output = _read_ends(network, operator)
    low, high = VALUE_RANGES[output.dtype]
    real = float(source.scale[0]) / float(output.scale[0])
    above = below = quantize_multiplier(real)
    if operator.name == "LEAKY_RELU":
        alpha = float(np.float32(operator.options["alpha"]))
        if alpha < 0:
            raise refuse(network, operator, f"has the slope {alpha}", "use a slope of at least 0")
        below = quantize_multiplier(float(source.scale[0]) * alpha / float(output.scale[0]))
    elif operator.name == "RELU":
        low, high = compute_activation_range(output, 1)
    elif operator.name == "RELU6":  # the interpreter clamps here without a rescale
        above = below = IDENTITY
        low, high = 0, min(high, round_half_away(float(np.float32(6) / source.scale[0])))
    values = (source.zero_point, *above, *below, output.zero_point, low, high)
    widths = f"{source.element_bytes}, {output.element_bytes}"
    call = f"rescale_values({output.size}, {widths}, &{{p}}->{name}_scale, {{a}}, {{out}});"
    return [
        Layer(
            name=name,
            op=operator.name,
            inputs=(source.index,),
            output=output.index,
            kernels=("sixteen_bits", "rescale_values"),
            call=call,
            fields=(Field(f"{name}_scale", "struct model_rescale", values),),
            note=f"{source.dtype} to {output.dtype}" if source.dtype != output.dtype else "",
            overwritable=(source.index,),
        )
    ]


def _read_ends(network: QuantizedModel, operator: Operator) -> tuple[TfliteTensor, TfliteTensor]:
    """Return the input and the output of an operator that keeps the shape."""
    source, output = (network.get_tensor(i) for i in (operator.inputs[0], operator.outputs[0]))
    check_output_shape(network, operator, source.shape)
    return source, output


def _check_unit_scale(network: QuantizedModel, operator: Operator, output: TfliteTensor) -> None:
    if abs(float(output.scale[0]) / UNIT_SCALE - 1) >= SCALE_TOLERANCE / 2:
        raise refuse(
            network,
            operator,
            f"has an output whose scale is {output.scale[0]:.6g}, expected 2^-15",
            "convert the model again",
        )

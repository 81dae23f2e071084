"""Builds recurrent layers whose state lasts from one inference to the next: LSTM and SVDF.

Source: Hochreiter and Schmidhuber, "Long short-term memory", 1997, and Nakkiran et al., "Compressing deep
neural networks using a rank-constrained topology", 2015, in the integer form of TensorFlow Lite Micro.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgefl.program.plan.tflite import Operator, TfliteTensor
from firmware_export.codegen.fixed_point import quantize_multiplier
from firmware_export.codegen.layer import Field, Layer, flatten_ints, refuse
from firmware_export.tflite.quantized_model import QuantizedModel

INPUT_WEIGHTS, RECURRENT_WEIGHTS, BIASES = slice(1, 5), slice(5, 9), slice(12, 16)
PEEPHOLES, PROJECTION, NORMALIZATION = slice(9, 12), slice(16, 18), slice(20, 24)
HIDDEN, CELL = 18, 19
"""Inputs of a UNIDIRECTIONAL_SEQUENCE_LSTM."""
TANH = 4
"""Number of the tanh among the fused activations."""
GATE_SCALE = 2.0**-12
"""Scale of the sums of a gate."""
UNIT_SCALE = 2.0**-15
"""Scale of the outputs of sigmoid and tanh."""
MAX_CELL_SHIFT = 12
"""Largest shift of a cell's value in either direction. Three times a value of 16 bits then fits 32 bits."""
WIDE_STATE = "INT16"


def build_lstm(network: QuantizedModel, operator: Operator, name: str) -> list[Layer]:
    """Build the layer of a UNIDIRECTIONAL_SEQUENCE_LSTM with int8 values and a cell state of 16 bits.

    Args:
        name: C identifier of the layer.

    Raises:
        ExportError: the layer has peepholes, a projection or a layer normalization, another activation than
            tanh, several sequences, weights that are not int8 with one scale, or a wrong shape.
    """
    _check_lstm(network, operator)
    source, hidden, cell = (network.get_tensor(operator.inputs[i]) for i in (0, HIDDEN, CELL))
    output = network.get_tensor(operator.outputs[0])
    units = hidden.size
    inputs = source.shape[-1]
    sums = [
        _make_gate_sums(network, operator, operator.inputs[INPUT_WEIGHTS], source, (units, inputs)),
        _make_gate_sums(network, operator, operator.inputs[RECURRENT_WEIGHTS], hidden, (units, units)),
    ]
    biases = [network.get_tensor(i) for i in operator.inputs[BIASES]]
    if {tensor.dtype for tensor in biases} != {"INT32"}:
        raise ValueError(f"biases of type {biases[0].dtype}")
    bias = np.stack([tensor.data for tensor in biases], axis=1).astype(np.int64)
    starts = [bias + sums[0].start, sums[1].start]
    cell_scale = float(cell.scale[0])
    power = round(math.log2(cell_scale)) + 12  # sigmoid and tanh take values with a scale of 2^-12
    if not -MAX_CELL_SHIFT <= power <= MAX_CELL_SHIFT:
        raise refuse(
            network,
            operator,
            f"has cells with a scale of {cell_scale:g}, expected 2^-24 to 1",
            "calibrate with other samples",
        )
    clip = float(operator.options.get("cellClip", 0.0))
    scale = (
        *quantize_multiplier(UNIT_SCALE),
        *quantize_multiplier(UNIT_SCALE * UNIT_SCALE / cell_scale),
        *quantize_multiplier(UNIT_SCALE * UNIT_SCALE / float(hidden.scale[0])),
        hidden.zero_point,
        int(min(clip / cell_scale, 32767)) if clip > 0 else 32768,
        3 << max(power, 0),
        max(-power, 0),
    )
    factors = [pair for part in sums for pair in part.factors]
    fields = (
        Field(f"{name}_scale", "struct model_lstm", scale),
        *(
            Field(f"{name}_{kind}", "int32_t", flatten_ints(_check_range(network, operator, values, weights)))
            for kind, values, weights in zip(
                ("bias", "recurrent_bias"), starts, (part.weights for part in sums), strict=True
            )
        ),
        Field(f"{name}_multiplier", "int32_t", tuple(multiplier for multiplier, _ in factors)),
        Field(f"{name}_shift", "int8_t", tuple(shift for _, shift in factors)),
        *(
            Field(f"{name}_{kind}", "int8_t", flatten_ints(part.weights))
            for kind, part in zip(("weights", "recurrent"), sums, strict=True)
        ),
    )
    part = ", ".join(
        f"{{p}}->{name}_{kind}"
        for kind in ("bias", "recurrent_bias", "multiplier", "shift", "weights", "recurrent")
    )
    steps = source.size // inputs
    return [
        Layer(
            name=name,
            op=operator.name,
            inputs=(source.index, hidden.index, cell.index),
            output=output.index,
            kernels=("dsp", "products", "sixteen_bits", "sigmoid", "lstm"),
            call=f"lstm({steps}, {inputs}, {units}, &{{p}}->{name}_scale, {part}, "
            "{a}, {b}, {c}, {out});",
            fields=fields,
            note=f"{units} units" + (f", {steps} steps" if steps > 1 else ""),
            macs=steps * 4 * units * (inputs + units),
        )
    ]


def _check_lstm(network: QuantizedModel, operator: Operator) -> None:
    tensors = operator.inputs
    for part, noun in (
        (PEEPHOLES, "peephole connections"),
        (PROJECTION, "a projection"),
        (NORMALIZATION, "a layer normalization"),
    ):
        if any(index >= 0 for index in tensors[part]):
            raise refuse(network, operator, f"has {noun}", "use a plain LSTM layer")
    if int(operator.options.get("fusedActivationFunction", 0)) != TANH:
        raise refuse(network, operator, "has another activation than tanh", "use a plain LSTM layer")
    if len(tensors) < 20 or min(*tensors[:9], *tensors[BIASES], tensors[HIDDEN], tensors[CELL]) < 0:
        raise refuse(network, operator, "lacks inputs", "the model is damaged; export it again")
    source, hidden, cell = (network.get_tensor(tensors[i]) for i in (0, HIDDEN, CELL))
    output = network.get_tensor(operator.outputs[0])
    batch = source.shape[1 if operator.options.get("timeMajor") else 0]
    if batch != 1 or len(source.shape) != 3:
        raise refuse(network, operator, f"runs {batch} sequences at a time", "convert with a batch of 1")
    units = hidden.shape[-1] if hidden.shape else 0
    shapes = [tensor.shape for tensor in (hidden, cell, output)]
    expected = [(1, units), (1, units), (*source.shape[:2], units)]
    if shapes != expected or not units:
        raise refuse(
            network,
            operator,
            f"has states and an output of the shapes {shapes}, expected {expected}",
            "the model is damaged; export it again",
        )
    kinds = hidden.dtype, cell.dtype
    is_state = all(tensor.is_variable and tensor.data is None for tensor in (hidden, cell))
    if kinds != ("INT8", WIDE_STATE) or not is_state:
        raise refuse(
            network,
            operator,
            f"has a state of {kinds[0]} and {kinds[1]}, expected variables of INT8 and INT16",
            "quantize to full int8",
        )


@dataclass(frozen=True, eq=False)
class _GateSums:
    """The sums of the four gates of each unit over one input.

    Attributes:
        weights: weights, shape (units, gates, inputs), int8.
        start: what each sum begins at, so that the input needs no zero point, shape (units, gates), int64.
        factors: integer factor of each gate, as multiplier and shift.
    """

    weights: Any
    start: Any
    factors: tuple[tuple[int, int], ...]


def _make_gate_sums(
    network: QuantizedModel,
    operator: Operator,
    indices: Sequence[int],
    source: TfliteTensor,
    shape: tuple[int, int],
) -> _GateSums:
    kernels = [network.get_tensor(index) for index in indices]
    for kernel in kernels:
        if kernel.data is None or kernel.dtype != "INT8" or kernel.shape != shape or len(kernel.scale) != 1:
            raise refuse(
                network,
                operator,
                f"has weights of type {kernel.dtype}, shape {kernel.shape} and {len(kernel.scale)} scales, "
                f"expected int8 constants of shape {shape} and one scale",
                "quantize to full int8",
            )
        if any(kernel.zero_points):
            raise refuse(network, operator, "has weights with a zero point", "quantize weights symmetrically")
    weights = np.stack([kernel.data for kernel in kernels], axis=1)
    return _GateSums(
        weights=weights,
        start=-source.zero_point * weights.sum(axis=2, dtype=np.int64),
        factors=tuple(
            quantize_multiplier(float(source.scale[0]) * float(kernel.scale[0]) / GATE_SCALE)
            for kernel in kernels
        ),
    )


def _check_range(network: QuantizedModel, operator: Operator, starts: Any, weights: Any) -> Any:
    """Check that no int8 input makes a sum that overflows 32 bits, and return the starts of the sums.

    Args:
        starts: shape (...), int64.
        weights: the weights of each sum, shape (..., inputs), int8 or int16.
    """
    largest = np.abs(starts) + 128 * np.abs(weights.astype(np.int64)).sum(axis=-1)
    if largest.max(initial=0) >= 1 << 31:
        raise refuse(
            network,
            operator,
            f"has a sum of up to {int(largest.max()):,}, which overflows 32 bits",
            "that unit's weights are nearly zero; train it longer",
        )
    return starts


def build_svdf(network: QuantizedModel, operator: Operator, name: str) -> list[Layer]:
    """Build the layer of an SVDF whose state and weights over time have both 8 or both 16 bits.

    Args:
        name: C identifier of the layer.

    Raises:
        ExportError: a tensor has a wrong shape or type, or several scales.
    """
    source, feature, time, bias, state = (
        network.get_tensor(index) if index >= 0 else None for index in operator.inputs[:5]
    )
    output = network.get_tensor(operator.outputs[0])
    if source is None or feature is None or time is None or bias is None or state is None:
        raise refuse(network, operator, "lacks inputs", "the model is damaged; export it again")
    if not state.is_variable or state.data is not None:
        raise refuse(network, operator, "has a state that is no variable", "convert the model again")
    rank = int(operator.options["rank"])
    filters, inputs = feature.shape
    memory = time.shape[-1]
    units = filters // rank
    shapes = [tensor.shape for tensor in (source, time, bias, state, output)]
    expected = [(1, inputs), (filters, memory), (units,), (1, filters * memory), (1, units)]
    if shapes != expected or units * rank != filters:
        raise refuse(
            network,
            operator,
            f"has the shapes {shapes} for {filters} filters of rank {rank}, expected {expected}",
            "convert with a batch of 1",
        )
    wide = state.dtype == WIDE_STATE
    types = feature.dtype, time.dtype, bias.dtype, state.dtype
    if types != ("INT8", state.dtype, "INT32", state.dtype) or any(
        tensor.data is None for tensor in (feature, time, bias)
    ):
        raise refuse(
            network, operator, f"has constants and a state of {types}, expected INT8 or INT16", "quantize it"
        )
    if any(len(tensor.scale) != 1 for tensor in (feature, time, state)):
        raise refuse(network, operator, "has several scales in a tensor", "quantize with one scale a tensor")
    if any(feature.zero_points) or any(time.zero_points) or (wide and state.zero_point):
        raise refuse(network, operator, "has weights with a zero point", "quantize weights symmetrically")
    start = -source.zero_point * feature.data.sum(axis=1, dtype=np.int64)
    over_time = time.data.reshape(units, -1)
    sums = over_time.sum(axis=1, dtype=np.int64)
    over_time = over_time[:, :0] if wide else over_time  # sums of 16 bits may wrap around
    factors = (
        source.scale[0] * feature.scale[0] / state.scale[0],  # in 32 bits, as in TensorFlow Lite Micro
        state.scale[0] * time.scale[0] / output.scale[0],
    )
    scale = (
        *quantize_multiplier(float(factors[0])),
        state.zero_point,
        *quantize_multiplier(float(factors[1])),
        output.zero_point,
    )
    fields = (
        Field(f"{name}_scale", "struct model_svdf", scale),
        Field(f"{name}_start", "int32_t", flatten_ints(_check_range(network, operator, start, feature.data))),
        Field(
            f"{name}_bias",
            "int32_t",
            flatten_ints(_check_range(network, operator, bias.data - state.zero_point * sums, over_time)),
        ),
        Field(f"{name}_feature", "int8_t", flatten_ints(feature.data)),
        Field(f"{name}_time", "int16_t" if wide else "int8_t", flatten_ints(time.data)),
    )
    weights_over_time = f"{'(const int8_t *)' if wide else ''}{{p}}->{name}_time"
    part = ", ".join(f"{{p}}->{name}_{kind}" for kind in ("start", "bias", "feature"))
    return [
        Layer(
            name=name,
            op=operator.name,
            inputs=(source.index, state.index),
            output=output.index,
            kernels=("dsp", "products", "sixteen_bits", "svdf"),
            call=f"svdf({inputs}, {filters}, {memory}, {rank}, {int(wide)}, &{{p}}->{name}_scale, {part}, "
            f"{weights_over_time}, {{a}}, {{b}}, {{out}});",
            fields=fields,
            note=f"{filters} filters of rank {rank}, {memory} steps",
            macs=filters * (inputs + memory),
        )
    ]

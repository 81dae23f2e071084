"""Builds layers with weights: convolution, with or without max pooling, depthwise and transposed convolution.

The input's zero point is folded into the bias, b' = b - z * sum(w). The inner loop then has no offset, and
padding is z itself.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from edgefl.program.plan.tflite import Operator, TfliteTensor
from firmware_export.codegen.c_padding import PaddedInput
from firmware_export.codegen.fixed_point import quantize_multiplier, round_to_int16
from firmware_export.codegen.layer import (
    WIDE_TYPE,
    Field,
    Layer,
    compute_activation_range,
    flatten_ints,
    loop_over_batch,
    refuse,
)
from firmware_export.tflite.quantized_model import QuantizedModel

GEOMETRY_FIELDS = (
    "in_height",
    "in_width",
    "in_channels",
    "out_height",
    "out_width",
    "out_channels",
    "kernel_height",
    "kernel_width",
    "stride_height",
    "stride_width",
    "dilation_height",
    "dilation_width",
    "pad_top",
    "pad_left",
)

NO_PADDING = ((0, 0), (0, 0))
BIAS_TYPES = ("INT32", "INT64")
MAX_WIDE_SHIFT = 7
"""Highest shift to the left of the multiplier of a sum of 64 bits."""
INT32_BIAS = 2
"""Number of INT32 among the types of a missing bias."""
PIXELS_PER_STEP = 4
"""Pixels that a kernel computes at a time, where there is room for their inputs as int16."""
POOLED_PIXELS = (2, 4)
"""Numbers of pixels in a window of max pooling that a convolution can do."""


def make_channel_fields(
    network: QuantizedModel, operator: Operator, name: str, weights: Any, *, folded: bool
) -> tuple[Field, ...]:
    """Return the fields of a layer's range, bias, multiplier and shift.

    Args:
        name: C identifier of the layer.
        weights: weights, shape (channels, ...), int8.
        folded: whether to fold the input's zero point into the bias.

    Raises:
        ExportError: the weights have a zero point or a wrong number of scales, the sum of a channel can
            overflow 32 bits, or as in `quantize_multiplier` or `compute_activation_range`.
    """
    source, kernel = (network.get_tensor(i) for i in operator.inputs[:2])
    output = network.get_tensor(operator.outputs[0])
    channels = len(weights)
    if len(kernel.scale) not in (1, channels):
        raise refuse(
            network,
            operator,
            f"has {len(kernel.scale)} scales for {channels} channels",
            "export the model again",
        )
    if any(kernel.zero_points):
        raise refuse(network, operator, "has weights with a zero point", "quantize weights symmetrically")
    product = [float(source.scale[0]) * float(scale) for scale in kernel.scale]
    scales = [quantize_multiplier(real / float(output.scale[0])) for real in product]
    if has_wide_sums(network, operator):
        if max(shift for _, shift in scales) > MAX_WIDE_SHIFT:
            raise refuse(
                network,
                operator,
                f"has the multiplier {max(product) / float(output.scale[0]):.3g}, expected less than "
                f"{1 << MAX_WIDE_SHIFT}",
                "calibrate with other samples",
            )
        scales = [(round_to_int16(multiplier), shift) for multiplier, shift in scales]
    scales = scales * channels if len(scales) == 1 else scales
    flat = weights.reshape(channels, -1).astype(np.int64)
    bias = np.zeros(channels, np.int64)
    if len(operator.inputs) > 2 and operator.inputs[2] >= 0:
        stored = network.get_tensor(operator.inputs[2])
        if stored.dtype not in BIAS_TYPES:
            raise ValueError(f"a bias of type {stored.dtype}")
        bias = stored.data.astype(np.int64).ravel()
    if len(bias) != channels:
        raise ValueError(f"a bias of shape {bias.shape} for {channels} channels")
    largest = np.abs(bias.astype(np.float64))  # the lowest int64 has no absolute value
    if source.dtype != WIDE_TYPE:  # sums of 16-bit inputs have 64 bits, or wrap around
        largest = largest + 255 * np.abs(flat).sum(axis=1)
    if largest.max() >= 1 << 31:
        channel = int(largest.argmax())
        raise refuse(
            network,
            operator,
            f"has a bias of {bias[channel]} in channel {channel}: its sum overflows 32 bits",
            "that channel's weights are nearly zero; train it longer, or quantize with one scale a tensor",
        )
    if folded:
        bias = bias - source.zero_point * flat.sum(axis=1)
    low, high = compute_activation_range(output, int(operator.options.get("fusedActivationFunction", 0)))
    return (
        Field(f"{name}_range", "struct model_range", (source.zero_point, output.zero_point, low, high)),
        Field(f"{name}_bias", "int32_t", flatten_ints(bias)),
        Field(f"{name}_multiplier", "int32_t", tuple(m for m, _ in scales)),
        Field(f"{name}_shift", "int8_t", tuple(s for _, s in scales)),
    )


def has_wide_sums(network: QuantizedModel, operator: Operator) -> bool:
    """Return whether the sums of an operator with weights have 64 bits, as the type of the bias decides.

    Raises:
        ExportError: the bias has another type than TensorFlow Lite Micro reads.
    """
    if network.get_tensor(operator.inputs[0]).dtype != WIDE_TYPE:
        return False
    if len(operator.inputs) < 3 or operator.inputs[2] < 0:
        return int(operator.options.get("quantizedBiasType", 0)) != INT32_BIAS
    bias = network.get_tensor(operator.inputs[2])
    allowed = ("INT64",) if operator.name == "DEPTHWISE_CONV_2D" else ("INT32", "INT64")
    if bias.dtype not in allowed or bias.data is None:
        raise refuse(
            network,
            operator,
            f"has a bias of type {bias.dtype}, expected constants of {' or '.join(allowed)}",
            "convert the model again",
        )
    return bias.dtype == "INT64"


def compute_padding(size: int, out: int, kernel: int, stride: int, dilation: int, same: bool) -> int:
    """Return the number of padding rows or columns before the first one.

    Args:
        size: input size along the axis.
        out: output size along the axis.
        kernel: kernel size along the axis.
        stride: step of the kernel.
        dilation: distance between kernel elements.
        same: whether the padding is SAME. VALID has no padding.
    """
    return max(0, (out - 1) * stride + (kernel - 1) * dilation + 1 - size) // 2 if same else 0


def compute_lead(
    source: Sequence[int], output: Sequence[int], stride: Sequence[int], before: Sequence[int]
) -> int:
    """Return the values by which an output must begin before its input, so that both may share memory.

    The kernels compute one pixel after the other, in rows from the top, and read the input in the same order.
    The output may therefore overwrite the pixels of the input that no later pixel needs.

    Args:
        source: height, width and channels of the input.
        output: height, width and channels of the output.
        stride: vertical and horizontal distance between the inputs of neighbouring output pixels.
        before: padding rows above the input, and padding columns to its left.
    """
    height, width, channels = source
    rows, columns = (
        np.clip(np.arange(count) * step - padding, 0, size)
        for count, step, padding, size in zip(output[:2], stride, before, (height, width), strict=True)
    )
    first = channels * (rows[:, None] * width + columns)
    needed = np.minimum.accumulate(first.ravel()[::-1])[::-1]  # by this output pixel and all later ones
    written = output[2] * np.arange(1, needed.size + 1)
    return int((written - needed).max())


def check_output_size(
    size: Sequence[int],
    out: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    same: bool,
) -> None:
    """Check that the stored output of a convolution or pooling follows from its input.

    The C would read and write outside its buffers otherwise.

    Args:
        size: height and width of the input.
        out: height and width of the output.
        kernel: height and width of the kernel or window.
        stride: its vertical and horizontal step.
        dilation: vertical and horizontal distance between kernel elements.
        same: whether the padding is SAME.

    Raises:
        ValueError: a size does not follow.
    """
    for axis, (n, m, k, s, d) in enumerate(zip(size, out, kernel, stride, dilation, strict=True)):
        expected = -(-n // s) if same else -(-(n - (k - 1) * d) // s)
        if m != expected or m < 1:
            raise ValueError(f"the output has size {m} along axis {axis + 1}, expected {expected}")


def compute_geometry(
    operator: Operator,
    source: TfliteTensor,
    kernel: tuple[int, int],
    out: tuple[int, int, int],
    padding: tuple[tuple[int, int], tuple[int, int]] = NO_PADDING,
) -> tuple[int, ...]:
    """Return the values of GEOMETRY_FIELDS.

    Args:
        source: its input.
        kernel: height and width of the kernel.
        out: height, width and channels of the output.
        padding: padding beside the operator's own one, as in `PaddedInput`.

    Raises:
        ValueError: as in `check_output_size`.
    """
    options = operator.options
    stride = options["strideH"], options["strideW"]
    dilation = options.get("dilationHFactor", 1), options.get("dilationWFactor", 1)
    same = options["padding"] == 0
    size = [source.shape[i + 1] + sum(padding[i]) for i in (0, 1)]
    check_output_size(size, out[:2], kernel, stride, dilation, same)
    before = [
        padding[i][0] + compute_padding(size[i], out[i], kernel[i], stride[i], dilation[i], same)
        for i in (0, 1)
    ]
    return flatten_ints((*source.shape[1:], *out, *kernel, *stride, *dilation, *before))


def _name_geometry(values: Sequence[int]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return the members of `struct convolution` with these values of GEOMETRY_FIELDS."""
    return tuple((name, (value,)) for name, value in zip(GEOMETRY_FIELDS, values, strict=True))


def _list_constants(name: str) -> str:
    """Return the C expressions of a convolution's constants, in the order of the kernels' parameters."""
    return ", ".join(f"{{p}}->{name}_{suffix}" for suffix in ("bias", "multiplier", "shift", "weights"))


def is_full_convolution(network: QuantizedModel, operator: Operator) -> bool:
    """Return whether an operator is an int8 convolution in which each output depends on all input channels.

    A DEPTHWISE_CONV_2D of one input channel is one, too.
    """
    if operator.name not in ("CONV_2D", "DEPTHWISE_CONV_2D"):
        return False
    source = network.get_tensor(operator.inputs[0])
    channels = source.shape[-1:]
    if source.dtype == WIDE_TYPE:
        return False
    if operator.name == "CONV_2D":
        return channels == network.get_tensor(operator.inputs[1]).shape[-1:]
    return channels == (1,)


def build_convolution(
    network: QuantizedModel,
    operator: Operator,
    name: str,
    pool: Operator | None = None,
    padded: PaddedInput | None = None,
) -> list[Layer]:
    """Build the layer of a CONV_2D or DEPTHWISE_CONV_2D.

    Args:
        name: C identifier of the layer.
        pool: a MAX_POOL_2D to fuse. Its windows must be whole, and it must be the only reader of the output.
            None unless `is_full_convolution` holds.
        padded: the input before a PAD that the convolution does itself.

    Raises:
        ExportError: the channels are no groups of one size, or as in `make_channel_fields`.
    """
    source = network.get_tensor(operator.inputs[0]) if padded is None else padded.source
    padding = NO_PADDING if padded is None else padded.padding
    if source.dtype == WIDE_TYPE:
        return [_build_wide_convolution(network, operator, name, source, padding)]
    if is_full_convolution(network, operator):
        return [_build_conv_2d(network, operator, name, source, padding, pool)]
    if operator.name == "CONV_2D":
        return [_build_grouped_conv_2d(network, operator, name, source, padding)]
    return [_build_depthwise_conv_2d(network, operator, name, source, padding)]


def _describe_kernel(
    operator: Operator, size: tuple[int, int], padding: tuple[tuple[int, int], tuple[int, int]]
) -> str:
    """Return the height and width of a kernel, its strides and its padding, for the comment of a layer."""
    options = operator.options
    note = f"kernel {size[0]}x{size[1]}, stride {options['strideH']}x{options['strideW']}, "
    edges = "+".join(f"{before}/{after}" for before, after in padding)
    return (
        note
        + ("SAME", "VALID")[options["padding"]]
        + (f", padding {edges}" if any(map(any, padding)) else "")
    )


def _build_conv_2d(
    network: QuantizedModel,
    operator: Operator,
    name: str,
    source: TfliteTensor,
    padding: tuple[tuple[int, int], tuple[int, int]],
    pool: Operator | None,
) -> Layer:
    """Build the layer of a convolution for which `is_full_convolution` holds."""
    kernel = network.get_tensor(operator.inputs[1])
    output = network.get_tensor(operator.outputs[0])
    weights = np.moveaxis(kernel.data, 3, 0) if operator.name == "DEPTHWISE_CONV_2D" else kernel.data
    if len(weights) != output.shape[3]:
        raise ValueError(f"weights of {len(weights)} channels for {output.shape[3]} output channels")
    size = kernel.shape[1], kernel.shape[2]
    shape = compute_geometry(
        operator, source, size, (output.shape[1], output.shape[2], output.shape[3]), padding
    )
    rows = weights.reshape(len(weights), -1)
    padded = np.pad(rows, ((0, 0), (0, -rows.shape[1] % 4)))
    fields = (
        *make_channel_fields(network, operator, name, rows, folded=True),
        Field(f"{name}_weights", "int8_t", flatten_ints(padded)),
    )
    part = _list_constants(name)
    note = _describe_kernel(operator, size, padding)
    window = (1, 1)
    op = operator.name
    made = output
    pixels = output.size
    if pool is not None:
        window = (pool.options["filterHeight"], pool.options["filterWidth"])
        made = network.get_tensor(pool.outputs[0])
        op = f"{op} + MAX_POOL_2D"
        pixels = made.size * window[0] * window[1]
        note += f", pool {window[0]}x{window[1]}"
        low, high = compute_activation_range(made, int(pool.options["fusedActivationFunction"]))
        *zeros, least, most = fields[0].values
        fields = (
            Field(fields[0].name, fields[0].ctype, (*zeros, max(low, least), min(high, most))),
            *fields[1:],
        )
    length = padded.shape[1]
    contiguous = _is_contiguous(shape, length)
    arguments = (
        f"{window[0]}, {window[1]}, {length}, &{{p}}->{name}_range, {part}, {{a}}, {{out}}, {{scratch}}"
    )
    layer = Layer(
        name=name,
        op=op,
        inputs=(source.index,),
        output=made.index,
        kernels=("dsp", "limit", "products", "convolution", "run", "column", "conv_2d_by_pixel"),
        call=f"conv_2d_by_pixel(&{name}_shape, {arguments});",
        fields=fields,
        shape_type="struct convolution",
        shape=_name_geometry(shape),
        note=note,
        macs=pixels * rows.shape[1],
        scratch_bytes=0 if contiguous else length,
        lead_bytes=_compute_lead(shape, window),
    )
    faster = replace(
        layer,
        kernels=(*layer.kernels, "column_products", "conv_2d"),
        call=f"conv_2d(&{name}_shape, {arguments});",
        scratch_bytes=(2 * PIXELS_PER_STEP + (not contiguous)) * length,
        smaller=layer,
    )
    return loop_over_batch(faster, source, made)


def _compute_lead(shape: Sequence[int], window: tuple[int, int] = (1, 1)) -> int:
    """Return the bytes by which the output of a convolution must begin before its input.

    Args:
        shape: values of GEOMETRY_FIELDS.
        window: height and width of the windows of max pooling.
    """
    values = dict(zip(GEOMETRY_FIELDS, shape, strict=True))
    return compute_lead(
        shape[:3],
        (values["out_height"] // window[0], values["out_width"] // window[1], values["out_channels"]),
        (values["stride_height"] * window[0], values["stride_width"] * window[1]),
        (values["pad_top"], values["pad_left"]),
    )


def _is_contiguous(shape: Sequence[int], length: int) -> bool:
    """Return whether the inputs of each output pixel of a convolution are neighbours in its input.

    Args:
        shape: values of GEOMETRY_FIELDS.
        length: number of weights of a channel.
    """
    values = dict(zip(GEOMETRY_FIELDS, shape, strict=True))
    reach = (values["out_width"] - 1) * values["stride_width"] + values["kernel_width"]
    return (
        values["kernel_height"] == values["dilation_width"] == 1
        and values["kernel_width"] * values["in_channels"] == length
        and values["pad_top"] == values["pad_left"] == 0
        and (values["out_height"] - 1) * values["stride_height"] < values["in_height"]
        and reach <= values["in_width"]
    )


def _build_grouped_conv_2d(
    network: QuantizedModel,
    operator: Operator,
    name: str,
    source: TfliteTensor,
    padding: tuple[tuple[int, int], tuple[int, int]],
) -> Layer:
    """Build the layer of a CONV_2D whose kernel has fewer channels than the input."""
    kernel = network.get_tensor(operator.inputs[1])
    output = network.get_tensor(operator.outputs[0])
    groups = source.shape[3] // kernel.shape[3]
    if (
        groups * kernel.shape[3] != source.shape[3]
        or output.shape[3] % groups
        or kernel.shape[0] != output.shape[3]
    ):
        raise refuse(
            network,
            operator,
            f"has {source.shape[3]} input and {output.shape[3]} output channels for kernels of "
            f"{kernel.shape[3]} channels, expected groups of one size",
            "the model is damaged; export it again",
        )
    size = kernel.shape[1], kernel.shape[2]
    shape = compute_geometry(
        operator, source, size, (output.shape[1], output.shape[2], output.shape[3]), padding
    )
    rows = kernel.data.reshape(len(kernel.data), -1)
    padded = np.pad(rows, ((0, 0), (0, -rows.shape[1] % 4)))
    part = _list_constants(name)
    layer = Layer(
        name=name,
        op=operator.name,
        inputs=(source.index,),
        output=output.index,
        kernels=("dsp", "limit", "products", "convolution", "run", "column", "conv_2d_grouped"),
        call=f"conv_2d_grouped(&{name}_shape, {groups}, {padded.shape[1]}, &{{p}}->{name}_range, {part}, "
        "{a}, {out}, {scratch});",
        fields=(
            *make_channel_fields(network, operator, name, rows, folded=True),
            Field(f"{name}_weights", "int8_t", flatten_ints(padded)),
        ),
        shape_type="struct convolution",
        shape=_name_geometry(shape),
        note=f"{groups} groups, {_describe_kernel(operator, size, padding)}",
        macs=output.size * rows.shape[1],
        scratch_bytes=padded.shape[1],
    )
    return loop_over_batch(layer, source, output)


def _build_depthwise_conv_2d(
    network: QuantizedModel,
    operator: Operator,
    name: str,
    source: TfliteTensor,
    padding: tuple[tuple[int, int], tuple[int, int]],
) -> Layer:
    """Build the layer of a DEPTHWISE_CONV_2D, with weights of shape (1, height, width, channels), int8."""
    kernel = network.get_tensor(operator.inputs[1])
    output = network.get_tensor(operator.outputs[0])
    if output.shape[3] % source.shape[3] or kernel.shape[3] != output.shape[3]:
        raise ValueError(f"{output.shape[3]} output channels of {source.shape[3]} input channels")
    size = kernel.shape[1], kernel.shape[2]
    shape = compute_geometry(
        operator, source, size, (output.shape[1], output.shape[2], output.shape[3]), padding
    )
    fields = make_channel_fields(network, operator, name, np.moveaxis(kernel.data, 3, 0), folded=False)
    part = _list_constants(name)
    multiple = output.shape[3] // source.shape[3]
    layer = Layer(
        name=name,
        op=operator.name,
        inputs=(source.index,),
        output=output.index,
        kernels=("dsp", "limit", "convolution", "depthwise_conv_2d"),
        call=f"depthwise_conv_2d(&{name}_shape, {multiple}, &{{p}}->{name}_range, {part}, {{a}}, {{out}});",
        fields=(*fields, Field(f"{name}_weights", "int8_t", flatten_ints(kernel.data))),
        shape_type="struct convolution",
        shape=_name_geometry(shape),
        note=_describe_kernel(operator, size, padding),
        macs=output.size * kernel.shape[1] * kernel.shape[2],
        lead_bytes=_compute_lead(shape),
    )
    return loop_over_batch(layer, source, output)


def _build_wide_convolution(
    network: QuantizedModel,
    operator: Operator,
    name: str,
    source: TfliteTensor,
    padding: tuple[tuple[int, int], tuple[int, int]],
) -> Layer:
    """Build the layer of a CONV_2D, with or without groups, or DEPTHWISE_CONV_2D of 16-bit activations."""
    kernel = network.get_tensor(operator.inputs[1])
    output = network.get_tensor(operator.outputs[0])
    is_depthwise = operator.name == "DEPTHWISE_CONV_2D"
    channels, outputs = source.shape[3], output.shape[3]
    groups = channels if is_depthwise else channels // kernel.shape[3]
    if (
        kernel.shape[3 if is_depthwise else 0] != outputs
        or outputs % groups
        or (not is_depthwise and groups * kernel.shape[3] != channels)
    ):
        raise ValueError(f"weights of shape {kernel.shape} between {channels} and {outputs} channels")
    size = kernel.shape[1], kernel.shape[2]
    shape = compute_geometry(operator, source, size, (output.shape[1], output.shape[2], outputs), padding)
    weights = np.moveaxis(kernel.data, 3, 0) if is_depthwise else kernel.data
    part = _list_constants(name)
    call = f"(&{name}_shape, {groups}, {int(has_wide_sums(network, operator))}, &{{p}}->{name}_range, {part}"
    kernel_name = f"{operator.name.lower()}_16"
    is_pointwise = groups == size[0] * size[1] == 1 and not any(shape[-2:])
    layer = Layer(
        name=name,
        op=operator.name,
        inputs=(source.index,),
        output=output.index,
        kernels=(
            "convolution",
            "sixteen_bits",
            "output_16",
            "inside" if is_depthwise else "products_16",
            kernel_name,
        ),
        call=f"{kernel_name}{call}, {{a}}, {{out}}{'' if is_depthwise else ', {scratch}'});",
        fields=(
            *make_channel_fields(network, operator, name, weights, folded=False),
            Field(f"{name}_weights", "int8_t", flatten_ints(kernel.data)),
        ),
        shape_type="struct convolution",
        shape=_name_geometry(shape),
        note=_describe_kernel(operator, size, padding),
        macs=output.size * weights[0].size,
        scratch_bytes=0 if is_depthwise or is_pointwise else source.element_bytes * weights[0].size,
    )
    return loop_over_batch(layer, source, output)


def build_transpose_conv(network: QuantizedModel, operator: Operator, name: str) -> list[Layer]:
    """Build the layer of a TRANSPOSE_CONV, with weights of shape (outputs, height, width, inputs), int8.

    Args:
        operator: the operator. Its inputs are the output's shape, the weights, the activation and the bias.
        name: C identifier of the layer.

    Raises:
        ExportError: the shape of the output is computed, or as in `make_channel_fields`.
    """
    shape_tensor, kernel, source = (network.get_tensor(i) for i in operator.inputs[:3])
    output = network.get_tensor(operator.outputs[0])
    if shape_tensor.data is None:
        raise refuse(network, operator, "has a computed shape", "convert the model with a fixed batch of 1")
    if kernel.shape[3] != source.shape[3] or kernel.shape[0] != output.shape[3]:
        raise ValueError(f"weights of shape {kernel.shape} between {source.shape[3]} and {output.shape[3]}")
    options = operator.options
    stride = options["strideH"], options["strideW"]
    size = kernel.shape[1:3]
    same = options["padding"] == 0
    check_output_size(output.shape[1:3], source.shape[1:3], size, stride, (1, 1), same)
    before = [
        compute_padding(output.shape[i + 1], source.shape[i + 1], size[i], stride[i], 1, same) for i in (0, 1)
    ]
    shape = flatten_ints((*source.shape[1:], *output.shape[1:], *size, *stride, 1, 1, *before))
    plain = replace(operator, inputs=(source.index, kernel.index, *operator.inputs[3:]))
    fields = make_channel_fields(network, plain, name, kernel.data, folded=False)
    part = _list_constants(name)
    layer = Layer(
        name=name,
        op=operator.name,
        inputs=(source.index,),
        output=output.index,
        kernels=("convolution", "transpose_conv"),
        call=f"transpose_conv(&{name}_shape, &{{p}}->{name}_range, {part}, {{a}}, {{out}});",
        fields=(*fields, Field(f"{name}_weights", "int8_t", flatten_ints(kernel.data))),
        shape_type="struct convolution",
        shape=_name_geometry(shape),
        note=f"kernel {size[0]}x{size[1]}, stride {stride[0]}x{stride[1]}, {'SAME' if same else 'VALID'}",
        macs=source.size * kernel.shape[0] * size[0] * size[1],
    )
    return [loop_over_batch(layer, source, output)]

"""Builds layers without weights: tables, softmax, pooling, arithmetic, reductions and bilinear resize."""

from collections.abc import Sequence

import numpy as np

from edgefl.base.errors import ExportError
from edgefl.program.plan.tflite import Operator, TfliteTensor
from firmware_export.codegen.c_convolution import check_output_size, compute_lead, compute_padding
from firmware_export.codegen.fixed_point import compute_input_radius, quantize_multiplier
from firmware_export.codegen.layer import (
    VALUE_RANGES,
    WIDE_SUFFIX,
    WIDE_TYPE,
    Field,
    Layer,
    check_output_shape,
    compute_activation_range,
    flatten_ints,
    loop_over_batch,
    make_unary_layer,
    refuse,
)
from firmware_export.codegen.lookup_tables import build_lookup_table
from firmware_export.tflite.quantized_model import QuantizedModel

EXTRA_BITS = {"INT8": 20, WIDE_TYPE: 15}
"""Bits by which both sides of a sum are shifted to the left before they are rescaled, by their type."""
SOFTMAX_TOLERANCE = 1e-3
"""Relative error of the scale of a SOFTMAX of 16 bits. Its output is computed as if there were none."""
MAX_MEAN_ELEMENTS = (1 << 16) - 1
"""Values of 16 bits whose sum fits into 32 bits."""
POOL_FIELDS = (
    "in_height",
    "in_width",
    "channels",
    "out_height",
    "out_width",
    "pool_height",
    "pool_width",
    "stride_height",
    "stride_width",
    "pad_top",
    "pad_left",
)


def build_lookup(network: QuantizedModel, operator: Operator, name: str) -> list[Layer]:
    """Build the table of one of LOOKUP_OPERATORS.

    Args:
        name: C identifier of the layer.

    Raises:
        ExportError: as in `build_lookup_table`.
    """
    source = operator.inputs[0]
    output = operator.outputs[0]
    check_output_shape(network, operator, network.get_tensor(source).shape)
    table = Field(f"{name}_table", "int8_t", tuple(build_lookup_table(network, operator)))
    call = f"lookup({network.get_tensor(output).size}, {{p}}->{name}_table, {{a}}, {{out}});"
    return [make_unary_layer(operator, name, ("lookup",), call, (table,))]


def build_softmax(network: QuantizedModel, operator: Operator, name: str) -> list[Layer]:
    """Build the layer of a SOFTMAX over the last axis, from int8 to 8 or 16 bits.

    Args:
        name: C identifier of the layer.

    Raises:
        ExportError: the output's values do not begin at 0, its scale does not end them at 1, or the input's
            scale is nearly zero.
    """
    source = network.get_tensor(operator.inputs[0])
    output = network.get_tensor(operator.outputs[0])
    least, most = VALUE_RANGES[output.dtype]
    tolerance = SOFTMAX_TOLERANCE if output.dtype == WIDE_TYPE else 0
    if output.zero_point != least or abs(float(output.scale[0]) * (most - least + 1) - 1) > tolerance:
        raise refuse(
            network,
            operator,
            f"has scale {output.scale[0]} and zero point {output.zero_point}, expected 1/{most - least + 1} "
            f"and {least}",
            "export the model again",
        )
    real = min(float(operator.options["beta"]) * float(source.scale[0]) * (1 << 26), float((1 << 31) - 1))
    if real <= 1:
        raise refuse(
            network, operator, "has an input whose scale is nearly zero", "calibrate with other samples"
        )
    multiplier, shift = quantize_multiplier(real)
    scale = Field(
        f"{name}_scale", "struct model_softmax", (multiplier, shift, -compute_input_radius(5, shift))
    )
    classes = source.shape[-1]
    check_output_shape(network, operator, source.shape)
    wide = int(output.dtype == WIDE_TYPE)
    call = f"softmax({source.size // classes}, {classes}, {wide}, &{{p}}->{name}_scale, {{a}}, {{out}});"
    return [make_unary_layer(operator, name, ("sixteen_bits", "softmax"), call, (scale,))]


def build_pool(network: QuantizedModel, operator: Operator, name: str) -> list[Layer]:
    """Build the layer of a MAX_POOL_2D or AVERAGE_POOL_2D.

    Args:
        name: C identifier of the layer.

    Raises:
        ExportError: as in `compute_activation_range`.
    """
    source = network.get_tensor(operator.inputs[0])
    output = network.get_tensor(operator.outputs[0])
    options = operator.options
    window = (options["filterHeight"], options["filterWidth"])
    stride = (options["strideH"], options["strideW"])
    check_output_size(source.shape[1:3], output.shape[1:3], window, stride, (1, 1), options["padding"] == 0)
    before = [
        compute_padding(
            source.shape[i + 1], output.shape[i + 1], window[i], stride[i], 1, options["padding"] == 0
        )
        for i in (0, 1)
    ]
    values = (*source.shape[1:], *output.shape[1:3], *window, *stride, *before)
    low, high = compute_activation_range(output, int(options["fusedActivationFunction"]))
    kernel = _choose_kernel(operator.name.lower(), output)
    if source.shape[3] != output.shape[3]:
        raise ValueError(f"{source.shape[3]} channels give {output.shape[3]}")
    zeros = source.zero_point, output.zero_point
    layer = Layer(
        name=name,
        op=operator.name,
        inputs=(source.index,),
        output=output.index,
        kernels=_list_kernels(
            kernel, "pool", of_int8=("sums",) if operator.name == "AVERAGE_POOL_2D" else ()
        ),
        call=f"{kernel}(&{name}_shape, &{{p}}->{name}_range, {{a}}, {{out}});",
        fields=(Field(f"{name}_range", "struct model_range", (*zeros, low, high)),),
        shape_type="struct pool",
        shape=tuple((key, (int(value),)) for key, value in zip(POOL_FIELDS, values, strict=True)),
        note=f"window {window[0]}x{window[1]}, stride {stride[0]}x{stride[1]}",
        lead_bytes=compute_lead(source.shape[1:], output.shape[1:], stride, before)
        * (output.bytes // output.size),
    )
    return [loop_over_batch(layer, source, output)]


def _list_kernels(kernel: str, *shared: str, of_int8: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the templates of a kernel that exists for 8 and for 16 bits.

    Args:
        shared: templates that both need.
        of_int8: templates that only the kernel for 8 bits needs.
    """
    return (*(("sixteen_bits",) if kernel.endswith(WIDE_SUFFIX) else of_int8), *shared, kernel)


def _choose_kernel(name: str, output: TfliteTensor) -> str:
    """Return the name of a kernel for the type of its output."""
    return name + (WIDE_SUFFIX if output.dtype == WIDE_TYPE else "")


def merge_loops(
    network: QuantizedModel, operator: Operator, shapes: Sequence[tuple[int, ...]]
) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return the counts and steps of four loops over two broadcast shapes.

    Neighbouring axes that step alike become one loop.

    Args:
        network: the model, for the error.
        operator: the operator, for the error.
        shapes: shapes of the left and the right operand.

    Returns:
        The members `count`, `step_a` and `step_b`, each with one value per loop, the outermost loop first. A
            step counts elements. It is 0 where the operand is broadcast.

    Raises:
        ExportError: the shapes need more than four loops.
        ValueError: the shapes cannot be broadcast.
    """
    out = np.broadcast_shapes(*shapes)
    steps = []
    for shape in shapes:
        padded = (1,) * (len(out) - len(shape)) + shape
        strides = np.cumprod((1, *padded[:0:-1]))[::-1]
        steps.append([0 if n == 1 else int(s) for n, s in zip(padded, strides, strict=True)])
    merged: list[list[int]] = []
    for count, *step in zip(out, *steps, strict=True):
        if count == 1:
            continue
        if merged and all(
            before == current * count for before, current in zip(merged[-1][1:], step, strict=True)
        ):
            merged[-1] = [merged[-1][0] * count, *step]
        else:
            merged.append([int(count), *step])
    if len(merged) > 4:
        raise refuse(
            network,
            operator,
            f"broadcasts {shapes[0]} against {shapes[1]}",
            "reshape to at most four axes before it",
        )
    merged = [[1, 0, 0]] * (4 - len(merged)) + merged
    return tuple(
        (key, tuple(row[i] for row in merged)) for i, key in enumerate(("count", "step_a", "step_b"))
    )


def _collect_operands(
    network: QuantizedModel, operator: Operator, name: str
) -> tuple[tuple[int, ...], list[str], tuple[Field, ...]]:
    """Return the activations, the C expressions of both sides, and the constant side as a field."""
    inputs: list[int] = []
    text: list[str] = []
    fields: list[Field] = []
    for index in operator.inputs[:2]:
        tensor = network.get_tensor(index)
        if tensor.dtype != network.get_tensor(operator.outputs[0]).dtype:
            raise refuse(
                network,
                operator,
                f"has an operand of {tensor.dtype}, expected {network.get_tensor(operator.outputs[0]).dtype}",
                "quantize both operands alike",
            )
        if tensor.data is None:
            text.append("{" + "ab"[len(inputs)] + "}")
            inputs.append(index)
        else:
            text.append(f"{{p}}->{name}_constant")
            ctype = "int16_t" if tensor.dtype == WIDE_TYPE else "int8_t"
            text[-1] = f"(const int8_t *){text[-1]}" if tensor.dtype == WIDE_TYPE else text[-1]
            fields.append(Field(f"{name}_constant", ctype, flatten_ints(tensor.data)))
    if not inputs:
        raise refuse(network, operator, "has only constants as inputs", "fold it before the export")
    return tuple(inputs), text, tuple(fields)


def _list_overwritable(
    network: QuantizedModel, inputs: tuple[int, ...], output: TfliteTensor
) -> tuple[int, ...]:
    return tuple(i for i in inputs if network.get_tensor(i).size == output.size)


def _make_add_scale(network: QuantizedModel, operator: Operator) -> tuple[int, ...]:
    """Return the values of `struct model_add`.

    Both sides are rescaled to twice the wider scale, with extra bits. The factor of the wider one is 1/2,
    which has no shift to the right. It gets one more extra bit instead. Both ways are exact.
    """
    a, b = (network.get_tensor(i) for i in operator.inputs[:2])
    output = network.get_tensor(operator.outputs[0])
    bits = EXTRA_BITS[output.dtype]
    widest = 2 * float(max(a.scale[0], b.scale[0]))
    last = quantize_multiplier(widest / ((1 << bits) * float(output.scale[0])))
    if last[0] and last[1] >= 0:
        raise refuse(
            network,
            operator,
            "has an output whose scale is nearly zero compared with its inputs' scales",
            "calibrate with other samples",
        )
    scales = [quantize_multiplier(float(tensor.scale[0]) / widest) for tensor in (a, b)]
    extra = [(bits, *scale) if scale[1] else (bits + 1, scale[0], -1) for scale in scales]
    low, high = compute_activation_range(output, int(operator.options.get("fusedActivationFunction", 0)))
    sign = 1 if operator.name == "ADD" else -1
    return (
        a.zero_point,
        *extra[0],
        b.zero_point,
        *extra[1],
        sign,
        last[0],
        min(last[1], -1),
        output.zero_point,
        low,
        high,
    )


def build_binary(network: QuantizedModel, operator: Operator, name: str) -> list[Layer]:
    """Build the layer of an ADD, SUB, MUL, MAXIMUM or MINIMUM, with broadcasting.

    Args:
        name: C identifier of the layer.

    Raises:
        ExportError: both operands are constants, their scales do not fit, or as in `merge_loops` or
            `compute_activation_range`.
    """
    a, b = (network.get_tensor(i) for i in operator.inputs[:2])
    output = network.get_tensor(operator.outputs[0])
    inputs, (left, right), fields = _collect_operands(network, operator, name)
    shape = merge_loops(network, operator, (a.shape, b.shape))
    check_output_shape(network, operator, np.broadcast_shapes(a.shape, b.shape))
    if operator.name in ("MAXIMUM", "MINIMUM"):
        if not all(t.scale[0] == output.scale[0] and t.zero_point == output.zero_point for t in (a, b)):
            raise refuse(network, operator, "has inputs of different scales", "export the model again")
        kernel = "select"
        arguments = f"select_larger(&{name}_shape, {1 if operator.name == 'MAXIMUM' else -1}"
    elif operator.name == "MUL":
        product = float(a.scale[0]) * float(b.scale[0]) / float(output.scale[0])
        low, high = compute_activation_range(output, int(operator.options.get("fusedActivationFunction", 0)))
        values = (a.zero_point, b.zero_point, *quantize_multiplier(product), output.zero_point, low, high)
        fields = (Field(f"{name}_scale", "struct model_mul", values), *fields)
        kernel = _choose_kernel("mul", output)
        arguments = f"{kernel}(&{name}_shape, &{{p}}->{name}_scale"
    else:
        fields = (Field(f"{name}_scale", "struct model_add", _make_add_scale(network, operator)), *fields)
        kernel = _choose_kernel("add", output)
        arguments = f"{kernel}(&{name}_shape, &{{p}}->{name}_scale"
    return [
        Layer(
            name=name,
            op=operator.name,
            inputs=inputs,
            output=output.index,
            kernels=_list_kernels(kernel, "elementwise"),
            call=f"{arguments}, {left}, {right}, {{out}});",
            fields=fields,
            shape_type="struct elementwise",
            shape=shape,
            overwritable=_list_overwritable(network, inputs, output),
        )
    ]


def build_prelu(network: QuantizedModel, operator: Operator, name: str) -> list[Layer]:
    """Build the layer of a PRELU, with broadcasting of the slopes.

    Args:
        operator: the operator. Its inputs are the activation and the slopes.
        name: C identifier of the layer.

    Raises:
        ExportError: the output has a wrong shape, or as in `merge_loops` or `quantize_multiplier`.
    """
    source, slopes = (network.get_tensor(i) for i in operator.inputs[:2])
    output = network.get_tensor(operator.outputs[0])
    inputs, (left, right), fields = _collect_operands(network, operator, name)
    shape = merge_loops(network, operator, (source.shape, slopes.shape))
    check_output_shape(network, operator, np.broadcast_shapes(source.shape, slopes.shape))
    above = float(source.scale[0]) / float(output.scale[0])
    below = float(source.scale[0]) * float(slopes.scale[0]) / float(output.scale[0])
    values = (
        source.zero_point,
        0,
        *quantize_multiplier(above),
        slopes.zero_point,
        0,
        *quantize_multiplier(below),
        1,
        0,
        0,
        output.zero_point,
        -128,
        127,
    )
    return [
        Layer(
            name=name,
            op=operator.name,
            inputs=inputs,
            output=output.index,
            kernels=("elementwise", "prelu"),
            call=f"prelu(&{name}_shape, &{{p}}->{name}_scale, {left}, {right}, {{out}});",
            fields=(Field(f"{name}_scale", "struct model_add", values), *fields),
            shape_type="struct elementwise",
            shape=shape,
            overwritable=_list_overwritable(network, inputs, output),
        )
    ]


def _find_reduced_runs(network: QuantizedModel, operator: Operator) -> list[int]:
    """Return the elements of each run of neighbouring axes, kept and reduced in turn, a kept run first."""
    source = network.get_tensor(operator.inputs[0])
    axes = {int(axis) % len(source.shape) for axis in network.get_tensor(operator.inputs[1]).data.ravel()}
    check_output_shape(network, operator, [1 if i in axes else n for i, n in enumerate(source.shape)])
    runs: list[list[int]] = []  # [is reduced, elements]
    for axis, count in enumerate(source.shape):
        if count == 1:
            continue
        if runs and runs[-1][0] == (axis in axes):
            runs[-1][1] *= count
        else:
            runs.append([axis in axes, count])
    if runs and runs[0][0]:
        runs.insert(0, [0, 1])
    return [count for _, count in runs]


def _refuse_axes(network: QuantizedModel, operator: Operator) -> ExportError:
    source = network.get_tensor(operator.inputs[0])
    axes = {int(axis) % len(source.shape) for axis in network.get_tensor(operator.inputs[1]).data.ravel()}
    return refuse(
        network, operator, f"reduces the axes {sorted(axes)} of {source.shape}", "reduce neighbouring axes"
    )


def build_mean(network: QuantizedModel, operator: Operator, name: str) -> list[Layer]:
    """Build the layer of a MEAN.

    Args:
        name: C identifier of the layer.

    Raises:
        ExportError: the reduced axes are more than two runs of neighbours, or as in `quantize_multiplier`.
    """
    source = network.get_tensor(operator.inputs[0])
    output = network.get_tensor(operator.outputs[0])
    runs = _find_reduced_runs(network, operator)
    counts = runs + [1] * (5 - len(runs))
    if len(counts) > 5:
        raise _refuse_axes(network, operator)
    elements = counts[1] * counts[3]
    if output.dtype == WIDE_TYPE and elements > MAX_MEAN_ELEMENTS:
        raise refuse(
            network,
            operator,
            f"averages {elements} values, expected at most {MAX_MEAN_ELEMENTS}",
            "pool before it",
        )
    multiplier, shift = quantize_multiplier(float(source.scale[0]) / float(output.scale[0]))
    extra_bits = min(elements.bit_length() - 1, 32, 31 + shift)
    values = (
        source.zero_point,
        0,
        (multiplier << extra_bits) // elements,
        shift - extra_bits,
        output.zero_point,
        *VALUE_RANGES[output.dtype],
    )
    kernel = _choose_kernel("mean", output)
    return [
        Layer(
            name=name,
            op=operator.name,
            inputs=(source.index,),
            output=output.index,
            kernels=_list_kernels(kernel, "reduction", of_int8=("sums",)),
            call=f"{kernel}(&{name}_shape, &{{p}}->{name}_scale, {{a}}, {{out}});",
            fields=(Field(f"{name}_scale", "struct model_mul", values),),
            shape_type="struct mean",
            shape=tuple(
                zip(("a", "reduced_outer", "b", "reduced_inner", "c"), ((n,) for n in counts), strict=True)
            ),
        )
    ]


def build_reduce_max(network: QuantizedModel, operator: Operator, name: str) -> list[Layer]:
    """Build the layer of a REDUCE_MAX, a max pooling with a window over the reduced axes.

    Args:
        name: C identifier of the layer.

    Raises:
        ExportError: the reduced axes are not neighbours, or the output has another scale or zero point than
            the input.
    """
    source = network.get_tensor(operator.inputs[0])
    output = network.get_tensor(operator.outputs[0])
    if source.scale[0] != output.scale[0] or source.zero_point != output.zero_point:
        raise refuse(network, operator, "has an output of another scale", "export the model again")
    runs = _find_reduced_runs(network, operator)
    if len(runs) > 3:
        raise _refuse_axes(network, operator)
    rows, reduced, channels = runs + [1] * (3 - len(runs))
    values = (rows, reduced, channels, rows, 1, 1, reduced, 1, reduced, 0, 0)
    zeros = source.zero_point, output.zero_point
    return [
        Layer(
            name=name,
            op=operator.name,
            inputs=(source.index,),
            output=output.index,
            kernels=("pool", "max_pool_2d"),
            call=f"max_pool_2d(&{name}_shape, &{{p}}->{name}_range, {{a}}, {{out}});",
            fields=(Field(f"{name}_range", "struct model_range", (*zeros, -128, 127)),),
            shape_type="struct pool",
            shape=tuple((key, (int(value),)) for key, value in zip(POOL_FIELDS, values, strict=True)),
            note=f"over {reduced}",
        )
    ]


def build_resize_bilinear(network: QuantizedModel, operator: Operator, name: str) -> list[Layer]:
    """Build the layer of a RESIZE_BILINEAR.

    Args:
        name: C identifier of the layer.

    Raises:
        ExportError: the output has a wrong shape or another scale, or the interpreter's rounding of the
            factor would leave the input.
    """
    source = network.get_tensor(operator.inputs[0])
    output = network.get_tensor(operator.outputs[0])
    check_output_shape(network, operator, (source.shape[0], *output.shape[1:3], source.shape[3]))
    steps = []
    for size, out in zip(source.shape[1:3], output.shape[1:3], strict=True):
        spread, count = (
            (size - 1, out - 1) if operator.options.get("alignCorners") and out > 1 else (size, out)
        )
        step = ((spread << 10) + count // 2) // count
        half = step // 2 - 512 if operator.options.get("halfPixelCenters") else 0
        if ((out - 1) * step + half) >> 10 >= size:
            raise refuse(network, operator, f"resizes {size} to {out}", "resize by a smaller factor")
        steps.append(step)
    values = (*source.shape[1:], *output.shape[1:3], *steps, operator.options.get("halfPixelCenters", False))
    fields = ("in_height", "in_width", "channels", "out_height", "out_width", "step_height", "step_width")
    layer = Layer(
        name=name,
        op=operator.name,
        inputs=(source.index,),
        output=output.index,
        kernels=("resize_bilinear",),
        call=f"resize_bilinear(&{name}_shape, {{a}}, {{out}});",
        fields=(),
        shape_type="struct resize",
        shape=tuple((key, (int(value),)) for key, value in zip((*fields, "half_pixel"), values, strict=True)),
    )
    return [loop_over_batch(layer, source, output)]

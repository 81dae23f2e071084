"""Builds layers that only move values.

A view needs no copy. Pad, concatenate, transpose, slice, broadcast and resize copy between layouts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgefl.program.plan.tflite import Operator, TfliteTensor
from firmware_export.codegen.layer import Layer, check_output_shape, refuse
from firmware_export.tflite.quantized_model import QuantizedModel

RESHAPE_OPERATORS = ("RESHAPE", "SQUEEZE", "EXPAND_DIMS")
SLICE_OPERATORS = ("STRIDED_SLICE", "SLICE", "SPLIT", "SPLIT_V", "UNPACK")
SPLIT_INPUTS = "SPLIT_INPUTS"
"""Name of an operator whose outputs are the inputs of the model, one after another in its input."""
JOINED_OUTPUTS = "JOINED_OUTPUTS"
"""Name of an operator whose output has the outputs of the model one after another."""
MOVING_OPERATORS = (*RESHAPE_OPERATORS, *SLICE_OPERATORS, "QUANTIZE", "PAD", "PADV2")
"""Operators whose output may be read from the bytes of their input."""


@dataclass(frozen=True)
class TensorView:
    """A tensor whose values lie inside another tensor.

    Attributes:
        base: index of the other tensor.
        offset: offset of the first value in it, in bytes.
        stride: in a loop over steps, distance of the first value from step to step, in bytes.
    """

    base: int
    offset: int
    stride: int = 0


def find_views(network: QuantizedModel) -> dict[int, TensorView]:
    """Return the tensors that need no copy: reshaped tensors, variables, and slices with contiguous values.

    The quantizer puts a QUANTIZE before a PACK, even if both scales are equal. Such a QUANTIZE needs no copy.

    Raises:
        ExportError: the positions of a slice are computed, it has an ellipsis or a new axis, or an output has
            another size than its input or positions give.
    """
    views: dict[int, TensorView] = {}
    for operator in network.operators:
        if operator.name in RESHAPE_OPERATORS:
            source_size = network.get_tensor(operator.inputs[0]).size
            output_size = network.get_tensor(operator.outputs[0]).size
            if source_size != output_size:
                raise refuse(
                    network,
                    operator,
                    f"makes {output_size} values of {source_size}",
                    "the model is damaged; export it again",
                )
            starts = [0]
        elif operator.name in SLICE_OPERATORS:
            layouts = [_make_slice_layout(network, operator, i) for i in range(len(operator.outputs))]
            if not all(_is_contiguous(layout) for layout in layouts):
                continue
            starts = [start for start, _, _ in layouts]
        elif operator.name == SPLIT_INPUTS:
            sizes = [network.get_tensor(output).size for output in operator.outputs]
            starts = [sum(sizes[:i]) for i in range(len(sizes))]
        elif (operator.name == "QUANTIZE" and _is_copy_for_pack(network, operator)) or (
            operator.name == "READ_VARIABLE" and _is_read_before_assigned(network, operator)
        ):
            starts = [0]
        else:
            continue
        source = operator.inputs[1] if operator.name == "SPLIT" else operator.inputs[0]
        base = views.get(source, TensorView(source, 0))
        width = network.get_tensor(source).element_bytes
        for output, start in zip(operator.outputs, starts, strict=True):
            views[output] = TensorView(base.base, base.offset + start * width)
    return views


def _is_copy_for_pack(network: QuantizedModel, operator: Operator) -> bool:
    source, output = (network.get_tensor(i) for i in (operator.inputs[0], operator.outputs[0]))
    same = (
        source.dtype == output.dtype
        and source.zero_point == output.zero_point
        and np.array_equal(source.scale, output.scale)
    )
    return same and {o.name for o in network.operators if output.index in o.inputs} == {"PACK"}


def _is_read_before_assigned(network: QuantizedModel, read: Operator) -> bool:
    """Return whether nothing reads the result of a READ_VARIABLE after the variable gets its next value."""
    position = last = network.operators.index(read)
    values = {read.outputs[0]}
    for number, operator in enumerate(network.operators[position + 1 :], position + 1):
        if values & set(operator.inputs):
            last = number
            if operator.name in MOVING_OPERATORS:  # its output may be a view, too
                values |= set(operator.outputs)
    is_assigned = any(
        operator.name == "ASSIGN_VARIABLE" and operator.outputs == read.inputs
        for operator in network.operators[position:last]
    )
    return not is_assigned and not values & set(network.outputs)


Layout = tuple[int, tuple[int, ...], tuple[int, ...]]
"""First element, and the counts and steps of the axes."""


def _compute_strides(shape: Sequence[int]) -> list[int]:
    return [int(s) for s in np.cumprod((1, *shape[:0:-1]))[::-1]] if shape else []


def _is_contiguous(layout: Layout) -> bool:
    _, counts, steps = layout
    expected = 1
    for count, step in zip(reversed(counts), reversed(steps), strict=True):
        if count > 1:
            if step != expected:
                return False
            expected *= count
    return True


def _read_constant(network: QuantizedModel, operator: Operator, index: int) -> Any:
    data = network.get_tensor(operator.inputs[index]).data
    if data is None:
        raise refuse(network, operator, "has computed positions", "fix the shapes in the model")
    return data.ravel()


def _make_slice_layout(network: QuantizedModel, operator: Operator, which: int) -> Layout:
    """Return the elements of one output of a slice, after a check of its stored shape."""
    source = network.get_tensor(operator.inputs[1] if operator.name == "SPLIT" else operator.inputs[0])
    if operator.name in ("SPLIT", "SPLIT_V", "UNPACK"):
        begins, counts = _find_share(network, operator, source, which)
        steps = [1] * len(begins)
    elif operator.name == "SLICE":
        begins = [int(v) for v in _read_constant(network, operator, 1)]
        sizes = [int(v) for v in _read_constant(network, operator, 2)]
        counts = [
            n - b if size == -1 else size for n, b, size in zip(source.shape, begins, sizes, strict=True)
        ]
        steps = [1] * len(begins)
    else:
        begins, counts, steps = _find_strided_slice(network, operator, source)
    check_output_shape(network, operator, counts, which)
    if not _fits(source.shape, begins, steps, counts):
        raise refuse(
            network,
            operator,
            f"begins at {tuple(begins)} of an input of shape {source.shape}",
            "the model is damaged; export it again",
        )
    return _make_layout(source, begins, steps, counts)


def _fits(shape: Sequence[int], begin: Sequence[int], step: Sequence[int], counts: Sequence[int]) -> bool:
    """Return whether a part of a tensor lies inside it."""
    return all(
        0 <= b < size and 0 <= b + s * (count - 1) < size
        for size, b, s, count in zip(shape, begin, step, counts, strict=True)
    )


def _find_share(
    network: QuantizedModel, operator: Operator, source: TfliteTensor, which: int
) -> tuple[list[int], list[int]]:
    """Return the first positions and the counts of one output of a SPLIT, SPLIT_V or UNPACK."""
    if operator.name == "UNPACK":
        axis = int(operator.options["axis"]) % len(source.shape)
        sizes = [1] * len(operator.outputs)
    elif operator.name == "SPLIT":
        axis = int(_read_constant(network, operator, 0)[0]) % len(source.shape)
        sizes = [source.shape[axis] // len(operator.outputs)] * len(operator.outputs)
    else:
        axis = int(_read_constant(network, operator, 2)[0]) % len(source.shape)
        sizes = [int(v) for v in _read_constant(network, operator, 1)]
        sizes = [source.shape[axis] - sum(v for v in sizes if v >= 0) if v < 0 else v for v in sizes]
    begins = [0] * len(source.shape)
    begins[axis] = sum(sizes[:which])
    counts = list(source.shape)
    counts[axis] = sizes[which]
    return begins, counts


def _find_strided_slice(
    network: QuantizedModel, operator: Operator, source: TfliteTensor
) -> tuple[list[int], list[int], list[int]]:
    """Return the first positions, the counts and the steps of a STRIDED_SLICE."""
    options = operator.options
    if options.get("ellipsisMask") or options.get("newAxisMask"):
        raise refuse(network, operator, "has an ellipsis or a new axis", "index each axis")
    begin, end, step = ([int(v) for v in _read_constant(network, operator, i)] for i in (1, 2, 3))
    begins = []
    counts = []
    for axis, size in enumerate(source.shape):
        whole = slice(
            None if options["beginMask"] >> axis & 1 else begin[axis],
            None if options["endMask"] >> axis & 1 else end[axis],
            step[axis],
        )
        if options["shrinkAxisMask"] >> axis & 1:
            first = begin[axis] % size
            whole = slice(first, first + 1, 1)
        chosen = range(*whole.indices(size))
        begins.append(chosen.start)
        counts.append(len(chosen))
    return begins, counts, step


def _make_layout(
    source: TfliteTensor, begin: Sequence[int], step: Sequence[int], counts: Sequence[int]
) -> Layout:
    strides = _compute_strides(source.shape)
    start = sum(b * s for b, s in zip(begin, strides, strict=True))
    return start, tuple(counts), tuple(a * s for a, s in zip(step, strides, strict=True))


def build_copy_layer(
    network: QuantizedModel,
    operator: Operator,
    name: str,
    source: int,
    output: int,
    inward: Layout,
    outward: Layout,
) -> Layer:
    """Build a layer that copies elements of the source to elements of the output.

    Neighbouring axes that step alike become one loop. The bytes of an element are one more axis.

    Args:
        name: C identifier of the layer.
        source: index of the source tensor.
        output: index of the output tensor.
        inward: elements to read.
        outward: elements to write.

    Raises:
        ExportError: the copy needs more than four loops.
    """
    width = network.get_tensor(source).element_bytes
    merged: list[tuple[int, int, int]] = []
    steps = [
        (count, step_in * width, step_out * width)
        for count, step_in, step_out in zip(inward[1], inward[2], outward[2], strict=True)
    ]
    for count, step_in, step_out in (*steps, (width, 1, 1)):
        if count == 1:
            continue
        if merged and merged[-1][1:] == (step_in * count, step_out * count):
            merged[-1] = (merged[-1][0] * count, step_in, step_out)
        else:
            merged.append((count, step_in, step_out))
    if len(merged) > 4:
        raise refuse(
            network,
            operator,
            f"moves values over {len(merged)} axes",
            "reshape to at most four axes before it",
        )
    merged = [(1, 0, 0)] * (4 - len(merged)) + merged
    shape = tuple(
        (key, tuple(row[i] for row in merged)) for i, key in enumerate(("count", "step_in", "step_out"))
    )
    call = f"copy(&{name}_shape, {{a}} + {inward[0] * width}, {{out}} + {outward[0] * width});"
    return Layer(
        name=name,
        op=operator.name,
        inputs=(source,),
        output=output,
        kernels=("run", "copy"),
        call=call,
        fields=(),
        shape_type="struct copy",
        shape=shape,
    )


def _make_full_layout(shape: Sequence[int]) -> Layout:
    return 0, tuple(shape), tuple(_compute_strides(shape))


def build_slices(network: QuantizedModel, operator: Operator, name: str) -> list[Layer]:
    """Build the layers of a STRIDED_SLICE, SLICE or SPLIT whose values are not contiguous.

    Args:
        name: C identifier of the first output's layer. The layers of the other outputs append
            `_1`, `_2` and so on.

    Raises:
        ExportError: as in `find_views` or `build_copy_layer`.
    """
    source = operator.inputs[1] if operator.name == "SPLIT" else operator.inputs[0]
    return [
        build_copy_layer(
            network,
            operator,
            f"{name}_{i}" if i else name,
            source,
            output,
            layout,
            _make_full_layout(layout[1]),
        )
        for i, output in enumerate(operator.outputs)
        for layout in [_make_slice_layout(network, operator, i)]
    ]


def build_transpose(network: QuantizedModel, operator: Operator, name: str) -> list[Layer]:
    """Build the layer of a TRANSPOSE.

    Args:
        name: C identifier of the layer.

    Raises:
        ExportError: the order of the axes is computed, or as in `build_copy_layer`.
    """
    source = network.get_tensor(operator.inputs[0])
    output = network.get_tensor(operator.outputs[0])
    strides = _compute_strides(source.shape)
    axes = [int(axis) for axis in _read_constant(network, operator, 1)]
    check_output_shape(network, operator, [source.shape[axis] for axis in axes])
    inward = 0, output.shape, tuple(strides[axis] for axis in axes)
    return [
        build_copy_layer(
            network, operator, name, source.index, output.index, inward, _make_full_layout(output.shape)
        )
    ]


def build_concatenation(network: QuantizedModel, operator: Operator, name: str) -> list[Layer]:
    """Build the layers of a CONCATENATION or PACK, one for each input.

    Args:
        name: C identifier to which each layer appends `_0`, `_1` and so on.

    Raises:
        ExportError: an input is constant or has another scale or zero point than the output, the output has a
            wrong shape, or as in `build_copy_layer`.
    """
    output = network.get_tensor(operator.outputs[0])
    axis = int(operator.options["axis"]) % len(output.shape)
    strides = _compute_strides(output.shape)
    sources = [network.get_tensor(index) for index in operator.inputs]
    shapes = [source.shape for source in sources]
    if operator.name == "PACK":
        shapes = [(*shape[:axis], 1, *shape[axis:]) for shape in shapes]
    expected = list(shapes[0])
    expected[axis] = sum(shape[axis] for shape in shapes)
    check_output_shape(network, operator, expected)
    if any(
        (*shape[:axis], *shape[axis + 1 :]) != (*expected[:axis], *expected[axis + 1 :]) for shape in shapes
    ):
        raise refuse(network, operator, f"joins the shapes {shapes}", "the model is damaged; export it again")
    layers = []
    position = 0
    for i, (source, shape) in enumerate(zip(sources, shapes, strict=True)):
        if source.data is not None:
            raise refuse(
                network,
                operator,
                f"joins the constant {source.name}",
                "append the constant to the samples instead, or use ZeroPadding for zeros",
            )
        if source.scale[0] != output.scale[0] or source.zero_point != output.zero_point:
            raise refuse(
                network,
                operator,
                f"joins tensors of the scales {source.scale[0]:g} and {output.scale[0]:g}",
                "quantize with a converter that gives them one scale, such as tf.lite.TFLiteConverter with "
                "TFLITE_BUILTINS_INT8",
            )
        outward = position * strides[axis], shape, tuple(strides)
        layers.append(
            build_copy_layer(
                network,
                operator,
                f"{name}_{i}",
                source.index,
                output.index,
                _make_full_layout(shape),
                outward,
            )
        )
        position += shape[axis]
    return layers


def build_variable_copy(network: QuantizedModel, operator: Operator, name: str) -> list[Layer]:
    """Build the layer of a READ_VARIABLE whose variable changes before the last use, or an ASSIGN_VARIABLE.

    Args:
        name: C identifier of the layer.

    Raises:
        ExportError: the variable gets a constant.
    """
    source, output = (network.get_tensor(i) for i in (operator.inputs[0], operator.outputs[0]))
    if source.data is not None:
        raise refuse(network, operator, "sets a constant", "set it before the first inference instead")
    whole = 0, (source.size,), (1,)
    return [build_copy_layer(network, operator, name, source.index, output.index, whole, whole)]


def build_joined_outputs(network: QuantizedModel, operator: Operator, name: str) -> list[Layer]:
    """Build the layers of JOINED_OUTPUTS, one for each output of the model.

    Args:
        name: C identifier to which each layer appends `_0`, `_1` and so on.
    """
    layers = []
    position = 0
    for i, index in enumerate(operator.inputs):
        size = network.get_tensor(index).size
        layers.append(
            build_copy_layer(
                network,
                operator,
                f"{name}_{i}",
                index,
                operator.outputs[0],
                (0, (size,), (1,)),
                (position, (size,), (1,)),
            )
        )
        position += size
    return layers


def build_pad(network: QuantizedModel, operator: Operator, name: str) -> list[Layer]:
    """Build the layers of a PAD or PADV2, which fill the output and then copy the input into its middle.

    Args:
        name: C identifier of the layer that copies. The layer that fills appends `_fill`.

    Raises:
        ExportError: the padding or its value is computed, the padding is negative, the value of 16 bits is
            not 0, the output has a wrong shape, or as in `build_copy_layer`.
    """
    source = network.get_tensor(operator.inputs[0])
    output = network.get_tensor(operator.outputs[0])
    value = int(_read_constant(network, operator, 2)[0]) if len(operator.inputs) > 2 else output.zero_point
    if value and output.dtype != "INT8":
        raise refuse(network, operator, f"pads {output.dtype} with {value}, expected 0", "pad with zeros")
    padding = _read_constant(network, operator, 1).reshape(-1, 2)
    if (padding < 0).any():
        raise refuse(network, operator, f"has the padding {padding.tolist()}", "pad by at least 0")
    check_output_shape(
        network, operator, [n + int(sum(pair)) for n, pair in zip(source.shape, padding, strict=True)]
    )
    before = padding[:, 0]
    outward = _make_layout(output, [int(v) for v in before], [1] * len(before), source.shape)
    fill = Layer(
        name=f"{name}_fill",
        op=operator.name,
        inputs=(),
        output=output.index,
        kernels=("fill",),
        call=f"fill({output.bytes}, {value}, {{out}});",
    )
    return [
        fill,
        build_copy_layer(
            network, operator, name, source.index, output.index, _make_full_layout(source.shape), outward
        ),
    ]


def build_broadcast(network: QuantizedModel, operator: Operator, name: str) -> list[Layer]:
    """Build the layer of a BROADCAST_TO.

    Args:
        name: C identifier of the layer.

    Raises:
        ExportError: the output has a wrong shape, or as in `build_copy_layer`.
    """
    source = network.get_tensor(operator.inputs[0])
    output = network.get_tensor(operator.outputs[0])
    padded = (1,) * (len(output.shape) - len(source.shape)) + source.shape
    check_output_shape(network, operator, np.broadcast_shapes(padded, output.shape))
    steps = tuple(0 if n == 1 else step for n, step in zip(padded, _compute_strides(padded), strict=True))
    inward = 0, output.shape, steps
    return [
        build_copy_layer(
            network, operator, name, source.index, output.index, inward, _make_full_layout(output.shape)
        )
    ]


def build_resize_nearest(network: QuantizedModel, operator: Operator, name: str) -> list[Layer]:
    """Build the layers of a RESIZE_NEAREST_NEIGHBOR by whole factors, one for each repetition of a row.

    Args:
        name: C identifier of the first layer. The others append `_1`, `_2` and so on.

    Raises:
        ExportError: a factor is not whole, or the corners are aligned.
    """
    source = network.get_tensor(operator.inputs[0])
    output = network.get_tensor(operator.outputs[0])
    batch, height, width, channels = source.shape
    up, across = output.shape[1] // height, output.shape[2] // width
    if operator.options.get("alignCorners") or output.shape != (batch, height * up, width * across, channels):
        raise refuse(
            network,
            operator,
            f"resizes {source.shape} to {output.shape}"
            + (" with aligned corners" if operator.options.get("alignCorners") else ""),
            "resize by a whole factor, without aligned corners",
        )
    line = output.shape[2] * channels
    counts = (batch * height, width, across, channels)
    inward = 0, counts, (width * channels, channels, 0, 1)
    return [
        build_copy_layer(
            network,
            operator,
            f"{name}_{row}" if row else name,
            source.index,
            output.index,
            inward,
            (row * line, counts, (up * line, across * channels, channels, 1)),
        )
        for row in range(up)
    ]


def build_space_to_depth(network: QuantizedModel, operator: Operator, name: str) -> list[Layer]:
    """Build the layer of a SPACE_TO_DEPTH or DEPTH_TO_SPACE.

    Args:
        name: C identifier of the layer.

    Raises:
        ExportError: the output has a wrong shape.
    """
    source = network.get_tensor(operator.inputs[0])
    output = network.get_tensor(operator.outputs[0])
    deep, wide = (output, source) if operator.name == "SPACE_TO_DEPTH" else (source, output)
    block = int(operator.options["blockSize"])
    batch, height, width, depth = deep.shape
    channels = depth // (block * block)
    if wide.shape != (batch, height * block, width * block, channels) or depth != channels * block * block:
        raise refuse(
            network,
            operator,
            f"has blocks of {block} between the shapes {source.shape} and {output.shape}",
            "the model is damaged; export it again",
        )
    counts = (batch * height, block, width, block * channels)
    line = width * block * channels
    spatial = 0, counts, (block * line, line, block * channels, 1)
    stacked = 0, counts, (width * depth, block * channels, depth, 1)
    inward, outward = (spatial, stacked) if wide is source else (stacked, spatial)
    return [build_copy_layer(network, operator, name, source.index, output.index, inward, outward)]


def build_space_to_batch(network: QuantizedModel, operator: Operator, name: str) -> list[Layer]:
    """Build the layers of a SPACE_TO_BATCH_ND or BATCH_TO_SPACE_ND, one for each position in a block.

    A SPACE_TO_BATCH_ND with padding is refused, because TensorFlow Lite Micro does not set the value of the
    padding. A BATCH_TO_SPACE_ND may crop.

    Args:
        name: C identifier to which each layer appends `_0`, `_1` and so on.

    Raises:
        ExportError: the block or the edges are computed, a SPACE_TO_BATCH_ND pads, the batch of the image is
            not one, or the output has a wrong shape.
    """
    source = network.get_tensor(operator.inputs[0])
    output = network.get_tensor(operator.outputs[0])
    to_batch = operator.name == "SPACE_TO_BATCH_ND"
    image, batch = (source, output) if to_batch else (output, source)
    block = [int(v) for v in _read_constant(network, operator, 1)]
    edges = _read_constant(network, operator, 2).reshape(-1, 2)
    axes = range(1, len(block) + 1)
    tail = image.shape[len(block) + 1 :]
    padded = [image.shape[axis] + int(sum(edges[axis - 1])) for axis in axes]
    expected = (int(np.prod(block)), *(-(-n // b) for n, b in zip(padded, block, strict=True)), *tail)
    if (
        image.shape[0] != 1
        or batch.shape != expected
        or (edges < 0).any()
        or (to_batch and edges.any())
        or any(n % b for n, b in zip(padded, block, strict=True))
    ):
        raise refuse(
            network,
            operator,
            f"has blocks of {block} and edges of {edges.tolist()} between the shapes {source.shape} and "
            f"{output.shape}",
            "expected a batch of one, and blocks without padding; convert the model with a fixed batch of 1",
        )
    image_strides = _compute_strides(image.shape)
    batch_strides = _compute_strides(batch.shape)
    layers = []
    for number, position in enumerate(np.ndindex(*block)):
        image_start = 0
        batch_start = number * batch_strides[0]
        counts = []
        for axis, b, inner, (before, _) in zip(axes, block, position, edges, strict=True):
            first = max(0, -(-(int(before) - inner) // b))
            last = (image.shape[axis] - 1 + int(before) - inner) // b
            counts.append(last - first + 1)
            image_start += (first * b + inner - int(before)) * image_strides[axis]
            batch_start += first * batch_strides[axis]
        if min(counts) < 1:
            continue
        steps = [b * image_strides[axis] for axis, b in zip(axes, block, strict=True)]
        shape = (*counts, *tail)
        in_image = image_start, shape, (*steps, *image_strides[len(block) + 1 :])
        in_batch = batch_start, shape, tuple(batch_strides[1:])
        inward, outward = (in_image, in_batch) if to_batch else (in_batch, in_image)
        layers.append(
            build_copy_layer(
                network, operator, f"{name}_{number}", source.index, output.index, inward, outward
            )
        )
    return layers

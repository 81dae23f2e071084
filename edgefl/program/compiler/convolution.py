"""Convolutions and their gradients in builtin ops that are fast in TFLite runtimes.

A TFLite runtime multiplies matrices far faster than it convolves with a filter that is an argument. XNNPACK
computes BATCH_MATMUL, but it leaves such a CONV_2D to slow generic kernels. Therefore this module computes a
convolution and its gradients as matrix products.

Batch and channels of images are swapped: float32[channels, rows, columns, batch]. The values of a window
element then lie in long runs of memory, with all samples of a pixel side by side, and a product has channels
first again without a transposition. The columns of the windows are gathered into `wide`, float32[window
columns * c_in, rows, out_columns, batch]. The rows are computed in one of two forms:

    patches, one product over all rows of a window:
        out = filter^T @ patches(wide)
        d filter = patches(wide) @ dy^T
    shifts, one product for each row k:
        out = sum over k of gather_k(filter_k^T @ wide)
        d filter_k = wide @ scatter_k(dy)^T
    both:
        d wide = sum over k of filter_k @ scatter_k(dy)

Patches copy `wide` once for each row of the filter. Shifts copy the output instead. The form with fewer
copied channels is used. A sum over k is one product of stacked parts.

Two rules make the program fast. Matrix products have three axes. With two axes and a transposed argument, the
converter makes FULLY_CONNECTED, which takes three times as long. An axis is dropped by a reshape, because
dropping it by an index is a slow copy.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from edgefl.base.errors import PlanError
from edgefl.program.compiler.windows import (
    Geometry,
    Phase,
    add_tensors,
    concat,
    cut_axis,
    cut_seen,
    gather_tap,
    gather_taps,
    has_samples,
    join_phases,
    list_phases,
    pad_axis,
    pad_phase,
    read_geometry,
    scatter_tap,
    scatter_taps,
)

Tensor = Any

TRACING_PROGRAM: ContextVar[bool] = ContextVar("TRACING_PROGRAM", default=False)
"""Whether the graph that is traced now is a program, in which `convolve` replaces TensorFlow's
convolution.
"""

MAX_PATCHES_BYTES = 16 << 20
"""Maximum size of the gathered or shifted values of a convolution. A larger convolution stays CONV_2D,
because a device has little memory.
"""

MAX_DEPTHWISE_CHANNELS = 4832
"""Maximum number of channels of a DEPTHWISE_CONV_2D: the buffer of TFLite's kernel, in values.

The kernel never ends with more.
"""


def swap_batch_channels(image: Tensor) -> Tensor:
    """Return the image with batch and channels swapped, which are its first and its last axis.

    If the image is the result of a swap, return the image before that swap.

    Args:
        image: float32[batch, ..., channels] or float32[channels, ..., batch].
    """
    order = [len(image.shape) - 1, *range(1, len(image.shape) - 1), 0]
    before = find_swap_input(image)
    return tf.transpose(image, order) if before is None else before


def find_swap_input(image: Tensor) -> Tensor | None:
    """Return the image before a swap, or None if the image is not the result of a swap."""
    op = getattr(image, "op", None)
    if op is None or op.type != "Transpose":
        return None
    order = tf.get_static_value(op.inputs[1])
    rank = len(image.shape)
    return op.inputs[0] if order is not None and list(order) == [rank - 1, *range(1, rank - 1), 0] else None


def convolve(image: Tensor, kernel: Tensor, geometry: Geometry) -> Tensor:
    """Return the convolution of an image, with its own gradient.

    Args:
        image: float32[c_in, rows, columns, batch], with batch and channels swapped.
        kernel: the filter, float32[window rows, window columns, c_in, c_out].
        geometry: the windows.

    Returns:
        float32[c_out, out_rows, out_columns, batch].
    """
    by_patches = _should_use_patches(kernel, geometry)
    shape = kernel.shape.as_list()

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def run(image: Tensor, kernel: Tensor) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, Tensor]]]:
        seen = _gather_columns(image, geometry)
        if by_patches:
            seen = concat(gather_taps(pad_axis(seen, geometry.rows), geometry.rows), 0)
            out = tf.matmul(tf.reshape(kernel, (1, -1, shape[3])), _flatten_image(seen), transpose_a=True)
            out = tf.reshape(out, (shape[3], geometry.rows.out, geometry.columns.out, image.shape[3]))
        else:
            lines = tf.matmul(_flatten_kernel(kernel), _flatten_image(seen), transpose_a=True)
            lines = tf.reshape(lines, (shape[0] * shape[3], *seen.shape[1:]))
            out = add_tensors(
                [
                    gather_tap(lines, geometry.rows, k, k * shape[3], shape[3])
                    for k in range(shape[0])
                    if has_samples(geometry.rows, k)
                ]
            )

        def backpropagate(gradient: Tensor) -> tuple[Tensor, Tensor]:
            stack = _stack(gradient, geometry)
            if by_patches:
                by_kernel = tf.reshape(
                    tf.matmul(_flatten_image(seen), _flatten_image(gradient), transpose_b=True), shape
                )
            else:
                by_kernel = _differentiate_kernel(seen, stack, shape)
            return _differentiate_image(stack, kernel, geometry), by_kernel

        return out, backpropagate

    return run(image, kernel)


def is_within_limit(batch: int, kernel: Tensor, geometry: Geometry) -> bool:
    """Return whether the gathered or shifted values of a convolution fit into `MAX_PATCHES_BYTES`.

    Args:
        batch: number of samples.
        kernel: the filter, float32[window rows, window columns, c_in, c_out].
        geometry: the windows.
    """
    rows, columns, c_in, c_out = kernel.shape.as_list()
    over_patches = rows * columns * c_in * geometry.rows.out
    over_shifts = max(columns * c_in, rows * c_out) * geometry.rows.size
    values = (
        batch
        * geometry.columns.out
        * (over_patches if _should_use_patches(kernel, geometry) else over_shifts)
    )
    return bool(4 * values <= MAX_PATCHES_BYTES)


def differentiate_conv2d(op: Any, gradient: Tensor) -> list[Tensor]:
    """Return the gradients of Conv2D with respect to its image and its filter.

    Args:
        op: the op, whose filter is float32[window rows, window columns, c_in, c_out].
        gradient: the gradient of its output, float32[batch, out_rows, out_columns, c_out].

    Raises:
        PlanError: the convolution is grouped, or its layout is not NHWC.
    """
    image, kernel = op.inputs
    _check_layout(op)
    if image.shape[-1] != kernel.shape[2]:
        raise PlanError(
            f"layer {op.name.rpartition('/')[0]} is a grouped convolution, which has no builtin gradient; "
            "use DepthwiseConv2D or groups=1"
        )
    geometry = read_geometry(op, kernel.shape.as_list()[:2])
    stack = _stack(swap_batch_channels(gradient), geometry)
    by_kernel = _differentiate_kernel(
        _gather_columns(swap_batch_channels(image), geometry), stack, kernel.shape.as_list()
    )
    return [swap_batch_channels(_differentiate_image(stack, kernel, geometry)), by_kernel]


def _should_use_patches(kernel: Tensor, geometry: Geometry) -> bool:
    rows, columns, c_in, c_out = kernel.shape.as_list()
    seen = any(has_samples(geometry.rows, k) for k in range(rows))
    return bool(rows == 1 or geometry.rows.stride > 1 or columns * c_in < c_out or not seen)


def _gather_columns(image: Tensor, geometry: Geometry) -> Tensor:
    return concat(gather_taps(pad_axis(image, geometry.columns), geometry.columns), 0)


def _stack(gradient: Tensor, geometry: Geometry) -> Tensor:
    """Return the gradient at the pixels of each row of the filter, stacked.

    The result is float32[window rows * c_out, rows, out_columns, batch].
    """
    return concat([scatter_tap(gradient, geometry.rows, k) for k in range(geometry.rows.window)], 0)


def _differentiate_image(stack: Tensor, kernel: Tensor, geometry: Geometry) -> Tensor:
    _, columns, channels, _ = kernel.shape.as_list()
    wide = tf.reshape(_flatten_kernel(kernel) @ _flatten_image(stack), (columns * channels, *stack.shape[1:]))
    parts = [wide[k * channels : (k + 1) * channels] for k in range(columns)] if columns > 1 else [wide]
    return scatter_taps(parts, geometry.columns)


def _differentiate_kernel(wide: Tensor, stack: Tensor, shape: list[int]) -> Tensor:
    rows, columns, c_in, c_out = shape
    by_matrix = tf.matmul(_flatten_image(wide), _flatten_image(stack), transpose_b=True)
    return tf.transpose(tf.reshape(by_matrix, (columns, c_in, rows, c_out)), (2, 0, 1, 3))


def _flatten_kernel(kernel: Tensor) -> Tensor:
    """Return the filter as float32[1, columns * c_in, rows * c_out]."""
    rows, columns, c_in, c_out = kernel.shape.as_list()
    ordered = tf.transpose(kernel, (1, 2, 0, 3)) if rows > 1 else kernel
    return tf.reshape(ordered, (1, columns * c_in, rows * c_out))


def differentiate_depthwise(op: Any, gradient: Tensor) -> list[Tensor]:
    """Return the gradients of DepthwiseConv2dNative with respect to its image and its filter.

    Both are depthwise convolutions too. The gradient is convolved with the flipped filter, and the image with
    the gradient.

    Args:
        op: the op, whose filter is float32[window rows, window columns, channels, multiplier].
        gradient: the gradient of its output, float32[batch, out_rows, out_columns, channels * multiplier].

    Raises:
        PlanError: the layout is not NHWC, or a layer of the user calls the op with dilations or explicit
            padding. Layers of Keras do not: they move or pad the pixels before.
    """
    image, kernel = op.inputs
    _check_layout(op)
    if any(size > 1 for size in op.get_attr("dilations")) or op.get_attr("padding") == b"EXPLICIT":
        raise PlanError(
            f"layer {op.name.rpartition('/')[0]} calls a depthwise convolution with dilations or explicit "
            "padding, expected SAME or VALID padding and no dilations; use keras.layers.DepthwiseConv2D"
        )
    geometry = read_geometry(op, kernel.shape.as_list()[:2])
    return [
        _differentiate_depthwise_image(gradient, kernel, geometry),
        _differentiate_depthwise_kernel(image, gradient, kernel.shape.as_list(), geometry),
    ]


def _differentiate_depthwise_image(gradient: Tensor, kernel: Tensor, geometry: Geometry) -> Tensor:
    """Return the gradient of the image, one convolution for each phase of the rows and columns."""
    channels, multiplier = kernel.shape.as_list()[2:]
    columns = list_phases(geometry.columns)
    lines = [
        join_phases([_convolve_phase(gradient, kernel, row, column) for column in columns], geometry.columns)
        if row.taps
        else None
        for row in list_phases(geometry.rows)
    ]
    by_image = join_phases(lines, geometry.rows)
    if multiplier == 1:
        return by_image
    by_channel = tf.reduce_sum(tf.reshape(by_image, (1, -1, channels, multiplier)), 3)
    return tf.reshape(by_channel, (*by_image.shape[:3], channels))


def _convolve_phase(gradient: Tensor, kernel: Tensor, row: Phase, column: Phase) -> Tensor | None:
    """Return the gradient of the pixels of two phases, or None if no window sees them."""
    if not column.taps:
        return None
    channels = gradient.shape[3]
    order = [i * kernel.shape[1] + j for i in row.taps[::-1] for j in column.taps[::-1]]
    elements = tf.reshape(kernel, (-1, channels))
    # GATHER copies whole rows. A slice in negative steps copies each value separately.
    elements = tf.gather(elements, order) if order != list(range(elements.shape[0])) else elements
    is_same = row.has_same_padding and column.has_same_padding
    return tf.nn.depthwise_conv2d(
        gradient if is_same else pad_phase(pad_phase(gradient, row), column),
        tf.reshape(elements, (len(row.taps), len(column.taps), channels, 1)),
        strides=(1, 1, 1, 1),
        padding="SAME" if is_same else "VALID",
    )


def _differentiate_depthwise_kernel(
    image: Tensor, gradient: Tensor, shape: list[int], geometry: Geometry
) -> Tensor:
    """Return the gradient of the filter, with each channel of each sample as a channel of one sample."""
    rows, columns = geometry.rows, geometry.columns
    batch, out_rows, out_columns, out_channels = gradient.shape.as_list()
    channels, multiplier = shape[2:]
    max_samples = max(1, MAX_DEPTHWISE_CHANNELS // out_channels)
    sums = []
    for first in range(0, batch, max_samples):
        count = min(max_samples, batch - first)
        seen, filters = (
            tf.reshape(
                tf.transpose(cut_axis(values, 0, first, count), (1, 2, 0, 3)),
                (1, *values.shape[1:3], count * values.shape[3]),
            )
            for values in (image, gradient)
        )
        by_sample = tf.raw_ops.DepthwiseConv2dNative(
            input=cut_seen(cut_seen(seen, rows), columns),
            filter=tf.reshape(filters, (out_rows, out_columns, count * channels, multiplier)),
            strides=(1, 1, 1, 1),
            padding="VALID",
            dilations=(1, rows.stride, columns.stride, 1),
        )
        sums.append(tf.reduce_sum(tf.reshape(by_sample, (-1, count, out_channels)), 1))
    return tf.reshape(add_tensors(sums), shape)


def check_depthwise_ops(graph: Any) -> None:
    """Check that a runtime can compute the depthwise convolutions of a graph.

    Args:
        graph: the graph of TensorFlow.

    Raises:
        PlanError: a depthwise convolution has more than `MAX_DEPTHWISE_CHANNELS` channels.
    """
    for op in graph.get_operations():
        if op.type != "DepthwiseConv2dNative":
            continue
        channels = op.outputs[0].shape[-1]
        if channels > MAX_DEPTHWISE_CHANNELS:
            raise PlanError(
                f"layer {op.name.rpartition('/')[0]} has {channels} depthwise channels, expected at most "
                f"{MAX_DEPTHWISE_CHANNELS}, because a TFLite runtime never ends with more; use fewer filters "
                "in the layer before it, or a smaller depth_multiplier"
            )


def _check_layout(op: Any) -> None:
    if op.get_attr("data_format") != b"NHWC":
        raise PlanError(
            f"layer {op.name.rpartition('/')[0]} has the data_format channels_first, expected channels_last "
            "for TFLite; build the model with channels_last"
        )


def _flatten_image(image: Tensor) -> Tensor:
    return tf.reshape(image, (1, image.shape[0], -1))

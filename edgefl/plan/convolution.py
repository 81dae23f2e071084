"""Convolutions and their gradients in builtin ops that runtimes do fast.

A TFLite runtime multiplies matrices far faster than it convolves with a filter that is an argument (XNNPACK takes
BATCH_MATMUL and leaves CONV_2D to kernels for any processor), so a convolution is `patches @ filter`, its filter gradient
`patches^T @ gradient`, and its image gradient `gradient @ filter^T` summed back into place. A matrix product must be written
with three axes: with two, the converter makes FULLY_CONNECTED of it where an argument is transposed, three times slower. And an
index that drops an axis is a slow copy where a reshape is none.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from edgefl.errors import PlanError
from edgefl.plan.windows import Geometry, concat, geometry_of, pad, patches, taps, untap

Tensor = Any

BUILTIN: ContextVar[bool] = ContextVar("BUILTIN", default=False)
"""Whether what is traced is for a program: `convolve` stands in for TensorFlow's convolution then."""

PATCHES_LIMIT = 16 << 20
"""Bytes of patches above which a convolution stays CONV_2D: a device has little memory."""


def convolve(image: Tensor, kernel: Tensor, geometry: Geometry) -> Tensor:
    """Return the convolution float32[batch, out_rows, out_columns, c_out]; kernel: float32[rows, columns, c_in, c_out]."""

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def run(image: Tensor, kernel: Tensor) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, Tensor]]]:
        seen = patches(image, geometry)
        out = _flat(seen) @ tf.reshape(kernel, (1, -1, kernel.shape[3]))

        def gradients(gradient: Tensor) -> tuple[Tensor, Tensor]:
            by_kernel = tf.matmul(_flat(seen), _flat(gradient), transpose_a=True)
            return image_gradient(gradient, kernel, geometry), tf.reshape(by_kernel, kernel.shape)

        return tf.reshape(out, (image.shape[0], geometry.rows.out, geometry.columns.out, kernel.shape[3])), gradients

    return run(image, kernel)


def fits(image: Tensor, kernel: Tensor, geometry: Geometry) -> bool:
    """Whether the patches stay under the limit."""
    values = image.shape[0] * geometry.rows.out * geometry.columns.out * kernel.shape[0] * kernel.shape[1] * kernel.shape[2]
    return bool(4 * values <= PATCHES_LIMIT)


def conv2d_gradients(op: Any, gradient: Tensor) -> list[Tensor]:
    """Return the gradients of Conv2D by its image and by its filter float32[rows, columns, c_in, c_out]."""
    image, kernel = op.inputs
    _check_layout(op)
    if image.shape[-1] != kernel.shape[2]:
        raise PlanError(f"{op.name}: a grouped convolution has no builtin gradient; use DepthwiseConv2D or groups=1")
    geometry = geometry_of(op, kernel.shape.as_list()[:2])
    return [image_gradient(gradient, kernel, geometry), filter_gradient(image, gradient, kernel, geometry)]


def image_gradient(gradient: Tensor, kernel: Tensor, geometry: Geometry) -> Tensor:
    """Return the gradient by the image: one product for each row of the filter, summed into place rows first."""
    window_rows, window_columns, channels, filters = kernel.shape.as_list()
    width = window_columns * channels
    shape = (*gradient.shape.as_list()[:3], width)
    taps_by_row = tf.reshape(kernel, (1, -1, filters))
    lines = [
        tf.reshape(tf.matmul(_flat(gradient), taps_by_row[:, row * width : (row + 1) * width], transpose_b=True), shape)
        for row in range(window_rows)
    ]
    wide = untap(lines, geometry.rows)
    return untap(tf.split(wide, window_columns, 3) if window_columns > 1 else [wide], geometry.columns)


def filter_gradient(image: Tensor, gradient: Tensor, kernel: Tensor, geometry: Geometry) -> Tensor:
    """Return the gradient by the filter, row by row of the filter, so that only a row's patches are in memory."""
    wide = concat(taps(pad(image, geometry), geometry.columns), 3)
    rows = [tf.matmul(_flat(row), _flat(gradient), transpose_a=True) for row in taps(wide, geometry.rows)]
    return tf.reshape(concat(rows, 0), kernel.shape)


def depthwise_gradients(op: Any, gradient: Tensor) -> list[Tensor]:
    """Return the gradients of DepthwiseConv2dNative by its image and by its filter float32[rows, columns, channels, multiplier]."""
    image, kernel = op.inputs
    _check_layout(op)
    window_rows, window_columns, channels, multiplier = kernel.shape.as_list()
    geometry = geometry_of(op, (window_rows, window_columns))
    batch, rows, columns, _ = gradient.shape.as_list()
    weights = tf.reshape(kernel, (-1, channels, multiplier))
    by_channel = tf.reshape(gradient, (batch * rows * columns, channels, multiplier))
    lines, sums = [], []
    for i, row in enumerate(taps(pad(image, geometry), geometry.rows)):
        values = []
        for j, seen in enumerate(taps(row, geometry.columns)):
            place = i * window_columns + j
            weighted = by_channel * weights[place : place + 1]
            part = tf.reduce_sum(weighted, 2) if multiplier > 1 else weighted
            values.append(tf.reshape(part, (batch, rows, columns, channels)))
            sums.append(tf.reduce_sum(tf.reshape(seen, (batch * rows * columns, channels, 1)) * by_channel, 0))
        lines.append(untap(values, geometry.columns))
    return [untap(lines, geometry.rows), tf.reshape(tf.stack(sums), kernel.shape)]


def _check_layout(op: Any) -> None:
    if op.get_attr("data_format") != b"NHWC":
        raise PlanError(f"{op.name}: data_format channels_first cannot compile for TFLite; build the model with channels_last")


def _flat(image: Tensor) -> Tensor:
    return tf.reshape(image, (1, -1, image.shape[3]))

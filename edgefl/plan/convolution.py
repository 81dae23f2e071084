"""Gradients of convolutions in builtin ops."""

from typing import Any

import tensorflow as tf

from edgefl.errors import PlanError
from edgefl.plan.windows import Axis, Geometry, dilate, geometry_of, pad, pad_by, phase, spread

Tensor = Any


def conv2d_gradients(op: Any, gradient: Tensor) -> list[Tensor]:
    """Return the gradients of Conv2D by its image and by its filter float32[rows, columns, c_in, c_out]."""
    image, kernel = op.inputs
    if op.get_attr("data_format") != b"NHWC":
        raise PlanError(f"{op.name}: data_format channels_first cannot compile for TFLite; build the model with channels_last")
    if image.shape[-1] != kernel.shape[2]:
        raise PlanError(f"{op.name}: a grouped convolution has no builtin gradient; use DepthwiseConv2D or groups=1")
    geometry = geometry_of(op, tuple(kernel.shape.as_list()[:2]))
    return [_image_gradient(gradient, kernel, geometry), _filter_gradient(image, gradient, geometry)]


def _image_gradient(gradient: Tensor, kernel: Tensor, geometry: Geometry) -> Tensor:
    """A convolution of the (dilated) output gradient with the filter turned by 180 degrees."""
    turned = tf.transpose(tf.reverse(kernel, [0, 1]), (0, 1, 3, 2))
    rows, columns = geometry.rows, geometry.columns
    apart = dilate(gradient, rows.stride, columns.stride)
    framed = pad_by(apart, _margins(rows), _margins(columns))
    return tf.nn.conv2d(framed, turned, 1, "VALID", dilations=[rows.dilation, columns.dilation])


def _margins(axis: Axis) -> tuple[int, int]:
    return (axis.window - 1) * axis.dilation - axis.before, axis.size + axis.before - axis.reach


def _filter_gradient(image: Tensor, gradient: Tensor, geometry: Geometry) -> Tensor:
    padded = pad(image, geometry)
    channels, filters = image.shape[-1], gradient.shape[-1]
    patches = tf.concat([phase(padded, geometry, offset) for offset in geometry.offsets()], 3)
    flat = tf.matmul(tf.reshape(patches, (-1, patches.shape[-1])), tf.reshape(gradient, (-1, filters)), transpose_a=True)
    return tf.reshape(flat, (geometry.rows.window, geometry.columns.window, channels, filters))


def depthwise_gradients(op: Any, gradient: Tensor) -> list[Tensor]:
    """Return the gradients of DepthwiseConv2dNative by its image and by its filter float32[rows, columns, channels, multiplier]."""
    image, kernel = op.inputs
    if op.get_attr("data_format") != b"NHWC":
        raise PlanError(f"{op.name}: data_format channels_first cannot compile for TFLite; build the model with channels_last")
    window_rows, window_columns, channels, multiplier = kernel.shape.as_list()
    geometry = geometry_of(op, (window_rows, window_columns))
    padded = pad(image, geometry)
    batch, rows, columns, _ = gradient.shape.as_list()
    by_channel = tf.reshape(gradient, (batch * rows * columns, channels, multiplier))
    taps = tf.reshape(kernel, (window_rows * window_columns, channels, multiplier))
    values, sums = [], []
    for index, offset in enumerate(geometry.offsets()):
        weighted = by_channel * taps[index]
        part = tf.reduce_sum(weighted, 2) if multiplier > 1 else weighted
        values.append(tf.reshape(part, (batch, rows, columns, channels)))
        seen = tf.reshape(phase(padded, geometry, offset), (batch * rows * columns, channels, 1))
        sums.append(tf.reduce_sum(seen * by_channel, 0))
    return [spread(values, geometry), tf.reshape(tf.stack(sums), kernel.shape)]

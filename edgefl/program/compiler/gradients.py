"""Gradients that use only builtin ops of TFLite, in place of those of TensorFlow.

Most usual gradients here use ops that TFLite lacks. Others are replaced for speed or exact values.

They are selected while the forward pass is traced, so any Keras model of these ops compiles without changes.
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from edgefl.program.compiler.convolution import TRACING_PROGRAM, differentiate_conv2d, differentiate_depthwise
from edgefl.program.compiler.pooling import differentiate_average_pool, differentiate_max_pool

Tensor = Any
SELU_ALPHA = 1.6732632423543772
SELU_SCALE = 1.0507009873554805
"""Constants of SELU. Source: Klambauer et al., arXiv:1706.02515, section 2."""


def _differentiate_relu(op: Any, gradient: Tensor) -> Tensor:
    return gradient * tf.sign(op.outputs[0])


def _differentiate_relu6(op: Any, gradient: Tensor) -> Tensor:
    return gradient * (tf.sign(op.outputs[0]) * tf.sign(6.0 - op.outputs[0]))


def _differentiate_sigmoid(op: Any, gradient: Tensor) -> Tensor:
    y = op.outputs[0]
    return gradient * (y * (1.0 - y))


def _differentiate_tanh(op: Any, gradient: Tensor) -> Tensor:
    y = op.outputs[0]
    return gradient * (1.0 - y * y)


def _differentiate_sqrt(op: Any, gradient: Tensor) -> Tensor:
    return gradient * 0.5 / op.outputs[0]


def _differentiate_rsqrt(op: Any, gradient: Tensor) -> Tensor:
    y = op.outputs[0]
    return gradient * (-0.5 * y * y * y)


def _differentiate_leaky_relu(op: Any, gradient: Tensor) -> Tensor:
    slope = op.get_attr("alpha")
    positive = tf.sign(tf.nn.relu(op.inputs[0]))
    return gradient * (positive * (1.0 - slope) + slope)


def _differentiate_elu(op: Any, gradient: Tensor) -> Tensor:
    return gradient * (tf.minimum(op.outputs[0], 0.0) + 1.0)


def _differentiate_selu(op: Any, gradient: Tensor) -> Tensor:
    """Return the gradient of SELU. At 0 it is the slope of positive values."""
    negative = tf.minimum(op.outputs[0], 0.0)
    return gradient * (SELU_SCALE - tf.sign(negative) * SELU_SCALE * (SELU_ALPHA - 1.0) + negative)


def _differentiate_softplus(op: Any, gradient: Tensor) -> Tensor:
    return gradient * tf.sigmoid(op.inputs[0])


def _differentiate_matmul(op: Any, gradient: Tensor) -> list[Tensor]:
    """Return the gradients of a matrix product.

    The products have three axes, so that the converter makes BATCH_MATMUL, see `convolution`.
    """
    first, second = (tf.expand_dims(tensor, 0) for tensor in op.inputs)
    upstream = tf.expand_dims(gradient, 0)
    if op.get_attr("transpose_a") or op.get_attr("transpose_b"):
        first = tf.linalg.matrix_transpose(first) if op.get_attr("transpose_a") else first
        second = tf.linalg.matrix_transpose(second) if op.get_attr("transpose_b") else second
    by_first = tf.matmul(upstream, second, transpose_b=True)
    by_second = tf.matmul(first, upstream, transpose_a=True)
    by_first = tf.linalg.matrix_transpose(by_first) if op.get_attr("transpose_a") else by_first
    by_second = tf.linalg.matrix_transpose(by_second) if op.get_attr("transpose_b") else by_second
    return [tf.reshape(by, tensor.shape) for by, tensor in zip((by_first, by_second), op.inputs, strict=True)]


def _differentiate_softsign(op: Any, gradient: Tensor) -> Tensor:
    reach = 1.0 + tf.abs(op.inputs[0])
    return gradient / (reach * reach)


def _differentiate_strided_slice(op: Any, gradient: Tensor) -> list[Tensor | None]:
    """Return the gradient of a slice, padded with zeros to the shape of the input.

    Slices in steps, with new axes or with dynamic sizes use the gradient of TensorFlow.
    """
    first, last, steps = (tf.get_static_value(tensor) for tensor in op.inputs[1:])
    sizes = op.inputs[0].shape.as_list()
    is_static = (
        None not in sizes
        and first is not None
        and last is not None
        and steps is not None
        and (steps == 1).all()
    )
    if not is_static or op.get_attr("new_axis_mask") or op.get_attr("ellipsis_mask"):
        masks = {
            name: op.get_attr(name)
            for name in (f"{part}_mask" for part in ("begin", "end", "ellipsis", "new_axis", "shrink_axis"))
        }
        return [
            tf.raw_ops.StridedSliceGrad(
                shape=sizes, begin=first, end=last, strides=steps, dy=gradient, **masks
            ),
            None,
            None,
            None,
        ]
    margins = [(0, 0)] * len(sizes)
    shape = list(sizes)
    for axis, (start, stop) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        if op.get_attr("shrink_axis_mask") >> axis & 1:
            stop = start % sizes[axis] + 1
        span = slice(
            None if op.get_attr("begin_mask") >> axis & 1 else start,
            None if op.get_attr("end_mask") >> axis & 1 else stop,
        ).indices(sizes[axis])
        margins[axis] = (span[0], sizes[axis] - span[1])
        shape[axis] = span[1] - span[0]
    return [tf.pad(tf.reshape(gradient, shape), margins), None, None, None]


def _differentiate_tile(op: Any, gradient: Tensor) -> list[Tensor | None]:
    """Return the gradient of a tile, which is the sum over the copies.

    The sum takes one axis after the other in a tensor of three axes. XNNPACK does not compute other sums.
    """
    sizes = op.inputs[0].shape.as_list()
    shape = op.outputs[0].shape.as_list()
    if None in sizes or None in shape:
        pairs = tf.reshape(tf.transpose(tf.stack([op.inputs[1], tf.shape(op.inputs[0])])), [-1])
        return [tf.reduce_sum(tf.reshape(gradient, pairs), list(range(0, 2 * len(sizes), 2))), None]
    for axis, size in enumerate(sizes):
        copies = shape[axis] // size
        shape[axis] = size
        if copies > 1:
            gradient = tf.reduce_sum(
                tf.reshape(gradient, (math.prod(shape[:axis]), copies, math.prod(shape[axis:]))), 1
            )
    return [tf.reshape(gradient, shape), None]


GRADIENTS: dict[str, Callable[[Any, Tensor], Any]] = {
    "Relu": _differentiate_relu,
    "Relu6": _differentiate_relu6,
    "LeakyRelu": _differentiate_leaky_relu,
    "Elu": _differentiate_elu,
    "Selu": _differentiate_selu,
    "Softplus": _differentiate_softplus,
    "Softsign": _differentiate_softsign,
    "Sigmoid": _differentiate_sigmoid,
    "Tanh": _differentiate_tanh,
    "Sqrt": _differentiate_sqrt,
    "Rsqrt": _differentiate_rsqrt,
    "MatMul": _differentiate_matmul,
    "StridedSlice": _differentiate_strided_slice,
    "Tile": _differentiate_tile,
    "MaxPool": differentiate_max_pool,
    "AvgPool": differentiate_average_pool,
    "Conv2D": differentiate_conv2d,
    "DepthwiseConv2dNative": differentiate_depthwise,
}

for _type, _gradient in GRADIENTS.items():
    tf.RegisterGradient(f"EdgeflBuiltin{_type}")(_gradient)


@contextlib.contextmanager
def use_builtin_gradients() -> Iterator[None]:
    """Trace with gradients of builtin ops, and with convolutions as matrix products.

    This context applies to the current graph.
    """
    graph = tf.compat.v1.get_default_graph()
    token = TRACING_PROGRAM.set(True)
    try:
        with graph.gradient_override_map({op: f"EdgeflBuiltin{op}" for op in GRADIENTS}):
            yield
    finally:
        TRACING_PROGRAM.reset(token)

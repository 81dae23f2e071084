"""Gradients of max and average pooling in builtin ops.

They equal the gradients of TensorFlow. If a window has several maxima, the first one gets the gradient.
"""

from typing import Any

import numpy as np
import tensorflow as tf

from edgefl.program.compiler.windows import gather_taps, pad_image, read_geometry, scatter_taps

Tensor = Any

_LOWEST = float(np.finfo(np.float32).min)


def differentiate_max_pool(op: Any, gradient: Tensor) -> Tensor:
    """Return the gradient of MaxPool with respect to its input.

    `sign(y - x)` is 0 where x is the maximum. In TFLite it is cheaper than EQUAL with CAST or WHERE. The last
    element of a window gets the gradient that no earlier element took.

    Args:
        op: the op in NHWC layout.
        gradient: the gradient of its output, float32[batch, rows, columns, channels].
    """
    geometry = read_geometry(op, op.get_attr("ksize")[1:3])
    image = pad_image(op.inputs[0], geometry, _LOWEST)
    top = op.outputs[0]
    left = gradient
    seen = [gather_taps(row, geometry.columns) for row in gather_taps(image, geometry.rows)]
    lines = []
    for row in seen:
        values = []
        for element in row:
            if element is seen[-1][-1]:
                values.append(left)
                break
            rest = left * tf.sign(top - element)
            values.append(left - rest)
            left = rest
        lines.append(scatter_taps(values, geometry.columns))
    return scatter_taps(lines, geometry.rows)


def differentiate_average_pool(op: Any, gradient: Tensor) -> Tensor:
    """Return the gradient of AvgPool with respect to its input. Padding does not count in the mean.

    Args:
        op: the op in NHWC layout.
        gradient: the gradient of its output, float32[batch, rows, columns, channels].
    """
    geometry = read_geometry(op, op.get_attr("ksize")[1:3])
    counts = np.ones((1, 1, 1, 1), np.float32)
    for axis in (geometry.rows, geometry.columns):
        starts = np.arange(axis.out) * axis.stride - axis.before
        inside = np.minimum(starts + axis.window, axis.size) - np.maximum(starts, 0)
        counts = counts * inside.reshape([-1 if index == axis.index else 1 for index in range(4)]).astype(
            np.float32
        )
    share = 1.0 / counts
    even = gradient * (float(share.flat[0]) if (share == share.flat[0]).all() else share)
    line = scatter_taps([even] * geometry.columns.window, geometry.columns)
    return scatter_taps([line] * geometry.rows.window, geometry.rows)

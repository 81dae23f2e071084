"""Gradients of max and average pooling in builtin ops, equal to TensorFlow's own: of several maxima in a
window the first one counts.
"""

from typing import Any

import numpy as np
import tensorflow as tf

from edgefl.compiler.windows import geometry_of, pad, taps, untap

Tensor = Any

_LOWEST = float(np.finfo(np.float32).min)


def max_pool_gradient(op: Any, gradient: Tensor) -> Tensor:
    """Return the gradient of MaxPool by its input.

    `sign(y - x)` is 0 where x is the maximum: cheaper in TFLite than EQUAL with CAST or WHERE. What no
    element before took goes to the last one.
    """
    geometry = geometry_of(op, op.get_attr("ksize")[1:3])
    image = pad(op.inputs[0], geometry, _LOWEST)
    top = op.outputs[0]
    left = gradient
    seen = [taps(row, geometry.columns) for row in taps(image, geometry.rows)]
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
        lines.append(untap(values, geometry.columns))
    return untap(lines, geometry.rows)


def average_pool_gradient(op: Any, gradient: Tensor) -> Tensor:
    """Return the gradient of AvgPool by its input; padded samples do not count in the mean."""
    geometry = geometry_of(op, op.get_attr("ksize")[1:3])
    counts = np.ones((1, 1, 1, 1), np.float32)
    for axis in (geometry.rows, geometry.columns):
        starts = np.arange(axis.out) * axis.stride - axis.before
        inside = np.minimum(starts + axis.window, axis.size) - np.maximum(starts, 0)
        counts = counts * inside.reshape([-1 if place == axis.place else 1 for place in range(4)]).astype(
            np.float32
        )
    share = 1.0 / counts
    even = gradient * (float(share.flat[0]) if (share == share.flat[0]).all() else share)
    line = untap([even] * geometry.columns.window, geometry.columns)
    return untap([line] * geometry.rows.window, geometry.rows)

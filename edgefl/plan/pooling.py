"""Gradients of max and average pooling in builtin ops, equal to TensorFlow's own: of several maxima in a window the first one counts."""

from typing import Any

import numpy as np
import tensorflow as tf

from edgefl.plan.windows import geometry_of, pad, phase, spread

Tensor = Any

_LOWEST = float(np.finfo(np.float32).min)


def max_pool_gradient(op: Any, gradient: Tensor) -> Tensor:
    """Return the gradient of MaxPool by its input.

    `1 - sign(y - x)` is 1 where x is the maximum: cheaper in TFLite than EQUAL with CAST or WHERE.
    """
    geometry = geometry_of(op, tuple(op.get_attr("ksize")[1:3]))
    image, top = pad(op.inputs[0], geometry, _LOWEST), op.outputs[0]
    left, values = gradient, []
    offsets = list(geometry.offsets())
    for offset in offsets:
        if offset == offsets[-1]:
            values.append(left)
            break
        value = left * (1.0 - tf.sign(top - phase(image, geometry, offset)))
        left = left - value
        values.append(value)
    return spread(values, geometry)


def average_pool_gradient(op: Any, gradient: Tensor) -> Tensor:
    """Return the gradient of AvgPool by its input; padded samples do not count in the mean."""
    geometry = geometry_of(op, tuple(op.get_attr("ksize")[1:3]))
    counts = np.ones((1, 1, 1, 1), np.float32)
    for axis, place in ((geometry.rows, 1), (geometry.columns, 2)):
        starts = np.arange(axis.out) * axis.stride - axis.before
        inside = np.minimum(starts + axis.window, axis.size) - np.maximum(starts, 0)
        counts = counts * inside.reshape((1, -1, 1, 1) if place == 1 else (1, 1, -1, 1)).astype(np.float32)
    share = 1.0 / counts
    even = gradient * (float(share.flat[0]) if (share == share.flat[0]).all() else share)
    return spread([even] * (geometry.rows.window * geometry.columns.window), geometry)

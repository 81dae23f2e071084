"""Batch norm and group norm with gradients in closed form, in builtin ops.

By the chain rule, each gradient needs about forty ops over the whole image. In closed form there are six
forward ops and seven backward ops. Let z = (x - mean) / s, s = sqrt(variance + epsilon), y = gamma z + beta
and g = gamma dy. The function mean(.) averages the values that are normalized together: one channel of the
batch for batch norm, and one group of a sample's channels for group norm.

    d beta = sum dy,    d gamma = sum dy z,    dx = (g - mean(g) - z mean(g z)) / s

Source: Ioffe and Szegedy 2015, section 3; Wu and He 2018, section 3.
"""

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

Tensor = Any
TensorTriple = tuple[Tensor, Tensor, Tensor]

MAX_ROW = 512
"""Maximum number of values in a row of several positions, see `_count_repeats`."""


def apply_batch_norm(
    x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float, is_swapped: bool = False
) -> TensorTriple:
    """Return the batch norm of a tensor, and the mean and variance of its channels.

    Args:
        x: float32[..., channels], or float32[channels, ...] if it is swapped.
        gamma: float32[channels].
        beta: float32[channels].
        epsilon: added to the variance.
        is_swapped: whether batch and channels are swapped.

    Returns:
        The normalized tensor in the shape of x, the mean, float32[channels], and the variance,
        float32[channels].
    """
    channels = gamma.shape[0]
    shape = (channels, -1, 1) if is_swapped else (1, -1, channels)
    size = math.prod(x.shape) // channels
    y, mean, variance = _normalize(
        tf.reshape(x, shape),
        _align(gamma, is_swapped),
        _align(beta, is_swapped),
        epsilon,
        lambda sums: sums * (1 / size),
    )
    return tf.reshape(y, x.shape), tf.reshape(mean, (-1,)), tf.reshape(variance, (-1,))


def apply_group_norm(
    x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float, groups: int, is_swapped: bool = False
) -> Tensor:
    """Return the group norm of a tensor. Each sample is normalized over its pixels and the channels of a
    group.

    Args:
        x: float32[batch, ..., channels], or float32[channels, ..., batch] if it is swapped.
        gamma: float32[channels].
        beta: float32[channels].
        epsilon: added to the variance.
        is_swapped: whether batch and channels are swapped.

    Returns:
        The normalized tensor in the shape of x.
    """
    channels = gamma.shape[0]
    first, last = x.shape[0], x.shape[-1]
    share = groups / (math.prod(x.shape) // (first * last) * channels)

    def average_sums(sums: Tensor) -> Tensor:
        if groups == channels:
            return sums * share
        # The channels of a group are side by side, on the first axis or on the last
        members = (
            (groups, channels // groups, last) if is_swapped else (first * groups, channels // groups, 1)
        )
        grouped = tf.reduce_sum(tf.reshape(sums, members), 1, keepdims=True) * share
        return tf.reshape(tf.tile(grouped, (1, channels // groups, 1)), (first, 1, last))

    y, _, _ = _normalize(
        tf.reshape(x, (first, -1, last)),
        _align(gamma, is_swapped),
        _align(beta, is_swapped),
        epsilon,
        average_sums,
    )
    return tf.reshape(y, x.shape)


def _align(values: Tensor, is_swapped: bool) -> Tensor:
    """Return values of the channels, float32[channels, 1, 1] or float32[1, 1, channels]."""
    return tf.reshape(values, (-1, 1, 1) if is_swapped else (1, 1, -1))


def apply_group_norm_for_export(
    x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float, groups: int
) -> Tensor:
    """Return the same as `apply_group_norm`, computed with ops that have an int8 form.

    On four axes, SUM, SQUARED_DIFFERENCE and NEG have no int8 form.

    Args:
        x: float32[batch, ..., channels].
        gamma: float32[channels].
        beta: float32[channels].
        epsilon: added to the variance.

    Returns:
        float32[batch, ..., channels].
    """
    affine_shape = (1, 1, groups, x.shape[-1] // groups)
    return _normalize_for_export(
        tf.reshape(x, (x.shape[0], -1, *affine_shape[2:])),
        (1, 3),
        affine_shape,
        gamma,
        beta,
        epsilon,
        x.shape,
    )


def apply_layer_norm_for_export(x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> Tensor:
    """Return the layer norm of a tensor, computed with ops that have an int8 form.

    Each pixel is normalized over its channels.

    Args:
        x: float32[batch, ..., channels].
        gamma: float32[channels].
        beta: float32[channels].
        epsilon: added to the variance.

    Returns:
        float32[batch, ..., channels].

    Source: Ba et al., arXiv:1607.06450.
    """
    affine_shape = (1, 1, 1, x.shape[-1])
    return _normalize_for_export(
        tf.reshape(x, (1, -1, 1, x.shape[-1])), (3,), affine_shape, gamma, beta, epsilon, x.shape
    )


def _normalize_for_export(
    x: Tensor,
    axes: tuple[int, ...],
    affine_shape: tuple[int, ...],
    gamma: Tensor,
    beta: Tensor,
    epsilon: float,
    shape: tuple[int, ...],
) -> Tensor:
    centred = x - tf.reduce_mean(x, axes, keepdims=True)
    inverse = tf.math.rsqrt(tf.reduce_mean(centred * centred, axes, keepdims=True) + epsilon)
    return tf.reshape(
        centred * (inverse * tf.reshape(gamma, affine_shape)) + tf.reshape(beta, affine_shape), shape
    )


def _normalize(
    x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float, average_sums: Callable[[Tensor], Tensor]
) -> TensorTriple:
    """Return the norm of x, and its mean and variance, float32[first, 1, last].

    Args:
        x: float32[first, positions, last].
        gamma: float32[first, 1, 1] or float32[1, 1, last].
        beta: the same shape.
        epsilon: added to the variance.
        average_sums: returns the means of the values that are normalized together, from their sums over
            positions. Both are float32[first, 1, last].
    """
    first, positions, last = x.shape
    repeats = _count_repeats(positions, last)

    def widen(values: Tensor) -> Tensor:
        """Return values of the last axis for rows of `repeats` positions."""
        if repeats == 1 or values.shape[2] == 1:
            return values
        return tf.tile(values, (1, 1, repeats))

    def sum_positions(rows: Tensor) -> Tensor:
        sums = _sum(rows, 1)
        return _sum(tf.reshape(sums, (first, repeats, last)), 1)

    def sum_weights(values: Tensor) -> Tensor:
        """Return sums of float32[first, 1, last] in the shape of gamma."""
        values = _sum(values, 0) if gamma.shape[0] == 1 else values
        return _sum(values, 2) if gamma.shape[2] == 1 else values

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def run(x: Tensor, gamma: Tensor, beta: Tensor) -> tuple[TensorTriple, Callable[..., TensorTriple]]:
        rows = (first, positions // repeats, repeats * last)
        x = tf.reshape(x, rows)
        mean = average_sums(sum_positions(x))
        centred = x - widen(mean)
        variance = average_sums(sum_positions(centred * centred))
        inverse = tf.math.rsqrt(variance + epsilon)

        def backpropagate(upstream: Tensor, *_: Tensor) -> TensorTriple:
            upstream = tf.reshape(upstream, rows)
            by_shift = sum_positions(upstream)
            by_z = sum_positions(upstream * centred) * inverse
            slope = average_sums(by_z * gamma) * (inverse * inverse)
            by_x = (
                upstream * widen(inverse * gamma)
                - centred * widen(slope)
                - widen(average_sums(by_shift * gamma) * inverse)
            )
            return tf.reshape(by_x, (first, positions, last)), sum_weights(by_z), sum_weights(by_shift)

        y = centred * widen(inverse * gamma) + widen(beta)
        return (tf.reshape(y, (first, positions, last)), mean, variance), backpropagate

    return run(x, gamma, beta)  # type: ignore[no-any-return]


def _count_repeats(positions: int, last: int) -> int:
    """Return how many positions make one row.

    Runtimes multiply values by the factors of their channels one row at a time. A row of a few channels takes
    as long as a row of a hundred, so the factors are repeated.
    """
    fitting = range(1, min(positions, MAX_ROW // last) + 1)
    return max((count for count in fitting if positions % count == 0), default=1)


def _sum(x: Tensor, axis: int) -> Tensor:
    return x if x.shape[axis] == 1 else tf.reduce_sum(x, axis, keepdims=True)

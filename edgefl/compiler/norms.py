"""Batch norm and group norm with gradients in closed form, in builtin ops.

By the chain rule, each gradient needs about forty ops over the whole image. In closed form there are six
forward ops and seven backward ops. Let z = (x - mean) / s, s = sqrt(variance + epsilon), y = gamma z + beta
and g = gamma dy. The function mean(.) averages the values that are normalized together: one channel of the
batch for batch norm, and one group of a sample's channels for group norm.

    d beta = sum dy,    d gamma = sum dy z,    dx = (g - mean(g) - z mean(g z)) / s

Source: Ioffe and Szegedy 2015, section 3; Wu and He 2018, section 3.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

Tensor = Any
TensorTriple = tuple[Tensor, Tensor, Tensor]


def apply_batch_norm(x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> TensorTriple:
    """Return the batch norm of a tensor, and the mean and variance of its channels.

    Args:
        x: float32[..., channels].
        gamma: float32[channels].
        beta: float32[channels].
        epsilon: added to the variance.

    Returns:
        The normalized tensor, float32[..., channels], the mean, float32[channels], and the variance,
        float32[channels].
    """
    y, mean, variance = _normalize(tf.reshape(x, (1, -1, x.shape[-1])), gamma, beta, epsilon, x.shape[-1])
    return tf.reshape(y, x.shape), tf.reshape(mean, (-1,)), tf.reshape(variance, (-1,))


def apply_group_norm(x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float, groups: int) -> Tensor:
    """Return the group norm of a tensor. Each sample is normalized over its pixels and the channels of a
    group.

    Args:
        x: float32[batch, ..., channels].
        gamma: float32[channels].
        beta: float32[channels].
        epsilon: added to the variance.
        groups: number of groups.

    Returns:
        float32[batch, ..., channels].
    """
    return tf.reshape(
        _normalize(tf.reshape(x, (x.shape[0], -1, x.shape[-1])), gamma, beta, epsilon, groups)[0], x.shape
    )


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
        groups: number of groups.

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


def _normalize(x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float, groups: int) -> TensorTriple:
    """Return the norm, the mean and the variance of x, float32[n, positions, channels].

    Mean and variance are float32[n, 1, channels], equal within a group.
    """
    count, positions, channels = x.shape
    share = groups / (positions * channels)

    def average_sums(sums: Tensor) -> Tensor:
        """Return means over positions and the channels of a group, from sums over positions.

        Both are float32[n, 1, channels].
        """
        if groups == channels:
            return sums * share
        grouped = (
            tf.reduce_sum(tf.reshape(sums, (count, groups, channels // groups)), 2, keepdims=True) * share
        )
        return tf.reshape(tf.tile(grouped, (1, 1, channels // groups)), (count, 1, channels))

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def run(x: Tensor, gamma: Tensor, beta: Tensor) -> tuple[TensorTriple, Callable[..., TensorTriple]]:
        mean = average_sums(_sum(x, 1))
        centred = x - mean
        variance = average_sums(_sum(centred * centred, 1))
        inverse = tf.math.rsqrt(variance + epsilon)

        def backpropagate(upstream: Tensor, *_: Tensor) -> TensorTriple:
            by_shift = _sum(upstream, 1)
            by_z = _sum(upstream * centred, 1) * inverse
            slope = average_sums(by_z * gamma) * (inverse * inverse)
            by_x = upstream * (inverse * gamma) - centred * slope - average_sums(by_shift * gamma) * inverse
            return by_x, _sum(by_z, 0), _sum(by_shift, 0)

        return (centred * (inverse * gamma) + beta, mean, variance), backpropagate

    return run(x, tf.reshape(gamma, (1, 1, channels)), tf.reshape(beta, (1, 1, channels)))  # type: ignore[no-any-return]


def _sum(x: Tensor, axis: int) -> Tensor:
    return x if x.shape[axis] == 1 else tf.reduce_sum(x, axis, keepdims=True)

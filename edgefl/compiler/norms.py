"""Batch norm and group norm with their gradients in closed form, in builtin ops.

By the chain rule each gradient needs some forty ops over the whole image. In closed form there are six
forward ops and seven backward ops. Let z = (x - mean) / s, s = sqrt(variance + epsilon), y = gamma z + beta
and g = gamma dy. Here mean(.) is over the values that are normalized together. For batch norm that is a
channel of the batch. For group norm that is a group of a sample's channels.

    d beta = sum dy,    d gamma = sum dy z,    dx = (g - mean(g) - z mean(g z)) / s

Source: Ioffe and Szegedy 2015, section 3; Wu and He 2018, section 3.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

Tensor = Any
TensorTriple = tuple[Tensor, Tensor, Tensor]


def apply_batch_norm(x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> TensorTriple:
    """Return y, like x float32[..., channels], and the batch's mean and variance float32[channels].

    Gamma, beta: float32[channels].
    """
    y, mean, variance = _normalize(tf.reshape(x, (1, -1, x.shape[-1])), gamma, beta, epsilon, x.shape[-1])
    return tf.reshape(y, x.shape), tf.reshape(mean, (-1,)), tf.reshape(variance, (-1,))


def apply_group_norm(x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float, groups: int) -> Tensor:
    """Return y, like x float32[batch, ..., channels]: each sample is normalized over its places and the
    channels of a group.
    """
    return tf.reshape(
        _normalize(tf.reshape(x, (x.shape[0], -1, x.shape[-1])), gamma, beta, epsilon, groups)[0], x.shape
    )


def apply_group_norm_for_export(
    x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float, groups: int
) -> Tensor:
    """Return the result of `apply_group_norm`, with ops that have an int8 form on four axes: no SUM,
    SQUARED_DIFFERENCE or NEG.
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
    """Normalize each place over its channels (Ba et al., arXiv:1607.06450), in the same ops."""
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
    """x: float32[n, places, channels].

    Mean and variance come back as float32[n, 1, channels], equal within a group.
    """
    count, positions, channels = x.shape
    share = groups / (positions * channels)

    def average_sums(sums: Tensor) -> Tensor:
        """Sums over places float32[n, 1, channels] -> means over places and a group's channels."""
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

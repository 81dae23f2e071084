"""Batch norm and group norm in closed form: by hand, against Keras and its gradients, and in the form that is
exported.
"""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from edgefl.compiler.norms import (
    apply_batch_norm,
    apply_group_norm,
    apply_group_norm_for_export,
    apply_layer_norm_for_export,
)

EXAMPLES = settings(max_examples=20, deadline=None, derandomize=True)
SHAPES = st.sampled_from([(3, 4, 2), (2, 5, 3, 2), (4, 1, 1, 2), (6, 2)])


def test_a_batch_by_hand():
    """1 and 3, gamma 2, beta 5: mean 2, variance 1, y 3 and 7."""
    y, mean, variance = apply_batch_norm(
        tf.constant([[1.0], [3.0]]), tf.constant([2.0]), tf.constant([5.0]), 0.0
    )
    np.testing.assert_allclose(y, [[3], [7]])
    assert (float(mean[0]), float(variance[0])) == (2, 1)


def test_two_groups_by_hand():
    """One sample of two places: 0, 2, 4, 2 (mean 2, variance 2) and 10, 10, 14, 14 (mean 12, variance 4)."""
    x = tf.constant([[[0.0, 2.0, 10.0, 10.0], [4.0, 2.0, 14.0, 14.0]]])
    root = 2**-0.5
    expected = [[[-2 * root, 0, -1, -1], [2 * root, 0, 1, 1]]]
    for form in (apply_group_norm, apply_group_norm_for_export):
        np.testing.assert_allclose(form(x, tf.ones(4), tf.zeros(4), 0.0, 2), expected, atol=1e-6)


def test_a_layer_norm_by_hand():
    """1 and 3: mean 2, variance 1; gamma 1 and 2, beta 0 and 5."""
    np.testing.assert_allclose(
        apply_layer_norm_for_export(
            tf.constant([[1.0, 3.0]]), tf.constant([1.0, 2.0]), tf.constant([0.0, 5.0]), 0.0
        ),
        [[-1, 7]],
    )


def gradients(function: Any, *tensors: np.ndarray) -> list[np.ndarray]:
    variables = [tf.Variable(tensor) for tensor in tensors]
    with tf.GradientTape() as tape:
        y = function(*variables)
        upstream = np.random.default_rng(1).normal(size=y.shape).astype(np.float32)
        total = tf.reduce_sum(y * upstream)
    return [y.numpy(), *(g.numpy() for g in tape.gradient(total, variables))]


def agree(received: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for got, want in zip(received, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * max(1.0, float(np.abs(want).max())))


def draw(shape: tuple[int, ...], channels: int, offset: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(offset, 2.0, (*shape, channels)).astype(np.float32)
    return x, rng.normal(size=channels).astype(np.float32), rng.normal(size=channels).astype(np.float32)


@EXAMPLES
@given(SHAPES, st.integers(1, 5), st.sampled_from([0.0, 3.0]), st.sampled_from([1e-3, 1e-5]))
def test_batch_norm_is_that_of_keras(shape, channels, offset, epsilon):
    x, gamma, beta = draw(shape, channels, offset)
    layer = keras.layers.BatchNormalization(epsilon=epsilon, momentum=0.8)
    layer.build(x.shape)
    before = [v.value for v in layer.non_trainable_variables]

    def reference(x: Any, gamma: Any, beta: Any) -> Any:
        return layer.stateless_call([gamma, beta], before, x, training=True)[0]

    agree(
        gradients(lambda *a: apply_batch_norm(*a, epsilon)[0], x, gamma, beta),
        gradients(reference, x, gamma, beta),
    )
    _, mean, variance = apply_batch_norm(x, gamma, beta, epsilon)
    _, moved = layer.stateless_call([gamma, beta], before, x, training=True)
    agree([0.2 * mean.numpy(), 0.8 + 0.2 * variance.numpy()], [v.numpy() for v in moved])


@EXAMPLES
@given(SHAPES, st.integers(1, 3), st.integers(1, 3), st.sampled_from([0.0, 3.0]))
def test_group_norm_is_that_of_keras(shape, groups, each, offset):
    x, gamma, beta = draw(shape, groups * each, offset)
    layer = keras.layers.GroupNormalization(groups)
    layer.build(x.shape)
    expected = gradients(lambda x, *trained: layer.stateless_call(list(trained), [], x)[0], x, gamma, beta)
    for form in (apply_group_norm, apply_group_norm_for_export):
        agree(gradients(lambda *a, form=form: form(*a, layer.epsilon, groups), x, gamma, beta), expected)


@EXAMPLES
@given(SHAPES, st.integers(2, 5))
def test_layer_norm_is_that_of_keras(shape, channels):
    x, gamma, beta = draw(shape, channels, 1.0)
    layer = keras.layers.LayerNormalization()
    layer.build(x.shape)
    layer.gamma.assign(gamma)
    layer.beta.assign(beta)
    np.testing.assert_allclose(
        apply_layer_norm_for_export(x, gamma, beta, layer.epsilon), layer(x), atol=1e-5
    )


@pytest.mark.parametrize("constant", [0.0, 7.0])
def test_what_does_not_vary_has_no_gradient(constant):
    """A channel of equal values: y is beta, and nothing blows up."""
    x = np.full((4, 3, 2), constant, np.float32)
    gamma = np.ones(2, np.float32)
    beta = np.array([1, 2], np.float32)
    y, by_x, by_gamma, _ = gradients(lambda *a: apply_batch_norm(*a, 1e-3)[0], x, gamma, beta)
    np.testing.assert_array_equal(y, np.broadcast_to(beta, y.shape))
    np.testing.assert_array_equal(by_gamma, 0)
    assert np.isfinite(by_x).all()

"""Batch norm and group norm in closed form match hand calculations, Keras and the gradients of Keras.

The form for export of group norm and layer norm matches them too.
"""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from edgefl.program.compiler import norms
from edgefl.program.compiler.convolution import swap_batch_channels
from edgefl.program.compiler.norms import (
    apply_batch_norm,
    apply_group_norm,
    apply_group_norm_for_export,
    apply_layer_norm_for_export,
)

EXAMPLES = settings(max_examples=20, deadline=None, derandomize=True)
SHAPES = st.sampled_from([(3, 4, 2), (2, 5, 3, 2), (4, 1, 1, 2), (6, 2)])


def test_batch_norm_matches_hand_calculation():
    """The batch 1, 3 has mean 2 and variance 1. With gamma 2 and beta 5, y is 3 and 7."""
    y, mean, variance = apply_batch_norm(
        tf.constant([[1.0], [3.0]]), tf.constant([2.0]), tf.constant([5.0]), 0.0
    )
    np.testing.assert_allclose(y, [[3], [7]])
    assert (float(mean[0]), float(variance[0])) == (2, 1)


def test_group_norm_matches_hand_calculation():
    """The groups of a sample are 0, 2, 4, 2 (mean 2, variance 2) and 10, 10, 14, 14 (mean 12, variance 4)."""
    x = tf.constant([[[0.0, 2.0, 10.0, 10.0], [4.0, 2.0, 14.0, 14.0]]])
    root = 2**-0.5
    expected = [[[-2 * root, 0, -1, -1], [2 * root, 0, 1, 1]]]
    for form in (apply_group_norm, apply_group_norm_for_export):
        np.testing.assert_allclose(form(x, tf.ones(4), tf.zeros(4), 0.0, 2), expected, atol=1e-6)


def test_layer_norm_matches_hand_calculation():
    """The sample 1, 3 has mean 2 and variance 1. Gamma is 1 and 2, and beta 0 and 5."""
    np.testing.assert_allclose(
        apply_layer_norm_for_export(
            tf.constant([[1.0, 3.0]]), tf.constant([1.0, 2.0]), tf.constant([0.0, 5.0]), 0.0
        ),
        [[-1, 7]],
    )


def compute_gradients(function: Any, *tensors: np.ndarray) -> list[np.ndarray]:
    variables = [tf.Variable(tensor) for tensor in tensors]
    with tf.GradientTape() as tape:
        y = function(*variables)
        upstream = np.random.default_rng(1).normal(size=y.shape).astype(np.float32)
        total = tf.reduce_sum(y * upstream)
    return [y.numpy(), *(g.numpy() for g in tape.gradient(total, variables))]


def check_close(received: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for received_array, expected_array in zip(received, expected, strict=True):
        np.testing.assert_allclose(
            received_array, expected_array, rtol=0, atol=1e-5 * max(1.0, float(np.abs(expected_array).max()))
        )


def draw_inputs(
    shape: tuple[int, ...], channels: int, offset: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(offset, 2.0, (*shape, channels)).astype(np.float32)
    return x, rng.normal(size=channels).astype(np.float32), rng.normal(size=channels).astype(np.float32)


@EXAMPLES
@given(SHAPES, st.integers(1, 5), st.sampled_from([0.0, 3.0]), st.sampled_from([1e-3, 1e-5]))
def test_batch_norm_matches_keras(shape, channels, offset, epsilon):
    x, gamma, beta = draw_inputs(shape, channels, offset)
    layer = keras.layers.BatchNormalization(epsilon=epsilon, momentum=0.8)
    layer.build(x.shape)
    before = [v.value for v in layer.non_trainable_variables]

    def reference(x: Any, gamma: Any, beta: Any) -> Any:
        return layer.stateless_call([gamma, beta], before, x, training=True)[0]

    check_close(
        compute_gradients(lambda *a: apply_batch_norm(*a, epsilon)[0], x, gamma, beta),
        compute_gradients(reference, x, gamma, beta),
    )
    _, mean, variance = apply_batch_norm(x, gamma, beta, epsilon)
    _, statistics = layer.stateless_call([gamma, beta], before, x, training=True)
    check_close([0.2 * mean.numpy(), 0.8 + 0.2 * variance.numpy()], [v.numpy() for v in statistics])


@EXAMPLES
@given(SHAPES, st.integers(1, 3), st.integers(1, 3), st.sampled_from([0.0, 3.0]))
def test_group_norm_matches_keras(shape, groups, group_size, offset):
    x, gamma, beta = draw_inputs(shape, groups * group_size, offset)
    layer = keras.layers.GroupNormalization(groups)
    layer.build(x.shape)
    expected = compute_gradients(
        lambda x, *trained: layer.stateless_call(list(trained), [], x)[0], x, gamma, beta
    )
    for form in (apply_group_norm, apply_group_norm_for_export):
        check_close(
            compute_gradients(lambda *a, form=form: form(*a, layer.epsilon, groups), x, gamma, beta), expected
        )


@EXAMPLES
@given(SHAPES, st.integers(1, 3), st.integers(1, 3), st.sampled_from([1, 6, 512]))
def test_norms_of_swapped_images_match_others(shape, groups, group_size, row):
    """The result does not depend on the order of the axes, nor on how many positions make a row."""
    x, gamma, beta = draw_inputs(shape, groups * group_size, 1.0)

    def normalize(x: Any, gamma: Any, beta: Any, is_swapped: bool) -> Any:
        batch = apply_batch_norm(x, gamma, beta, 1e-3, is_swapped)[0]
        return batch + apply_group_norm(x, gamma, beta, 1e-3, groups, is_swapped)

    def normalize_swapped(x: Any, *weights: Any) -> Any:
        return swap_batch_channels(normalize(swap_batch_channels(x), *weights, True))

    expected = compute_gradients(lambda *a: normalize(*a, False), x, gamma, beta)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(norms, "MAX_ROW", row)
        check_close(compute_gradients(normalize_swapped, x, gamma, beta), expected)
        check_close(compute_gradients(lambda *a: normalize(*a, False), x, gamma, beta), expected)


@EXAMPLES
@given(SHAPES, st.integers(2, 5))
def test_layer_norm_matches_keras(shape, channels):
    x, gamma, beta = draw_inputs(shape, channels, 1.0)
    layer = keras.layers.LayerNormalization()
    layer.build(x.shape)
    layer.gamma.assign(gamma)
    layer.beta.assign(beta)
    np.testing.assert_allclose(
        apply_layer_norm_for_export(x, gamma, beta, layer.epsilon), layer(x), atol=1e-5
    )


@pytest.mark.parametrize("constant", [0.0, 7.0])
def test_constant_channel_has_zero_gamma_gradient(constant):
    """If all values of a channel are equal, y is beta and the gradients are finite."""
    x = np.full((4, 3, 2), constant, np.float32)
    gamma = np.ones(2, np.float32)
    beta = np.array([1, 2], np.float32)
    y, by_x, by_gamma, _ = compute_gradients(lambda *a: apply_batch_norm(*a, 1e-3)[0], x, gamma, beta)
    np.testing.assert_array_equal(y, np.broadcast_to(beta, y.shape))
    np.testing.assert_array_equal(by_gamma, 0)
    assert np.isfinite(by_x).all()

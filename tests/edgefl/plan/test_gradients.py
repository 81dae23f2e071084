"""The builtin gradients against TensorFlow's autodiff, over sizes, windows, strides and paddings."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from edgefl.plan.gradients import builtin_gradients

EXAMPLES = settings(max_examples=20, deadline=None, derandomize=True)
PADDING = st.sampled_from(["same", "valid"])
SMALL = st.integers(1, 4)


def gradients(layer: Any, x: np.ndarray, upstream: np.ndarray, override: bool) -> list[np.ndarray]:
    """The gradients of sum(layer(x) * upstream) by x and by the layer's trained weights."""

    def run(x: Any, *weights: Any) -> Any:
        y = layer.stateless_call(list(weights), [v.value for v in layer.non_trainable_variables], x, **training)[0]
        return tf.gradients(tf.reduce_sum(y * upstream), [x, *weights])

    def overridden(*args: Any) -> Any:
        with builtin_gradients():
            return run(*args)

    training = {"training": True} if layer._call_has_training_arg else {}
    function = tf.function(overridden if override else run, autograph=False)
    return [g.numpy() for g in function(tf.constant(x), *[v.value for v in layer.trainable_variables])]


def check(layer: Any, shape: tuple[int, ...], seed: int = 0, levels: int = 0) -> None:
    """Compare on random values; with `levels`, on so few that maxima tie."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=shape).astype(np.float32) if not levels else rng.integers(0, levels, shape).astype(np.float32)
    layer.build(shape)
    for variable in layer.trainable_variables:
        variable.assign(rng.normal(size=variable.shape).astype(np.float32))
    upstream = rng.normal(size=layer(x).shape).astype(np.float32)
    for expected, received in zip(gradients(layer, x, upstream, False), gradients(layer, x, upstream, True), strict=True):
        assert received.shape == expected.shape
        scale = max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(received / scale, expected / scale, atol=1e-5, rtol=0)


@EXAMPLES
@given(
    st.tuples(SMALL, SMALL), SMALL, SMALL, st.tuples(st.integers(1, 5), st.integers(1, 5)), st.integers(1, 3), PADDING, st.integers(0, 7)
)
def test_conv2d(kernel, channels, filters, extra, stride, padding, seed):
    size = (kernel[0] + extra[0], kernel[1] + extra[1])
    layer = keras.layers.Conv2D(filters, kernel, strides=stride, padding=padding)
    check(layer, (2, *size, channels), seed)


@EXAMPLES
@given(st.integers(2, 3), st.integers(2, 3), st.integers(7, 10), PADDING)
def test_conv2d_dilated(kernel, dilation, size, padding):
    check(keras.layers.Conv2D(3, kernel, dilation_rate=dilation, padding=padding), (2, size, size, 2))


@EXAMPLES
@given(SMALL, SMALL, st.integers(1, 6), st.integers(1, 3), PADDING)
def test_conv1d(kernel, channels, extra, stride, padding):
    check(keras.layers.Conv1D(3, kernel, strides=stride, padding=padding), (2, kernel + extra, channels))


@EXAMPLES
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(0, 5), st.integers(1, 3), PADDING)
def test_depthwise(kernel, channels, multiplier, extra, stride, padding):
    layer = keras.layers.DepthwiseConv2D(kernel, strides=stride, padding=padding, depth_multiplier=multiplier)
    check(layer, (2, kernel + extra, kernel + extra + 1, channels))


@EXAMPLES
@given(
    st.sampled_from(["MaxPooling2D", "AveragePooling2D"]),
    st.tuples(SMALL, SMALL),
    st.tuples(st.integers(1, 3), st.integers(1, 3)) | st.none(),
    st.tuples(st.integers(0, 5), st.integers(0, 5)),
    PADDING,
    st.sampled_from([0, 2]),
)
def test_pooling2d(kind, window, strides, extra, padding, levels):
    layer = getattr(keras.layers, kind)(window, strides=strides, padding=padding)
    check(layer, (2, window[0] + extra[0], window[1] + extra[1], 3), levels=levels)


@EXAMPLES
@given(st.sampled_from(["MaxPooling1D", "AveragePooling1D"]), SMALL, st.integers(1, 3), st.integers(0, 6), PADDING, st.sampled_from([0, 2]))
def test_pooling1d(kind, window, stride, extra, padding, levels):
    assume(window + extra >= 1)
    check(getattr(keras.layers, kind)(window, strides=stride, padding=padding), (2, window + extra, 3), levels=levels)


LAYERS: dict[str, Callable[[], Any]] = {
    "BatchNormalization": lambda: keras.layers.BatchNormalization(),
    "GroupNormalization": lambda: keras.layers.GroupNormalization(2),
    "LayerNormalization": lambda: keras.layers.LayerNormalization(),
    "SeparableConv2D": lambda: keras.layers.SeparableConv2D(3, 3, padding="same"),
    "GlobalAveragePooling2D": lambda: keras.layers.GlobalAveragePooling2D(),
    "GlobalMaxPooling2D": lambda: keras.layers.GlobalMaxPooling2D(),
    "ReLU": lambda: keras.layers.ReLU(),
    "ReLU6": lambda: keras.layers.ReLU(max_value=6),
    "LeakyReLU": lambda: keras.layers.LeakyReLU(0.3),
    "Softmax": lambda: keras.layers.Softmax(),
    "Dense": lambda: keras.layers.Dense(3),
    "Flatten": lambda: keras.layers.Flatten(),
    "Reshape": lambda: keras.layers.Reshape((6, 24)),
    "ZeroPadding2D": lambda: keras.layers.ZeroPadding2D(1),
    "UpSampling2D": lambda: keras.layers.UpSampling2D(2),
    **{name: lambda name=name: keras.layers.Activation(name) for name in ("sigmoid", "tanh", "elu", "softplus", "silu", "relu6", "gelu")},
}


@pytest.mark.parametrize("name", LAYERS)
def test_layer(name):
    check(LAYERS[name](), (2, 6, 6, 4))

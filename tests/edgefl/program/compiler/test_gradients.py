"""The builtin gradients match TensorFlow's autodiff for many sizes, windows, strides and paddings."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from edgefl.base.errors import PlanError
from edgefl.program.compiler import convolution
from edgefl.program.compiler.gradients import use_builtin_gradients

EXAMPLES = settings(max_examples=20, deadline=None, derandomize=True)
PADDING = st.sampled_from(["same", "valid"])
SMALL = st.integers(1, 4)


def compute_gradients(layer: Any, x: np.ndarray, upstream: np.ndarray, override: bool) -> list[np.ndarray]:
    """Return the gradients of sum(layer(x) * upstream) with respect to x and the layer's trained weights."""

    def run(x: Any, *weights: Any) -> Any:
        y = layer.stateless_call(
            list(weights), [v.value for v in layer.non_trainable_variables], x, **training
        )[0]
        return tf.gradients(tf.reduce_sum(y * upstream), [x, *weights])

    def overridden(*args: Any) -> Any:
        with use_builtin_gradients():
            return run(*args)

    training = {"training": True} if layer._call_has_training_arg else {}
    function = tf.function(overridden if override else run, autograph=False)
    return [g.numpy() for g in function(tf.constant(x), *[v.value for v in layer.trainable_variables])]


def check_gradients(layer: Any, shape: tuple[int, ...], seed: int = 0, levels: int = 0) -> None:
    """Compare both gradients on random values.

    Args:
        levels: number of distinct values of x, so that maxima tie. 0 draws x from a normal distribution.
    """
    rng = np.random.default_rng(seed)
    x = (
        rng.normal(size=shape).astype(np.float32)
        if not levels
        else rng.integers(0, levels, shape).astype(np.float32)
    )
    layer.build(shape)
    for variable in layer.trainable_variables:
        variable.assign(rng.normal(size=variable.shape).astype(np.float32))
    upstream = rng.normal(size=layer(x).shape).astype(np.float32)
    for expected, received in zip(
        compute_gradients(layer, x, upstream, False), compute_gradients(layer, x, upstream, True), strict=True
    ):
        assert received.shape == expected.shape
        scale = max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(received / scale, expected / scale, atol=1e-5, rtol=0)


@EXAMPLES
@given(
    st.tuples(SMALL, SMALL),
    SMALL,
    SMALL,
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
    st.integers(1, 3),
    PADDING,
    st.integers(0, 7),
)
def test_conv2d(kernel, channels, filters, extra, stride, padding, seed):
    size = (kernel[0] + extra[0], kernel[1] + extra[1])
    layer = keras.layers.Conv2D(filters, kernel, strides=stride, padding=padding)
    check_gradients(layer, (2, *size, channels), seed)


@EXAMPLES
@given(st.integers(2, 3), st.integers(2, 3), st.integers(7, 10), PADDING)
def test_conv2d_dilated(kernel, dilation, size, padding):
    check_gradients(
        keras.layers.Conv2D(3, kernel, dilation_rate=dilation, padding=padding), (2, size, size, 2)
    )


@EXAMPLES
@given(SMALL, SMALL, st.integers(1, 6), st.integers(1, 3), PADDING)
def test_conv1d(kernel, channels, extra, stride, padding):
    check_gradients(
        keras.layers.Conv1D(3, kernel, strides=stride, padding=padding), (2, kernel + extra, channels)
    )


@EXAMPLES
@given(
    st.tuples(SMALL, SMALL),
    st.integers(1, 3),
    st.integers(1, 3),
    st.tuples(st.integers(1, 8), st.integers(1, 8)),
    st.integers(1, 5),
    PADDING,
)
@example((3, 3), 2, 1, (1, 1), 3, "same")
@example((3, 4), 2, 1, (5, 2), 4, "same")
@example((1, 1), 2, 1, (1, 1), 2, "same")
@example((1, 3), 2, 2, (7, 5), 3, "valid")
def test_depthwise(kernel, channels, multiplier, size, stride, padding):
    """Covers images below the stride or the filter, and strides above it, whose windows skip pixels."""
    assume(padding == "same" or (size[0] >= kernel[0] and size[1] >= kernel[1]))
    layer = keras.layers.DepthwiseConv2D(kernel, strides=stride, padding=padding, depth_multiplier=multiplier)
    check_gradients(layer, (2, *size, channels))


@pytest.mark.parametrize(
    ("limit", "channels"), [(1, [3, 3, 3, 3]), (5, [3, 3, 3, 3]), (6, [6, 6]), (11, [9, 3]), (12, [12])]
)
def test_depthwise_splits_batch_by_channels(limit, channels, monkeypatch):
    """The gradient of the filter has the channels of as many of the four samples as the limit allows."""
    monkeypatch.setattr(convolution, "MAX_DEPTHWISE_CHANNELS", limit)
    layer = keras.layers.DepthwiseConv2D(3, strides=2, padding="same")
    check_gradients(layer, (4, 7, 6, 3))
    with tf.Graph().as_default() as graph, use_builtin_gradients():
        x = tf.compat.v1.placeholder(tf.float32, (4, 7, 6, 3))
        kernel = tf.compat.v1.placeholder(tf.float32, (3, 3, 3, 1))
        y = tf.nn.depthwise_conv2d(x, kernel, (1, 2, 2, 1), "SAME")
        tf.gradients(y, kernel)
    ops = [op for op in graph.get_operations() if op.type == "DepthwiseConv2dNative"]
    assert [op.outputs[0].shape[-1] for op in ops if op.outputs[0].shape[0] == 1] == channels


def test_depthwise_with_gaps_has_no_constants():
    """A third of the pixels is in no window. Their zeros are not stored in the program."""
    with tf.Graph().as_default() as graph, use_builtin_gradients():
        x = tf.compat.v1.placeholder(tf.float32, (8, 48, 48, 4))
        kernel = tf.compat.v1.placeholder(tf.float32, (2, 2, 4, 1))
        y = tf.nn.depthwise_conv2d(x, kernel, (1, 3, 3, 1), "VALID")
        tf.gradients(y, x, tf.compat.v1.placeholder(tf.float32, y.shape))
    sizes = [
        op.outputs[0].shape.num_elements() for op in graph.get_operations() if op.type in ("Const", "Fill")
    ]
    assert max(sizes) < 100


@pytest.mark.parametrize(
    "options",
    [
        {"strides": (1, 1, 1, 1), "padding": "VALID", "dilations": (1, 2, 2, 1)},
        {
            "strides": (1, 1, 1, 1),
            "padding": "EXPLICIT",
            "explicit_paddings": (0, 0, 2, 2, 2, 2, 0, 0),
        },
    ],
)
def test_depthwise_of_an_own_layer_is_refused(options):
    with tf.Graph().as_default(), use_builtin_gradients():
        x = tf.compat.v1.placeholder(tf.float32, (1, 8, 8, 2))
        kernel = tf.compat.v1.placeholder(tf.float32, (3, 3, 2, 1))
        with tf.name_scope("own"):
            y = tf.raw_ops.DepthwiseConv2dNative(input=x, filter=kernel, **options)
        with pytest.raises(PlanError, match=r"layer own calls .* explicit padding, .*keras.layers.Depthwise"):
            tf.gradients(y, x)


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
    check_gradients(layer, (2, window[0] + extra[0], window[1] + extra[1], 3), levels=levels)


@EXAMPLES
@given(
    st.sampled_from(["MaxPooling1D", "AveragePooling1D"]),
    SMALL,
    st.integers(1, 3),
    st.integers(0, 6),
    PADDING,
    st.sampled_from([0, 2]),
)
def test_pooling1d(kind, window, stride, extra, padding, levels):
    assume(window + extra >= 1)
    check_gradients(
        getattr(keras.layers, kind)(window, strides=stride, padding=padding),
        (2, window + extra, 3),
        levels=levels,
    )


@settings(EXAMPLES, max_examples=8)
@given(st.tuples(SMALL, SMALL), st.integers(1, 3), st.integers(1, 3), st.integers(1, 2), PADDING)
def test_depthwise1d_and_separable1d(kernel, channels, multiplier, stride, padding):
    shape = (2, kernel[0] + kernel[1], channels)
    check_gradients(
        keras.layers.DepthwiseConv1D(kernel[0], strides=stride, padding=padding, depth_multiplier=multiplier),
        shape,
    )
    check_gradients(
        keras.layers.SeparableConv1D(
            3, kernel[0], strides=stride, padding=padding, depth_multiplier=multiplier
        ),
        shape,
    )


ACTIVATIONS = (
    "sigmoid",
    "tanh",
    "elu",
    "selu",
    "softplus",
    "softsign",
    "silu",
    "mish",
    "relu6",
    "hard_sigmoid",
    "hard_silu",
    "exponential",
    "log_softmax",
    "gelu",
)
CUTS = st.sampled_from(
    [slice(None), slice(1, None), slice(None, -1), slice(-2, None), slice(1, 3), slice(0, 4, 2), 0, -1]
)


@EXAMPLES
@given(CUTS, CUTS)
def test_slices(rows, columns):
    check_function_gradients(lambda x: x[:, rows, columns], (2, 4, 5, 3))


@EXAMPLES
@given(st.lists(st.integers(1, 3), min_size=3, max_size=3))
def test_tiles(multiples):
    check_function_gradients(lambda x: tf.tile(x, multiples), (2, 3, 4))


def check_function_gradients(function: Callable[[Any], Any], shape: tuple[int, ...]) -> None:
    check_gradients(keras.layers.Lambda(function), shape)


LAYERS: dict[str, Callable[[], Any]] = {
    "BatchNormalization": lambda: keras.layers.BatchNormalization(),
    "GroupNormalization": lambda: keras.layers.GroupNormalization(2),
    "GroupNormalization of one group": lambda: keras.layers.GroupNormalization(1),
    "GroupNormalization of single channels": lambda: keras.layers.GroupNormalization(-1),
    "LayerNormalization": lambda: keras.layers.LayerNormalization(),
    "RMSNormalization": lambda: keras.layers.RMSNormalization(),
    "UnitNormalization": lambda: keras.layers.UnitNormalization(),
    "SeparableConv2D": lambda: keras.layers.SeparableConv2D(3, 3, padding="same"),
    "GlobalAveragePooling2D": lambda: keras.layers.GlobalAveragePooling2D(),
    "GlobalMaxPooling2D": lambda: keras.layers.GlobalMaxPooling2D(),
    "ReLU": lambda: keras.layers.ReLU(),
    "ReLU6": lambda: keras.layers.ReLU(max_value=6),
    "ReLU with a low top": lambda: keras.layers.ReLU(max_value=0.5),
    "PReLU": lambda: keras.layers.PReLU(),
    "LeakyReLU": lambda: keras.layers.LeakyReLU(0.3),
    "Softmax": lambda: keras.layers.Softmax(),
    "Dense": lambda: keras.layers.Dense(3),
    "Flatten": lambda: keras.layers.Flatten(),
    "Reshape": lambda: keras.layers.Reshape((6, 24)),
    "ZeroPadding2D": lambda: keras.layers.ZeroPadding2D(1),
    "UpSampling2D": lambda: keras.layers.UpSampling2D(2),
    "Cropping2D": lambda: keras.layers.Cropping2D(((1, 2), (0, 3))),
    "Permute": lambda: keras.layers.Permute((2, 1, 3)),
    "Rescaling": lambda: keras.layers.Rescaling(0.5, 1.0),
    **{name: lambda name=name: keras.layers.Activation(name) for name in ACTIVATIONS},
}
LAYERS_1D: dict[str, Callable[[], Any]] = {
    "GlobalAveragePooling1D": lambda: keras.layers.GlobalAveragePooling1D(),
    "GlobalMaxPooling1D": lambda: keras.layers.GlobalMaxPooling1D(),
    "BatchNormalization": lambda: keras.layers.BatchNormalization(),
    "GroupNormalization": lambda: keras.layers.GroupNormalization(2),
    "causal Conv1D": lambda: keras.layers.Conv1D(3, 3, padding="causal", dilation_rate=2),
    "ZeroPadding1D": lambda: keras.layers.ZeroPadding1D(2),
    "Cropping1D": lambda: keras.layers.Cropping1D(1),
    "UpSampling1D": lambda: keras.layers.UpSampling1D(2),
    "LSTM": lambda: keras.layers.LSTM(3, unroll=True),
    "GRU": lambda: keras.layers.GRU(3, unroll=True),
}
JOINS: dict[str, Callable[[Any], Any]] = {
    "Add": lambda x: keras.layers.Add()([x, tf.nn.relu(x), x]),
    "Multiply": lambda x: keras.layers.Multiply()(
        [x, tf.nn.sigmoid(tf.reduce_mean(x, (1, 2), keepdims=True))]
    ),
    "Concatenate": lambda x: keras.layers.Concatenate()([x, tf.nn.relu6(x)]),
    "Average": lambda x: keras.layers.Average()([x, tf.tanh(x)]),
    "Maximum": lambda x: keras.layers.Maximum()([x, 0.5 * x]),
    "padded channels": lambda x: keras.ops.pad(x, [[0, 0], [0, 0], [0, 0], [1, 2]]),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layer(name):
    check_gradients(LAYERS[name](), (2, 6, 6, 4))


@pytest.mark.parametrize("name", LAYERS_1D)
def test_layer_1d(name):
    check_gradients(LAYERS_1D[name](), (2, 7, 4))


@pytest.mark.parametrize("name", JOINS)
def test_join(name):
    check_function_gradients(JOINS[name], (2, 4, 4, 3))

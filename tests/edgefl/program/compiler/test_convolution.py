"""A convolution as matrix products matches tf.nn.conv2d in its value and both gradients."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edgefl.base.rng import derive_rng
from edgefl.program.compiler import convolution
from edgefl.program.compiler import objective as of
from edgefl.program.compiler.network import Network
from edgefl.program.compiler.optimizer import sgd
from edgefl.program.compiler.windows import gather_tap, has_samples, list_phases, make_geometry, scatter_tap
from edgefl.program.learner.keras import KerasLearner
from edgefl.program.learner.litert import LiteRTLearner
from edgefl.program.plan.inspect import inspect_plan
from tests.support.network_plan import compile_network_plan

SIZES = st.tuples(st.integers(1, 4), st.integers(1, 4))


def convolve_with_tensorflow(
    image: tf.Tensor, weights: tf.Tensor, strides: tuple[int, int], dilation: int, padding: str
) -> tf.Tensor:
    if dilation > 1:  # On a CPU, conv2d with dilation has no gradient
        return tf.nn.atrous_conv2d(image, weights, dilation, padding)
    return tf.nn.conv2d(image, weights, strides, padding)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    SIZES,
    SIZES,
    SIZES,
    st.sampled_from([(1, 1), (2, 2), (3, 3)]),
    st.integers(1, 2),
    st.sampled_from(["SAME", "VALID"]),
)
@example((1, 2), (1, 1), (1, 1), (1, 1), 2, "SAME")
@example((2, 1), (1, 1), (1, 1), (1, 1), 2, "SAME")
def test_convolution_and_its_gradients_match_tensorflow(kernel, extra, channels, strides, dilation, padding):
    """Covers images of one pixel, where the edge of a window sees only padding.

    Filters have fewer or more output channels than input channels.
    """
    dilation = 1 if strides != (1, 1) else dilation
    windows = [(k - 1) * dilation + 1 for k in kernel]
    size = tuple(e if padding == "SAME" else window + e - 1 for window, e in zip(windows, extra, strict=True))
    rng = np.random.default_rng(0)
    image = tf.constant(rng.normal(size=(2, *size, channels[0])), tf.float32)
    weights = tf.constant(rng.normal(size=(*kernel, *channels)), tf.float32)
    geometry = make_geometry(size, kernel, strides, (dilation, dilation), padding)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([image, weights])
        expected = convolve_with_tensorflow(image, weights, strides, dilation, padding)
        received = convolution.swap_batch_channels(
            convolution.convolve(convolution.swap_batch_channels(image), weights, geometry)
        )
        upstream = tf.constant(rng.normal(size=expected.shape), tf.float32)
        sums = [tf.reduce_sum(y * upstream) for y in (expected, received)]
    np.testing.assert_allclose(received, expected, atol=1e-5)
    for expected_gradient, gradient in zip(
        *(tape.gradient(total, [image, weights]) for total in sums), strict=True
    ):
        np.testing.assert_allclose(
            gradient, expected_gradient, atol=1e-5 * max(1.0, float(np.abs(expected_gradient).max()))
        )


def test_convolution_matches_hand_calculation():
    """The image is 1 to 9 row by row, and the filter ((1, 10), (100, 1000)).

    The upper left window gives 1 + 20 + 400 + 5000.
    """
    image = tf.reshape(tf.range(1.0, 10.0), (1, 3, 3, 1))
    weights = tf.reshape(tf.constant([1.0, 10.0, 100.0, 1000.0]), (2, 2, 1, 1))
    geometry = make_geometry((3, 3), (2, 2), (1, 1), (1, 1), "VALID")
    # Swapping batch and channels does not change an image of one sample and one channel
    out = convolution.convolve(image, weights, geometry)
    np.testing.assert_array_equal(out[0, :, :, 0], [[5421, 6532], [8754, 9865]])


def test_gather_tap_and_scatter_tap_match_hand_calculation():
    """The samples are 1, 2, 3 and windows have three elements. Their first elements see padding, 1 and 2."""
    rows = make_geometry((3, 1), (3, 1), (1, 1), (1, 1), "SAME").rows
    samples = tf.reshape(tf.constant([9.0, 1.0, 2.0, 3.0])[1:], (1, 3, 1, 1))
    gathered = [tf.reshape(gather_tap(samples, rows, k, 0, 1), (-1,)).numpy().tolist() for k in range(3)]
    assert gathered == [[0, 1, 2], [1, 2, 3], [2, 3, 0]]
    scattered = [tf.reshape(scatter_tap(samples, rows, k), (-1,)).numpy().tolist() for k in range(3)]
    assert scattered == [[2, 3, 0], [1, 2, 3], [0, 1, 2]]


def test_window_element_over_padding_only_has_no_samples():
    columns = make_geometry((1, 1), (1, 3), (1, 1), (1, 1), "SAME").columns
    assert [has_samples(columns, k) for k in range(3)] == [False, True, False]


def test_second_swap_returns_the_original_tensor():
    with tf.Graph().as_default() as graph:
        image = tf.compat.v1.placeholder(tf.float32, (2, 5, 4, 3))
        swapped = convolution.swap_batch_channels(image)
        assert swapped.shape == (3, 5, 4, 2)
        assert convolution.swap_batch_channels(swapped) is image
        assert convolution.find_swap_input(tf.transpose(image, (0, 2, 1, 3))) is None
        assert [op.type for op in graph.get_operations()].count("Transpose") == 2


def test_large_convolution_keeps_conv2d_and_trains_like_keras(monkeypatch: pytest.MonkeyPatch):
    """Above the memory limit, the program has CONV_2D and computes the filter's gradient row by row."""
    monkeypatch.setattr(convolution, "MAX_PATCHES_BYTES", 0)
    keras.utils.set_random_seed(0)
    layers = keras.layers
    network = Network(
        keras.Sequential(
            [
                keras.Input((9, 8, 2)),
                layers.Conv2D(4, 3, padding="same", activation="relu", name="a"),
                layers.Conv2D(4, (2, 3), strides=2, name="b"),
                layers.Flatten(),
                layers.Dense(3, name="fc"),
            ]
        )
    )
    objectives = (of.classify(network, 4, sgd(0.05)),)
    plan = compile_network_plan(network, objectives)
    assert inspect_plan(plan)["signatures"]["train"]["ops"]["CONV_2D"] >= 2
    rng = np.random.default_rng(0)
    x = rng.random((10, 9, 8, 2), dtype=np.float32)
    y = rng.integers(0, 3, 10)
    learners = (LiteRTLearner(plan), KerasLearner(plan.spec, objectives))
    weights, expected = (
        learner.fit("train", network.read_weights(), {"x": x}, y, epochs=2, rng=derive_rng(1, 1))[0]
        for learner in learners
    )
    for name in expected:
        np.testing.assert_allclose(weights[name], expected[name], atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    ("size", "stride", "padding", "phases"),
    [
        # Window 3 with stride 1 sees each pixel with its three elements
        (4, 1, "SAME", [((0, 1, 2), 4, 1, 1)]),
        (4, 1, "VALID", [((0, 1, 2), 4, 2, 2)]),
        # The windows start at 0 and 2: element 0 or 2 sees pixels 0 and 2, and element 1 pixels 1 and 3
        (4, 2, "SAME", [((0, 2), 2, 1, 0), ((1,), 2, 0, 0)]),
        # They start at -1, 1 and 3
        (5, 2, "SAME", [((1,), 3, 0, 0), ((0, 2), 3, 0, 1)]),
        # Only element 1 of the one window is in the image
        (1, 3, "SAME", [((1,), 1, 0, 0)]),
        # One window of pixels 0 to 2, and pixel 3 in none
        (4, 4, "VALID", [((0,), 1, 0, 0), ((1,), 1, 0, 0), ((2,), 1, 0, 0), ((), 1, -1, 0)]),
    ],
)
def test_phases_match_hand_calculation(size, stride, padding, phases):
    geometry = make_geometry((size, size), (3, 3), (stride, stride), (1, 1), padding)
    received = [
        (tuple(phase.taps), phase.size, phase.before, phase.after) for phase in list_phases(geometry.columns)
    ]
    assert received == phases

"""A convolution as matrix products against tf.nn.conv2d: value and both gradients."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from edgefl.learner.keras import KerasLearner
from edgefl.learner.litert import LiteRTLearner
from edgefl.plan import convolution
from edgefl.plan import objective as of
from edgefl.plan.compile import compile_program
from edgefl.plan.inspect import inspect_plan
from edgefl.plan.network import Network
from edgefl.plan.optimizer import sgd
from edgefl.plan.spec import Plan, PlanSpec
from edgefl.plan.windows import make_geometry, patches
from edgefl.rng import rng_for

SIZES = st.tuples(st.integers(1, 4), st.integers(1, 4))


def oracle(image: tf.Tensor, weights: tf.Tensor, strides: tuple[int, int], dilation: int, padding: str) -> tf.Tensor:
    if dilation > 1:  # conv2d has no gradient on a CPU then
        return tf.nn.atrous_conv2d(image, weights, dilation, padding)
    return tf.nn.conv2d(image, weights, strides, padding)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(SIZES, SIZES, SIZES, st.sampled_from([(1, 1), (2, 2), (3, 3)]), st.integers(1, 2), st.sampled_from(["SAME", "VALID"]))
def test_convolve(kernel, extra, channels, strides, dilation, padding):
    dilation = 1 if strides != (1, 1) else dilation
    size = tuple((k - 1) * dilation + 1 + e for k, e in zip(kernel, extra, strict=True))
    rng = np.random.default_rng(0)
    image = tf.constant(rng.normal(size=(2, *size, channels[0])), tf.float32)
    weights = tf.constant(rng.normal(size=(*kernel, *channels)), tf.float32)
    geometry = make_geometry(size, kernel, strides, (dilation, dilation), padding)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([image, weights])
        expected = oracle(image, weights, strides, dilation, padding)
        received = convolution.convolve(image, weights, geometry)
        upstream = tf.constant(rng.normal(size=expected.shape), tf.float32)
        sums = [tf.reduce_sum(y * upstream) for y in (expected, received)]
    np.testing.assert_allclose(received, expected, atol=1e-5)
    for want, got in zip(*(tape.gradient(total, [image, weights]) for total in sums), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5 * max(1.0, float(np.abs(want).max())))


def test_patches_by_hand():
    image = tf.reshape(tf.range(9.0), (1, 3, 3, 1))
    geometry = make_geometry((3, 3), (2, 2), (1, 1), (1, 1), "VALID")
    np.testing.assert_array_equal(patches(image, geometry)[0, 1, 1], [4, 5, 7, 8])


def test_a_large_convolution_stays_one_and_trains_alike(monkeypatch: pytest.MonkeyPatch):
    """Above the limit of memory the program holds CONV_2D and takes the filter's gradient row by row."""
    monkeypatch.setattr(convolution, "PATCHES_LIMIT", 0)
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
    program, signatures = compile_program(objectives)
    plan = Plan(PlanSpec("m", "a", {}, (9, 8, 2), 3, network.specs, signatures), program, b"")
    assert inspect_plan(plan)["signatures"]["train"]["ops"]["CONV_2D"] >= 2
    rng = np.random.default_rng(0)
    x, y = rng.random((10, 9, 8, 2), dtype=np.float32), rng.integers(0, 3, 10)
    learners = (LiteRTLearner(plan), KerasLearner(plan.spec, objectives))
    got, expected = (one.fit("train", network.initial_weights(), {"x": x}, y, epochs=2, rng=rng_for(1, 1))[0] for one in learners)
    for name in expected:
        np.testing.assert_allclose(got[name], expected[name], atol=1e-5, err_msg=name)

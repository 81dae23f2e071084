"""Fifty steps of a plan match the training loop of Keras to 1e-5, with every optimizer.

Adam divides by the size of the gradient. So it amplifies the effect of a ReLU or a maximum that rounding
flips in only one of the two runs: on LeNet-5, Keras with inputs changed by 1e-7 differs from itself by 1e-3.
The adaptive optimizers therefore train a smooth network.
"""

from typing import Any

import keras
import numpy as np
import pytest

from edgefl.base.config import ModelConfig
from edgefl.base.rng import derive_rng
from edgefl.program.compiler import objective as of
from edgefl.program.compiler.compile import compile_program
from edgefl.program.compiler.network import Network
from edgefl.program.compiler.optimizer import Optimizer, adam, adamw, sgd
from edgefl.program.learner.base import iterate_batches
from edgefl.program.learner.litert import LiteRTLearner
from edgefl.program.models import build_model
from edgefl.program.plan.spec import Plan, PlanSpec

BATCH = 8
COUNT = 80
EPOCHS = 5
CASES: dict[str, tuple[Optimizer, Any]] = {
    "sgd": (sgd(0.05), lambda: keras.optimizers.SGD(0.05)),
    "momentum": (
        sgd(0.02, momentum=0.9, weight_decay=5e-3),
        lambda: keras.optimizers.SGD(0.02, momentum=0.9, weight_decay=5e-3),
    ),
    "nesterov": (
        sgd(0.02, momentum=0.9, nesterov=True),
        lambda: keras.optimizers.SGD(0.02, momentum=0.9, nesterov=True),
    ),
    "adam": (adam(0.002), lambda: keras.optimizers.Adam(0.002)),
    "adamw": (adamw(0.002, weight_decay=0.01), lambda: keras.optimizers.AdamW(0.002, weight_decay=0.01)),
}


def draw_patterns(count: int, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return noisy patterns, one per class, which a network can learn in fifty steps."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, count)
    patterns = rng.random((10, *shape), dtype=np.float32)
    return (0.5 * patterns[y] + 0.5 * rng.random((count, *shape), dtype=np.float32)).astype(np.float32), y


def build_smooth_model() -> Any:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(6, 5, strides=2, padding="same", activation="tanh", name="conv1"),
            layers.AveragePooling2D(2),
            layers.Conv2D(16, 3, activation="tanh", name="conv2"),
            layers.Flatten(),
            layers.Dense(30, activation="sigmoid", name="fc1"),
            layers.Dense(10, name="fc2"),
        ]
    )


@pytest.mark.parametrize("name", CASES)
def test_fifty_steps_match_the_training_loop_of_keras(name):
    optimizer, make_keras = CASES[name]
    keras.utils.set_random_seed(1)
    model = build_model(ModelConfig(name="lenet5")) if optimizer.name == "sgd" else build_smooth_model()
    network = Network(model)
    start = network.read_weights()
    program, signatures = compile_program((of.classify(network, BATCH, optimizer),))
    spec = PlanSpec(
        model="model",
        algorithm="none",
        options={},
        input_shape=(28, 28, 1),
        num_classes=10,
        weights=network.specs,
        signatures=signatures,
    )
    x, y = draw_patterns(COUNT, (28, 28, 1))
    weights, _ = LiteRTLearner(Plan(spec=spec, program=program, template=b"")).fit(
        "train", start, {"x": x}, y, epochs=EPOCHS, rng=derive_rng(1, 1, "a")
    )

    model.compile(make_keras(), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    rng = derive_rng(1, 1, "a")
    for _ in range(EPOCHS):
        for index, _ in iterate_batches(COUNT, BATCH, rng):
            model.train_on_batch(x[index], y[index])
    for weight, expected in network.read_weights().items():
        assert np.abs(expected - start[weight]).max() > 1e-3
        np.testing.assert_allclose(weights[weight], expected, atol=1e-5, rtol=0, err_msg=weight)

"""The papers' models as plans have builtin ops only, a loss that decreases, and the gradient of TensorFlow.

The models use the code of the full models with small widths and sizes. The gradient is computed from a
training step with learning rate 1024, so that the rounding of the weights does not hide it. It is compared
relative to its largest value. Rounding can flip a ReLU or a maximum in only one of the two learners, so two
of three batches must agree. MobileNetV2 starts with the inputs of its ReLU6 layers around 3, where they
rarely clip. With random initial weights, its fifty batch norms amplify rounding so much that TensorFlow
itself differs from the exact gradient by a thousandth.
"""

from typing import Any

import numpy as np
import pytest

from edgefl.base.config import FederationConfig, ModelConfig
from edgefl.base.rng import derive_rng
from edgefl.base.types import Weights
from edgefl.learning.algorithms.plans import build_plan, make_keras_learner
from edgefl.program.compiler import objective as of
from edgefl.program.compiler.network import Network
from edgefl.program.learner.litert import LiteRTLearner
from edgefl.program.models import build_model
from edgefl.program.models.zoo import mobilenetv1, mobilenetv2
from edgefl.program.plan.inspect import inspect_plan
from edgefl.program.plan.spec import Plan

FEW_STAGES = ((1, 8, 1, 1), (6, 8, 2, 2), (6, 16, 2, 1))
LEARNING_RATE = 1024.0
MODELS: dict[str, ModelConfig] = {
    "resnet20": ModelConfig(name="resnet20", input_shape=(8, 8, 3), num_classes=4, options={"width": 4}),
    "mobilenetv2": ModelConfig(
        name="mobilenetv2", input_shape=(16, 16, 3), num_classes=4, options={"width": 0.5, "dropout": 0.2}
    ),
    "mobilenetv1": ModelConfig(name="mobilenetv1", input_shape=(16, 16, 3), num_classes=4),
    "resnet8": ModelConfig(name="resnet8", input_shape=(8, 8, 3), num_classes=4, options={"width": 4}),
    "ds-cnn": ModelConfig(name="ds-cnn", input_shape=(12, 6, 1), num_classes=4, options={"filters": 8}),
    "vgg16": ModelConfig(
        name="vgg16", input_shape=(32, 32, 3), num_classes=4, options={"filters": 4, "hidden": 16}
    ),
    "cnn1d": ModelConfig(name="cnn1d", input_shape=(128, 9), num_classes=6),
    "gate-cnn": ModelConfig(name="gate-cnn", input_shape=(16, 16, 3), num_classes=7),
    "gate-pixels": ModelConfig(name="gate-pixels", input_shape=(8, 8, 1), num_classes=2),
    "lenet5": ModelConfig(
        name="lenet5", input_shape=(28, 28, 1), num_classes=10, options={"padding": "valid"}
    ),
}


SLOW = {
    name: pytest.param(name, marks=pytest.mark.slow)
    for name in ("mobilenetv2", "resnet20", "vgg16", "gate-cnn")
}


@pytest.fixture(scope="module", params=[SLOW.get(name, name) for name in MODELS])
def built_plan(request: pytest.FixtureRequest) -> tuple[Plan, Weights]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mobilenetv2, "BLOCK_STAGES", FEW_STAGES)
        patch.setattr(mobilenetv1, "BLOCK_SIZES", mobilenetv1.BLOCK_SIZES[:4])
        plan, weights = build_plan(
            FederationConfig(algorithm="fedavg", options={"batch_size": 8}, model=MODELS[request.param])
        )
    centred = {
        name: array + 3
        for name, array in weights.items()
        if name.endswith("beta") and plan.spec.model == "mobilenetv2"
    }
    return plan, {**weights, **{name: array for name, array in centred.items() if "project" not in name}}


def draw_samples(plan: Plan, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return noisy patterns, one per class."""
    rng = np.random.default_rng(seed)
    y = np.arange(count) % plan.spec.num_classes
    patterns = np.random.default_rng(0).normal(size=(plan.spec.num_classes, *plan.spec.input_shape))
    return (patterns[y] + 0.3 * rng.normal(size=(count, *plan.spec.input_shape))).astype(np.float32), y


def test_plan_has_builtin_ops_a_template_and_all_weights(built_plan):
    plan, weights = built_plan
    ops = {op for signature in inspect_plan(plan)["signatures"].values() for op in signature["ops"]}
    assert not {op for op in ops if op == "CUSTOM" or op.startswith(("FLEX", "STABLEHLO"))}
    assert plan.template and plan.spec.bindings
    assert set(weights) == {spec.name for spec in plan.spec.weights}


def test_training_loss_decreases(built_plan):
    plan, weights = built_plan
    x, y = draw_samples(plan, 8, 1)
    learner = LiteRTLearner(plan)
    losses = []
    current = dict(weights)
    for _ in range(3):
        trained, _ = learner.fit(
            "train",
            current,
            {"x": x},
            y,
            epochs=1,
            rng=derive_rng(1, 1),
            hyper={"learning_rate": 0.003, "momentum": 0.0},
        )
        current = {**current, **trained}
        losses.append(
            learner.fit(
                "train", current, {"x": x}, y, epochs=1, rng=derive_rng(1, 1), hyper={"learning_rate": 0.0}
            )[1]
        )
    assert np.isfinite(losses).all()
    assert losses[2] < losses[0]


def test_gradient_matches_tensorflow(built_plan):
    plan, weights = built_plan
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mobilenetv2, "BLOCK_STAGES", FEW_STAGES)
        patch.setattr(mobilenetv1, "BLOCK_SIZES", mobilenetv1.BLOCK_SIZES[:4])
        learners = LiteRTLearner(plan), make_keras_learner(plan.spec)
    errors = []
    for seed in range(3):
        x, y = draw_samples(plan, 8, seed)
        received, expected = (read_gradient(learner, weights, x, y, seed) for learner in learners)
        largest = max(float(np.abs(array).max()) for array in expected.values())
        errors.append(
            max(float(np.abs(received[name] - expected[name]).max()) for name in expected) / largest
        )
    assert sorted(errors)[1] <= 1e-5, errors


def read_gradient(
    learner: Any, weights: Weights, x: np.ndarray, y: np.ndarray, seed: int
) -> dict[str, np.ndarray]:
    hyper = {"learning_rate": LEARNING_RATE, "momentum": 0.0}
    trained, _ = learner.fit("train", weights, {"x": x}, y, epochs=1, rng=derive_rng(1, seed), hyper=hyper)
    moved = {name for name in trained if "/moving_" not in name}
    return {name: (weights[name].astype(np.float64) - trained[name]) / LEARNING_RATE for name in moved}


def test_pixel_gate_is_a_softmax_regression():
    """With zero weights, a sample of class 0 has loss log 2, and the bias has gradient (-1/2, 1/2)."""
    plan, weights = build_plan(
        FederationConfig(
            model=ModelConfig(name="gate-pixels", input_shape=(1, 1, 1), num_classes=2),
            options={"batch_size": 1},
        )
    )
    zeros = {name: np.zeros_like(array) for name, array in weights.items()}
    data = {"x": np.ones((1, 1, 1, 1), np.float32)}
    hyper = {"learning_rate": 1.0, "momentum": 0.0}
    trained, loss = LiteRTLearner(plan).fit(
        "train", zeros, data, np.array([0]), epochs=1, rng=derive_rng(1, 1), hyper=hyper
    )
    assert loss == pytest.approx(0.693147, abs=1e-6)
    np.testing.assert_allclose(trained["fc/bias"], [0.5, -0.5])


@pytest.mark.parametrize(
    ("config", "features", "head"),
    [
        (
            ModelConfig(
                name="vgg16", input_shape=(32, 32, 3), num_classes=10, options={"filters": 4, "hidden": 8}
            ),
            (32,),
            6,
        ),
        (ModelConfig(name="resnet20", input_shape=(8, 8, 3), num_classes=5, options={"width": 2}), (8,), 2),
        (
            ModelConfig(name="lenet5", input_shape=(28, 28, 1), num_classes=10, options={"padding": "valid"}),
            (256,),
            6,
        ),
        (ModelConfig(name="cnn1d", input_shape=(128, 9), num_classes=6), (64,), 4),
    ],
)
def test_network_is_split_into_features_and_head(config, features, head):
    network = Network(build_model(config))
    assert network.features_shape == features
    assert len(network.head_names) == head
    assert of.predict_head(network, 4).data[0].shape == (4, *features)

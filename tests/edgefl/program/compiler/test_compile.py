"""Compiled programs train in LiteRT like the same objectives in TensorFlow, with builtin ops only."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from edgefl.base.errors import PlanError
from edgefl.base.rng import derive_rng
from edgefl.program.compiler import objective as of
from edgefl.program.compiler.compile import compile_program
from edgefl.program.compiler.network import Network
from edgefl.program.compiler.optimizer import adam, adamw, sgd
from edgefl.program.learner.keras import KerasLearner
from edgefl.program.learner.litert import LiteRTLearner
from edgefl.program.plan.inspect import inspect_plan, render_plan
from tests.support.network_plan import compile_network_plan

L = keras.layers


def build_sequential(shape: tuple[int, ...], *layers: Any, end: tuple[Any, ...] = ()) -> Any:
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input(shape), *layers, L.Dense(3), *end])


def build_residual() -> Any:
    keras.utils.set_random_seed(0)
    x = keras.Input((8, 8, 2))
    y = L.Conv2D(4, 3, padding="same", activation="relu", name="a")(x)
    y = L.Add()([y, L.Conv2D(4, 3, padding="same", name="b")(y)])
    inner = keras.Sequential(
        [
            keras.Input((8, 8, 4)),
            L.Conv2D(4, 3, strides=2, name="c"),
            L.BatchNormalization(name="n"),
            L.ReLU(),
        ],
        name="inner",
    )
    y = L.GlobalAveragePooling2D()(inner(y))
    return keras.Model(x, L.Dense(3)(L.Dropout(0.3, name="dropout")(L.Dense(5, activation="relu")(y))))


MODELS: dict[str, Callable[[], Any]] = {
    "conv": lambda: build_sequential(
        (9, 8, 2),
        L.Conv2D(4, 3, padding="same", activation="relu"),
        L.MaxPooling2D(2),
        L.Conv2D(5, (2, 3), strides=2, padding="same"),
        L.Flatten(),
    ),
    "depthwise": lambda: build_sequential(
        (8, 8, 3),
        L.DepthwiseConv2D(3, strides=2, padding="same", use_bias=False),
        L.BatchNormalization(),
        L.ReLU(6),
        L.Conv2D(4, 1),
        L.AveragePooling2D(2),
        L.Flatten(),
    ),
    "one-dimensional": lambda: build_sequential(
        (20, 3),
        L.Conv1D(4, 5, activation="relu"),
        L.MaxPooling1D(2),
        L.Conv1D(4, 3, strides=2, padding="same"),
        L.Reshape((16,)),
        L.Dense(6, "tanh"),
    ),
    "group-norm": lambda: build_sequential(
        (8, 8, 2),
        L.Conv2D(4, 3, dilation_rate=2),
        L.GroupNormalization(2),
        L.ReLU(),
        L.MaxPooling2D(3, strides=2, padding="same"),
        L.GlobalAveragePooling2D(),
    ),
    "softmax-end": lambda: build_sequential(
        (6,), L.Dense(8, activation="sigmoid"), L.Dropout(0.5), L.Dense(3), end=(L.Softmax(),)
    ),
    "residual": build_residual,
}


def draw_samples(network: Network, count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return rng.random((count, *network.input_shape), dtype=np.float32), rng.integers(
        0, network.num_classes, count
    )


@pytest.mark.parametrize("name", MODELS)
def test_program_trains_like_tensorflow(name):
    network = Network(MODELS[name]())
    optimizer = {"conv": sgd(0.05, momentum=0.9, weight_decay=1e-3), "depthwise": adamw(0.01)}.get(
        name, sgd(0.05)
    )
    objectives = (
        of.classify(network, 4, optimizer),
        of.predict_logits(network, 6),
        of.extract_features(network, 6),
        of.train_head(network, 4, adam(0.01)),
        of.predict_head(network, 6),
    )
    plan = compile_network_plan(network, objectives)
    x, y = draw_samples(network, 10)
    device = LiteRTLearner(plan)
    reference = KerasLearner(plan.spec, objectives)
    start = network.read_weights()
    (weights, loss), (expected, expected_loss) = (
        learner.fit("train", start, {"x": x}, y, epochs=3, rng=derive_rng(1, 1, "a"))
        for learner in (device, reference)
    )
    assert loss == pytest.approx(expected_loss, abs=1e-5)
    assert set(weights) == {*network.trainable, *network.statistics}
    for weight in weights:
        np.testing.assert_allclose(weights[weight], expected[weight], atol=1e-5, err_msg=weight)
    features = device.predict("features", start, {"x": x})
    np.testing.assert_allclose(
        device.predict("predict_head", start, {"features": features}),
        reference.predict("predict", start, {"x": x}),
        atol=1e-5,
    )
    head_weights = [
        learner.fit("train_head", start, {"features": features}, y, epochs=2, rng=derive_rng(1, 1, "b"))[0]
        for learner in (device, reference)
    ]
    for weight in head_weights[0]:
        np.testing.assert_allclose(
            head_weights[0][weight], head_weights[1][weight], atol=1e-5, err_msg=weight
        )


def test_inspection_shows_model_options_and_augmentation_only_if_there_are_any():
    network = Network(MODELS["residual"]())
    plan = compile_network_plan(network, (of.predict_logits(network, 4),))
    changed = replace(plan.spec, model_options={"mean": [0.5], "std": [0.2]}, augmentation={"crop": 2})
    text = render_plan(inspect_plan(replace(plan, spec=changed)))
    assert "model options: mean [0.5], std [0.2]" in text.splitlines()
    assert "augmentation: crop 2" in text.splitlines()
    plain = render_plan(inspect_plan(plan))
    assert "model options" not in plain
    assert "augmentation" not in plain


def test_inspection_lists_builtin_ops_noise_and_hyperparameters():
    network = Network(MODELS["residual"]())
    report = inspect_plan(
        compile_network_plan(network, (of.classify(network, 4, adamw()), of.predict_logits(network, 4)))
    )
    train = report["signatures"]["train"]
    assert train["noise"] == {"dropout": [4, 5]}
    assert set(train["hyper"]) == {"learning_rate", "weight_decay"}
    ops = {op for signature in report["signatures"].values() for op in signature["ops"]}
    assert not {op for op in ops if op == "CUSTOM" or op.startswith(("FLEX", "STABLEHLO"))}
    assert report["num_weights"] == sum(v.numpy().size for v in MODELS["residual"]().weights)


@keras.saving.register_keras_serializable("tests")
class BetaincLayer(L.Layer):
    def call(self, x):
        return tf.math.betainc(x, x, x)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (
            (L.Conv2D(4, 3, groups=2, name="grouped"),),
            r"layer grouped needs Conv2DBackpropFilter: .*replace the layer",
        ),
        ((L.SpatialDropout2D(0.5, name="spatial"),), r"layer spatial \(SpatialDropout2D\).*use Dropout"),
        ((BetaincLayer(name="odd"),), r"layer odd needs Betainc: .*replace the layer"),
    ],
)
def test_compile_errors_name_layer_op_and_remedy(layers, message):
    with pytest.raises(PlanError, match=message):
        network = Network(build_sequential((6, 6, 4), *layers, L.Flatten()))
        compile_program((of.classify(network, 2, sgd()),))


def test_objectives_need_unique_names():
    network = Network(build_sequential((4,)))
    with pytest.raises(PlanError, match="each with a different name"):
        compile_program((of.predict_logits(network, 2), of.predict_logits(network, 3)))


def test_a_loss_is_the_mean_over_weighted_samples():
    """Logits (2, 0) and class 1 have a loss of 2.126928. The padding sample of the batch has weight 0."""
    network = Network(keras.Sequential([keras.Input((2,)), L.Dense(2, name="fc")]))
    objective = of.classify(network, 2, sgd(1.0))
    plan = compile_network_plan(network, (objective,))
    weights = {"fc/kernel": np.eye(2, dtype=np.float32), "fc/bias": np.zeros(2, np.float32)}
    x = np.array([[2.0, 0.0]], np.float32)
    trained, loss = LiteRTLearner(plan).fit(
        "train", weights, {"x": x}, np.array([1]), epochs=1, rng=derive_rng(1, 1)
    )
    assert loss == pytest.approx(2.126928, abs=1e-5)
    np.testing.assert_allclose(trained["fc/bias"], [-0.880797, 0.880797], atol=1e-6)


class OwnDepthwise(keras.Layer):
    """Calls a depthwise convolution that no layer of Keras describes."""

    def call(self, x: Any) -> Any:
        return keras.ops.depthwise_conv(x, keras.ops.ones((1, 1, 4834, 1)))


@pytest.mark.parametrize(
    "layer",
    [
        lambda: L.DepthwiseConv2D(1, name="deep"),
        lambda: L.SeparableConv2D(1, 1, name="deep"),
        lambda: OwnDepthwise(name="deep"),
    ],
)
@pytest.mark.parametrize("kind", ["train", "predict"])
def test_depthwise_convolution_that_no_runtime_ends_is_refused(layer, kind):
    network = Network(build_sequential((1, 1, 4834), layer(), L.GlobalAveragePooling2D()))
    objective = of.classify(network, 2, sgd()) if kind == "train" else of.predict_logits(network, 2)
    with pytest.raises(
        PlanError, match=r"layer deep.* has 4834 depthwise channels, expected at most 4832.*few"
    ):
        compile_program([objective])

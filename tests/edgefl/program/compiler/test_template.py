"""The template of a mixture, filled with weights, matches the Keras model for all kinds of layers."""

import numpy as np
import pytest

from edgefl.base.config import ModelConfig
from edgefl.base.errors import PlanError
from edgefl.base.types import Array, Weights
from edgefl.learning.algorithms.registry import build_objectives
from edgefl.program.compiler import objective as of
from edgefl.program.compiler.network import Network
from edgefl.program.compiler.template import Inference, build_template
from edgefl.program.models import build_model
from edgefl.program.plan.fill import SLICE_RULE, fill_template, list_weight_names, resolve_binding
from edgefl.program.plan.runtime import load_interpreter
from edgefl.program.plan.spec import Binding, TensorSpec

keras = pytest.importorskip("keras")
layers = keras.layers


def build_network(*model_layers: object, shape: tuple[int, ...] = (8, 8, 3)) -> Network:
    keras.utils.clear_session(free_memory=False)
    return Network(keras.Sequential([keras.Input(shape), *model_layers]))


def draw_weights(objective: Inference, seed: int = 3) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    weights = {s.name: rng.normal(0, 0.5, s.shape).astype(np.float32) for s in objective.frozen}
    return {
        n: np.abs(w) + np.float32(0.3) if n.endswith("moving_variance") else w for n, w in weights.items()
    }


def run_model(model: bytes, x: Array) -> Array:
    interpreter = load_interpreter(model, reference=True)
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    return np.asarray(interpreter.get_tensor(interpreter.get_output_details()[0]["index"]))


def compute_difference(
    objective: Inference, template: bytes, bindings: tuple[Binding, ...], weights: Weights
) -> float:
    x = np.random.default_rng(4).random((1, *objective.data[0].shape[1:]), dtype=np.float32)
    assert objective.out is not None
    expected = np.asarray(objective.out(weights, {"x": x}))
    return float(
        np.abs(run_model(fill_template(template, bindings, weights), x) - expected).max()
        / max(1.0, np.abs(expected).max())
    )


def make_normed_layers(*before: object, **options: object) -> list[object]:
    return [
        *before,
        layers.BatchNormalization(name="norm", **options),
        layers.ReLU(),
        layers.Flatten(),
        layers.Dense(3),
    ]


def make_dense_layers(width: int) -> list[object]:
    return [layers.Dense(width, activation="relu"), layers.Dense(width, activation="relu")]


MODELS = {
    "conv without bias": [
        layers.Conv2D(4, 3, strides=2, padding="same", use_bias=False),
        layers.ReLU(),
        layers.Flatten(),
        layers.Dense(5),
    ],
    "square kernels": [
        layers.Conv2D(3, 3),
        layers.ReLU(),
        layers.Flatten(),
        *make_dense_layers(108),
        layers.Dense(5),
    ],
    "depthwise": [
        layers.DepthwiseConv2D(3, depth_multiplier=2),
        layers.AveragePooling2D(2),
        layers.Flatten(),
        layers.Dense(4),
    ],
    "global average": [
        layers.Conv2D(4, 3),
        layers.MaxPooling2D(2),
        layers.GlobalAveragePooling2D(),
        layers.Dropout(0.5),
        layers.Dense(4),
    ],
    "one channel": [layers.Conv2D(1, 1), layers.Flatten(), *make_dense_layers(1), layers.Dense(2)],
    "group norm": [
        layers.Conv2D(4, 3),
        layers.GroupNormalization(2),
        layers.ReLU(),
        layers.Flatten(),
        layers.Dense(4),
    ],
    "rescaling, conv": [
        layers.Rescaling(1 / 255),
        layers.Conv2D(4, 3, padding="same", activation="relu"),
        layers.Flatten(),
        layers.Dense(4),
    ],
    "rescaling with an offset, conv": [
        layers.Rescaling(1 / 127.5, offset=-1),
        layers.Conv2D(4, 3, activation="relu"),
        layers.Flatten(),
        layers.Dense(4),
    ],
    "rescaling by channel, depthwise": [
        layers.Rescaling([0.5, 0.25, 2.0], offset=[0.0, 0.5, -1.0]),
        layers.DepthwiseConv2D(3, activation="relu"),
        layers.Flatten(),
        layers.Dense(4),
    ],
    "rescaling, dense": [layers.Flatten(), layers.Rescaling(0.1, offset=1), layers.Dense(4)],
    "normalization by one value, conv": [
        layers.Normalization(axis=None, mean=0.5, variance=0.04),
        layers.Conv2D(4, 3, activation="relu"),
        layers.Flatten(),
        layers.Dense(4),
    ],
    "batch norm, conv": make_normed_layers(layers.Conv2D(4, 3)),
    "batch norm, conv without bias": make_normed_layers(layers.Conv2D(4, 3, use_bias=False), epsilon=1e-5),
    "batch norm, depthwise": make_normed_layers(layers.DepthwiseConv2D(3, depth_multiplier=2)),
    "batch norm, dense": [
        layers.Flatten(),
        layers.Dense(6),
        layers.BatchNormalization(),
        layers.ReLU(),
        layers.Dense(3),
    ],
    "batch norm without scale": make_normed_layers(layers.Conv2D(4, 3), scale=False),
    "batch norm without center": make_normed_layers(layers.Conv2D(4, 3), center=False),
    "batch norm, bare": make_normed_layers(layers.Conv2D(4, 3, use_bias=False), center=False, scale=False),
    "two batch norms": make_normed_layers(
        layers.Conv2D(4, 3), layers.BatchNormalization(), layers.ReLU(), layers.DepthwiseConv2D(3)
    ),
}


@pytest.mark.parametrize("name", list(MODELS))
def test_filled_template_matches_the_keras_model(name: str) -> None:
    network = build_network(*MODELS[name])
    objective = of.predict_logits(network, 16)
    template, bindings = build_template(objective, network.epsilons)
    assert list_weight_names(bindings) == {spec.name for spec in network.specs}
    assert compute_difference(objective, template, bindings, draw_weights(objective)) <= 1e-5


def test_template_scales_many_features_by_one_factor_only() -> None:
    """A runtime never ends a depthwise convolution of more than 4832 channels."""
    many = 4900
    network = build_network(layers.Rescaling(0.1, offset=1), layers.Dense(2), shape=(many,))
    objective = of.predict_logits(network, 16)
    template, bindings = build_template(objective)
    assert compute_difference(objective, template, bindings, draw_weights(objective)) <= 1e-5
    mean = np.zeros(many)
    normalization = layers.Normalization(mean=mean, variance=mean + 1)
    network = build_network(normalization, layers.Dense(2), shape=(many,))
    with pytest.raises(PlanError, match=r"scales 4900 features.*at most 4832 .*; scale them by one factor"):
        build_template(of.predict_logits(network, 16))


def test_filled_template_matches_a_one_dimensional_model() -> None:
    network = build_network(
        layers.Conv1D(4, 3, padding="same"),
        layers.ReLU(),
        layers.MaxPooling1D(2),
        layers.Flatten(),
        layers.Dense(3),
        shape=(12, 2),
    )
    objective = of.predict_logits(network, 16)
    template, bindings = build_template(objective)
    assert compute_difference(objective, template, bindings, draw_weights(objective)) <= 1e-5


RECURRENT = {
    "LSTM": lambda: layers.LSTM(4),
    "GRU": lambda: layers.GRU(4),
    "GRU with unroll": lambda: layers.GRU(4, unroll=True),
    "GRU with reset before": lambda: layers.GRU(4, reset_after=False),
    "SimpleRNN": lambda: layers.SimpleRNN(4),
    "both directions": lambda: layers.Bidirectional(layers.GRU(3, return_sequences=True)),
}


@pytest.mark.parametrize("name", RECURRENT)
def test_filled_template_matches_a_recurrent_model(name: str) -> None:
    network = build_network(RECURRENT[name](), layers.Flatten(), layers.Dense(3), shape=(5, 2))
    objective = of.predict_logits(network, 16)
    template, bindings = build_template(objective)
    assert list_weight_names(bindings) == {spec.name for spec in network.specs}
    assert compute_difference(objective, template, bindings, draw_weights(objective)) <= 1e-5


def test_slice_of_a_weight_is_filled_in() -> None:
    """The bias of a GRU has shape (2, 3 units). Element 1 of the transposed weight is its row 1, column 0."""
    weights = {"bias": np.array([[1, 2, 3], [4, 5, 6]], np.float32)}
    row = Binding(
        weight="bias", tensor=0, permutation=(0, 1), shape=(3,), derived={"rule": SLICE_RULE, "start": 3}
    )
    np.testing.assert_array_equal(resolve_binding(row, weights), [4, 5, 6])
    column = Binding(
        weight="bias", tensor=0, permutation=(1, 0), shape=(1, 3), derived={"rule": SLICE_RULE, "start": 1}
    )
    np.testing.assert_array_equal(resolve_binding(column, weights), [[4, 2, 5]])
    for start in (-1, 4):
        outside = Binding(
            weight="bias",
            tensor=0,
            permutation=(0, 1),
            shape=(3,),
            derived={"rule": SLICE_RULE, "start": start},
        )
        with pytest.raises(PlanError, match=r"bias is \(2, 3\).*lacks the elements"):
            resolve_binding(outside, weights)


def test_weights_that_the_converter_drops_in_part_are_named() -> None:
    import tensorflow as tf

    cut = of.Objective(
        name="predict_mixture",
        kind="predict",
        batch_size=2,
        data=(TensorSpec("x", (2, 4)),),
        frozen=(TensorSpec("fc/bias", (2, 4)),),
        out=lambda weights, data: tf.tanh(data["x"] + weights["fc/bias"][0]),
    )
    with pytest.raises(PlanError, match=r"merged fc/bias"):
        build_template(cut)


@pytest.mark.parametrize("algorithm", ["fedavg", "pfl-fb", "pfl-mf", "pfl-mfe"])
def test_filled_template_matches_the_mixtures_of_lenet5(algorithm: str) -> None:
    network = Network(build_model(ModelConfig()))
    mixture = next(o for o in build_objectives(algorithm, network, {}) if o.name == "predict_mixture")
    template, bindings = build_template(mixture, network.epsilons)
    assert {b.weight for b in bindings} == {s.name for s in mixture.frozen}
    assert compute_difference(mixture, template, bindings, draw_weights(mixture)) <= 1e-5


def test_the_same_model_gives_the_same_bytes() -> None:
    first, second = (
        build_template(of.predict_logits(build_network(*MODELS["conv without bias"]), 16)) for _ in range(2)
    )
    assert first == second


def test_batch_norm_that_cannot_be_folded_is_named() -> None:
    network = build_network(
        layers.Conv2D(4, 3),
        layers.ReLU(),
        layers.BatchNormalization(name="late"),
        layers.MaxPooling2D(2),
        layers.Flatten(),
        layers.Dense(3),
    )
    with pytest.raises(PlanError, match=r"batch norm late.*directly after a convolution"):
        build_template(of.predict_logits(network, 16), network.epsilons)


def test_weights_that_the_converter_merges_are_named() -> None:
    import tensorflow as tf

    specs = (TensorSpec("a/kernel", (4, 4)), TensorSpec("b/kernel", (4, 4)))
    merged = of.Objective(
        name="predict_mixture",
        kind="predict",
        batch_size=2,
        data=(TensorSpec("x", (2, 4)),),
        frozen=specs,
        out=lambda weights, data: tf.matmul(data["x"], weights["a/kernel"] * weights["b/kernel"]),
    )
    with pytest.raises(PlanError, match=r"merged a/kernel, b/kernel"):
        build_template(merged)


def test_layers_without_an_activation_between_them_are_named() -> None:
    network = build_network(
        layers.Flatten(), layers.Dense(6, name="first"), layers.Dense(5, name="second"), layers.Dense(3)
    )
    with pytest.raises(PlanError, match=r"merged .*second/bias.*ReLU between"):
        build_template(of.predict_logits(network, 16))


@pytest.fixture(scope="module")
def linear() -> tuple[bytes, tuple[Binding, ...], dict[str, Array]]:
    objective = of.predict_logits(
        build_network(layers.Flatten(), layers.Dense(3, name="fc"), shape=(2, 2)), 4
    )
    return *build_template(objective), draw_weights(objective)


def test_weights_that_do_not_fit_are_named(
    linear: tuple[bytes, tuple[Binding, ...], dict[str, Array]],
) -> None:
    template, bindings, weights = linear
    for changed, message in (
        ({"fc/bias": weights["fc/bias"]}, "lacks fc/kernel"),
        ({**weights, "fc/kernel": np.zeros((5, 3), np.float32)}, r"fc/kernel is \(5, 3\)"),
        ({**weights, "fc/kernel": np.zeros((3, 4), np.float32)}, r"fc/kernel is \(3, 4\)"),
        ({**weights, "fc/bias": np.full(3, np.nan, np.float32)}, "fc/bias holds NaN"),
        ({**weights, "gate/bias": np.zeros(1, np.float32)}, "no tensor for gate/bias"),
    ):
        with pytest.raises(PlanError, match=message):
            fill_template(template, bindings, changed)


def test_templates_that_do_not_fit_are_refused(
    linear: tuple[bytes, tuple[Binding, ...], dict[str, Array]],
) -> None:
    _, bindings, weights = linear
    with pytest.raises(PlanError, match="has no template"):
        fill_template(b"", bindings, weights)
    other, _ = build_template(
        of.predict_logits(build_network(layers.Flatten(), layers.Dense(7), shape=(2, 2)), 4)
    )
    with pytest.raises(PlanError, match=r"does not fit|no tensor"):
        fill_template(other, bindings, weights)

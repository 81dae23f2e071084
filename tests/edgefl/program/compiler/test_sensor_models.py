"""Sensor models of users: normalized inputs and recurrent layers compile, or errors name alternatives."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from edgefl.base.config import FederationConfig, ModelConfig
from edgefl.base.errors import ConfigError, EdgeflError
from edgefl.base.rng import derive_rng
from edgefl.learning.algorithms.plans import build_plan, make_keras_learner
from edgefl.program.compiler.network import Network
from edgefl.program.learner.litert import LiteRTLearner
from edgefl.program.models import build_model
from edgefl.program.plan.fill import fill_template
from firmware_export.quantize.device_route import RECIPES, quantize
from firmware_export.quantize.ranges import record_extremes
from firmware_export.tflite.graph import read_graph
from firmware_export.tflite.interpreter import load_tflite, run_samples

L = keras.layers
SHAPE = (6, 3)


def save_model(path: Path, *layers: Any, shape: tuple[int, ...] = SHAPE) -> str:
    keras.utils.set_random_seed(1)
    keras.Sequential([keras.Input(shape), *layers]).save(path)
    return str(path)


def make_plan(path: str, shape: tuple[int, ...] = SHAPE, classes: int = 3, algorithm: str = "pfl-mfe") -> Any:
    return build_plan(
        FederationConfig(
            algorithm=algorithm, model=ModelConfig(name=path, input_shape=shape, num_classes=classes)
        )
    )


def read_refusal(path: str, shape: tuple[int, ...] = SHAPE, classes: int = 3) -> str:
    with pytest.raises(EdgeflError) as caught:
        make_plan(path, shape, classes)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400
    return str(caught.value)


def draw_readings() -> Any:
    """Return readings of three sensor channels: gravity, a small angle and a pressure in hPa."""
    rng = np.random.default_rng(0)
    return (rng.normal(size=(60, *SHAPE)) * (9.0, 0.2, 30.0) + (0.0, 1.0, 1000.0)).astype(np.float32)


@pytest.fixture(scope="module")
def normalised(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return (path, plan, initial weights) of a saved model whose Normalization is adapted to data."""
    keras.utils.set_random_seed(1)
    layer = L.Normalization(name="norm")
    layer.adapt(draw_readings())
    path = save_model(
        tmp_path_factory.mktemp("model") / "m.keras",
        layer,
        L.Flatten(),
        L.Dense(8, "relu", name="hidden"),
        L.Dense(3, name="fc"),
    )
    return path, *make_plan(path, algorithm="fedavg")


def test_normalization_trains_like_keras(normalised: Any) -> None:
    _, plan, initial = normalised
    assert not [name for name in initial if name.startswith("norm/")], (
        "mean and variance are constants of the plan"
    )
    x = draw_readings()
    y = np.arange(60) % 3
    name = next(s.name for s in plan.spec.signatures if s.kind == "train")
    start = {key: initial[key] for key in initial}
    weights, expected = (
        learner.fit(name, start, {"x": x}, y, epochs=2, rng=derive_rng(1, 1))[0]
        for learner in (LiteRTLearner(plan), make_keras_learner(plan.spec))
    )
    for key, value in expected.items():
        np.testing.assert_allclose(weights[key], value, atol=1e-4, err_msg=key)


def test_network_with_normalization_matches_keras(normalised: Any) -> None:
    path, *_ = normalised
    model = build_model(ModelConfig(name=path, input_shape=SHAPE, num_classes=3))
    network = Network(model)
    x = draw_readings()
    np.testing.assert_allclose(network.apply(network.read_weights(), x)[0], model(x), rtol=1e-4, atol=1e-4)
    assert [spec.name for spec in network.specs] == ["hidden/kernel", "hidden/bias", "fc/kernel", "fc/bias"]


def test_exported_graph_normalizes_each_channel(normalised: Any) -> None:
    """The int8 constants of a product share one scale.

    The factors 1/9, 5 and 1/30 need one scale each, as a depthwise kernel has.
    """
    path, plan, initial = normalised
    model = fill_template(plan.template, plan.spec.bindings, initial)
    assert "DEPTHWISE_CONV_2D" in [name for name, _ in read_graph(model).operators]
    x = draw_readings()
    expected = np.asarray(build_model(ModelConfig(name=path, input_shape=SHAPE, num_classes=3))(x))
    np.testing.assert_allclose(run_samples(load_tflite(model), x)[0], expected, rtol=1e-3, atol=1e-3)
    small = x.copy()
    # Widen the range of the second channel, because all channels of the input share one int8 scale
    small[..., 1] = (small[..., 1] - 1) * 40 + 1
    integer = run_samples(
        load_tflite(quantize(model, record_extremes(model, small), RECIPES[0]), reference=True), small
    )[0].argmax(axis=1)
    assert (integer == run_samples(load_tflite(model), small)[0].argmax(axis=1)).mean() > 0.9


@pytest.mark.parametrize("axis", [None, -1, (1, 2)])
@pytest.mark.parametrize("invert", [False, True])
def test_normalization_over_other_axes_matches_keras(axis: Any, invert: bool) -> None:
    layer = L.Normalization(axis=axis, invert=invert)
    layer.adapt(draw_readings())
    x = keras.Input(SHAPE)
    model = keras.Model(x, L.Dense(3)(L.Flatten()(layer(x))))
    network = Network(model)
    np.testing.assert_allclose(
        network.apply(network.read_weights(), draw_readings())[0],
        model(draw_readings()),
        rtol=1e-3,
        atol=1e-3 * np.abs(model(draw_readings())).max(),
    )


@pytest.mark.parametrize(
    ("layer", "phrases"),
    [
        (lambda: L.RNN(L.GRUCell(4), name="memory"), ("memory (RNN)", "LSTM", "unroll=True")),
        (lambda: L.LSTM(4, unroll=True, dropout=0.2, name="memory"), ("memory (LSTM)", "Dropout layer")),
        (lambda: L.RandomFlip(name="flip", data_format="channels_last"), ("flip (RandomFlip)",)),
    ],
)
def test_unsupported_layer_is_named_with_an_alternative(
    tmp_path: Path, layer: Any, phrases: tuple[str, ...]
) -> None:
    shape = (6, 6, 3) if "flip" in phrases[0] else SHAPE
    path = save_model(
        tmp_path / "m.keras", layer(), *([L.Flatten()] if len(shape) == 3 else []), L.Dense(3), shape=shape
    )
    message = read_refusal(path, shape)
    assert all(phrase in message for phrase in phrases), message
    assert "ReLU between" not in message


@pytest.mark.parametrize(
    "layer",
    [
        pytest.param(lambda: L.LSTM(4, unroll=True), marks=pytest.mark.slow),
        lambda: L.LSTM(4),
        pytest.param(lambda: L.GRU(4), marks=pytest.mark.slow),
    ],
    ids=["unrolled LSTM", "LSTM", "GRU"],
)
def test_recurrent_model_trains_and_exports_like_keras(tmp_path: Path, layer: Any) -> None:
    path = save_model(tmp_path / "m.keras", layer(), L.Dense(3, name="fc"))
    plan, initial = make_plan(path, algorithm="fedavg")
    x = draw_readings() / 1000
    y = np.arange(60) % 3
    name = next(s.name for s in plan.spec.signatures if s.kind == "train")
    weights, expected = (
        learner.fit(name, initial, {"x": x}, y, epochs=2, rng=derive_rng(1, 1))[0]
        for learner in (LiteRTLearner(plan), make_keras_learner(plan.spec))
    )
    for key, value in expected.items():
        np.testing.assert_allclose(weights[key], value, atol=1e-5, err_msg=key)
    model = build_model(ModelConfig(name=path, input_shape=SHAPE, num_classes=3))
    filled = fill_template(plan.template, plan.spec.bindings, initial)
    logits = run_samples(load_tflite(filled), x)[0]
    np.testing.assert_allclose(logits.argmax(axis=1), np.asarray(model(x)).argmax(axis=1))


def save_autoencoder(path: Path, units: int, *extra_layers: Any) -> str:
    return save_model(
        path,
        L.Dense(16, "relu"),
        L.Dense(4, "relu"),
        L.Dense(16, "relu"),
        L.Dense(units),
        *extra_layers,
        shape=(units,),
    )


def test_autoencoder_is_refused_as_a_classifier(tmp_path: Path) -> None:
    message = read_refusal(save_autoencoder(tmp_path / "m.keras", 640), (640,), 640)
    assert "autoencoder" in message and "Dense(num_classes)" in message and "softmax" in message
    model = build_model(
        ModelConfig(
            name=save_autoencoder(tmp_path / "n.keras", 640, L.Softmax()), input_shape=(640,), num_classes=640
        )
    )
    assert model.output_shape == (None, 640)
    wide = save_model(tmp_path / "w.keras", L.Dense(3), shape=(3,))
    assert build_model(ModelConfig(name=wide, input_shape=(3,), num_classes=3)).output_shape == (None, 3)


def test_image_output_is_refused(tmp_path: Path) -> None:
    message = read_refusal(
        save_model(tmp_path / "m.keras", L.Conv2D(1, 3, padding="same"), shape=(8, 8, 1)), (8, 8, 1)
    )
    assert "(8, 8, 1)" in message and "Dense(num_classes)" in message


def test_single_sigmoid_output_is_refused(tmp_path: Path) -> None:
    path = save_model(tmp_path / "m.keras", L.Flatten(), L.Dense(1, "sigmoid"))
    message = read_refusal(path, SHAPE, 2)
    assert "Dense(2)" in message and "labels 0 and 1" in message
    with pytest.raises(ConfigError, match=r"num_classes is 1.*Dense\(2\)"):
        FederationConfig(model=ModelConfig(name=path, input_shape=SHAPE, num_classes=1))


def test_models_with_two_inputs_or_outputs_are_refused(tmp_path: Path) -> None:
    left = keras.Input((3,), name="left")
    right = keras.Input((3,), name="right")
    keras.Model([left, right], L.Dense(3)(L.Add()([left, right]))).save(tmp_path / "in.keras")
    message = read_refusal(str(tmp_path / "in.keras"), (3,))
    assert "2 inputs" in message and "left" in message and "right" in message
    keras.Model(left, [L.Dense(3)(left), L.Dense(2)(left)]).save(tmp_path / "out.keras")
    message = read_refusal(str(tmp_path / "out.keras"), (3,))
    assert "2 outputs" in message and "keras.Model(inputs, scores)" in message


@pytest.mark.parametrize(("name", "phrase"), [("m.h5", "an HDF5 file"), ("saved", "a SavedModel")])
def test_other_file_formats_are_refused_with_a_remedy(tmp_path: Path, name: str, phrase: str) -> None:
    path = tmp_path / name
    if name == "saved":
        path.mkdir()
        (path / "saved_model.pb").write_bytes(b"")
    else:
        path.write_bytes(b"\x89HDF\r\n\x1a\n")
    message = read_refusal(str(path))
    assert phrase in message and "load it with Keras" in message and ".keras" in message

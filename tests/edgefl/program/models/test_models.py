"""The models of the papers have the published numbers of weights, and models of the user are checked."""

import math
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import keras
import numpy as np
import pytest

from edgefl.base.config import FederationConfig, ModelConfig
from edgefl.base.errors import ConfigError
from edgefl.learning.algorithms.plans import build_plan
from edgefl.program.compiler.build import make_network, rebuild_network
from edgefl.program.learner.litert import LiteRTLearner
from edgefl.program.models import build_model, zoo
from edgefl.program.models.input_normalization import LAYER_NAME, normalize_input
from edgefl.program.models.zoo.catalog import list_models

LOCAL = {"filters1": 32, "filters2": 256, "hidden": 256, "dropout": 0.76}
GATE = {"filters1": 12, "filters2": 12, "hidden": 8, "dropout": 0.78}

RESNET_CONVOLUTIONS = 9 * (3 * 16 + 6 * 16 * 16 + 16 * 32 + 5 * 32 * 32 + 32 * 64 + 5 * 64 * 64)
RESNET_NORMS = 2 * (7 * 16 + 6 * 32 + 6 * 64)
VGG_CHANNELS = (3, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512)
VGG_CONVOLUTIONS = sum((9 * before + 1) * after for before, after in pairwise(VGG_CHANNELS))


@pytest.mark.parametrize(
    ("name", "shape", "classes", "options", "count"),
    [
        ("lenet5", (28, 28, 1), 10, {}, 61_706),
        ("lenet5", (32, 32, 1), 10, {}, 61_706),
        ("lenet5", (32, 32, 3), 10, {}, 62_006),
        ("aem-cnn", (32, 32, 3), 10, {}, 942_634),
        ("aem-cnn", (32, 32, 3), 10, LOCAL, 1_848_714),
        ("aem-cnn", (32, 32, 3), 7, GATE, 6_995),
        ("five-conv", (32, 32, 3), 10, {}, 130_826),
        ("softmax", (8, 8), 3, {}, 195),
        ("gate-cnn", (32, 32, 3), 7, {}, 6_995),
        ("gate-pixels", (32, 32, 3), 2, {}, 6_146),
        ("gate-pixels", (32, 32, 1), 2, {}, 2_050),
        (
            "lenet5",
            (28, 28, 1),
            10,
            {"padding": "valid"},
            (25 + 1) * 6 + (6 * 25 + 1) * 16 + 257 * 120 + 121 * 84 + 85 * 10,
        ),
        ("lenet5", (28, 28, 1), 10, {"padding": "valid"}, 44_426),
        ("resnet20", (32, 32, 3), 10, {}, RESNET_CONVOLUTIONS + RESNET_NORMS + 65 * 10),
        ("resnet20", (32, 32, 3), 10, {}, 269_722),
        ("resnet20", (32, 32, 3), 100, {"groups": 8}, 275_572),
        ("mobilenetv2", (224, 224, 3), 7, {}, 2_257_984 + 1281 * 7),
        ("ds-cnn", (49, 10, 1), 12, {}, 41 * 64 + 9 * 4 * 64 + 4 * (10 * 64 + 65 * 64) + 65 * 12),
        ("ds-cnn", (49, 10, 1), 12, {}, 24_908),
        ("resnet8", (32, 32, 3), 10, {}, 78_666),
        ("mobilenetv1", (96, 96, 3), 2, {}, 219_058),
        ("vgg16", (32, 32, 3), 10, {}, VGG_CONVOLUTIONS + 513 * 512 + 513 * 512 + 513 * 10),
        ("vgg16", (32, 32, 3), 10, {}, 15_245_130),
        ("cnn1d", (128, 9), 6, {}, (5 * 9 + 1) * 32 + (5 * 32 + 1) * 64 + 65 * 64 + 65 * 6),
        ("cnn1d", (128, 9), 6, {}, 16_326),
        ("mlp", (28, 28, 1), 10, {}, 785 * 200 + 201 * 200 + 201 * 10),
        ("mlp", (28, 28, 1), 10, {}, 199_210),
        ("mlp", (8, 8), 3, {"hidden": 5, "layers": 1}, 65 * 5 + 6 * 3),
    ],
)
def test_models_have_the_published_number_of_weights(name, shape, classes, options, count):
    model = build_model(ModelConfig(name=name, input_shape=shape, num_classes=classes, options=options))
    assert sum(math.prod(weight.shape) for weight in model.weights) == count
    assert tuple(model.outputs[0].shape) == (None, classes)


def test_every_model_file_is_listed_with_its_source():
    files = {path.stem for path in Path(zoo.__file__).parent.glob("*.py")} - {
        "__init__",
        "catalog",
        "norm_relu",
    }
    assert {name.replace("-", "_") for name in list_models()} == files
    assert all(list_models().values())


@pytest.mark.parametrize(
    ("name", "shape"), [("lenet5", (28, 28, 1)), ("resnet20", (16, 16, 3)), ("softmax", (4, 3))]
)
@pytest.mark.parametrize("channels", [1, 3])
def test_mean_and_std_are_one_layer_in_front_of_any_model(name, shape, channels) -> None:
    """The weights, their draws and the head are those of the model without the layer."""
    channels = min(channels, shape[-1])
    mean = (0.4, 0.1, -2.0)[:channels]
    std = (0.5, 2.0, 0.25)[:channels]
    raw, normalized = (
        make_network(
            FederationConfig(
                seed=5, model=replace(ModelConfig(name=name, input_shape=shape, num_classes=10), **constants)
            )
        )
        for constants in ({}, {"mean": mean, "std": std})
    )
    assert (raw.specs, raw.head_names, raw.features_shape) == (
        normalized.specs,
        normalized.head_names,
        normalized.features_shape,
    )
    weights = raw.read_weights()
    for key, value in normalized.read_weights().items():
        np.testing.assert_array_equal(weights[key], value)
    x = np.random.default_rng(0).random((3, *shape), np.float32)
    scaled = (x - np.float32(mean)) / np.float32(std)
    np.testing.assert_allclose(normalized.normalize_input(x), scaled, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(raw.normalize_input(x), x)
    np.testing.assert_allclose(
        normalized.apply(weights, x)[0], raw.apply(weights, scaled)[0], rtol=1e-4, atol=1e-4
    )


def test_a_plan_carries_mean_and_std() -> None:
    model = ModelConfig(name="softmax", input_shape=(2, 2, 1), num_classes=3, mean=(0.25,), std=(0.5,))
    plan, weights = build_plan(FederationConfig(algorithm="fedavg", model=model))
    assert plan.spec.model_options == {"mean": [0.25], "std": [0.5]}
    x = np.float32([[[[1], [0]], [[0.25], [0.5]]]])
    kernel = {**weights, "fc/kernel": np.eye(4, 3, dtype=np.float32)}
    kernel = {spec.name: kernel.get(spec.name, weights[spec.name]) for spec in plan.spec.weights}
    logits = LiteRTLearner(plan).predict("predict", kernel, {"x": x})
    np.testing.assert_allclose(logits, [[1.5, -0.5, 0.0]])
    rebuilt = rebuild_network(plan.spec)
    np.testing.assert_allclose(rebuilt.apply(kernel, x)[0], logits)


def test_vgg16_features_have_expected_shapes():
    model = build_model(
        ModelConfig(
            name="vgg16", input_shape=(32, 32, 3), num_classes=10, options={"filters": 2, "hidden": 3}
        )
    )
    assert model.get_layer("pool5").output.shape == (None, 1, 1, 16)
    assert build_model(ModelConfig(name="vgg16", input_shape=(32, 32, 3), num_classes=10)).get_layer(
        "flatten"
    ).output.shape == (None, 512)


def test_resnet20_shortcut_subsamples_pixels_and_pads_channels():
    """With the second norms at zero, a block is the relu of its shortcut."""
    model = build_model(
        ModelConfig(
            name="resnet20", input_shape=(16, 16, 2), num_classes=3, options={"width": 2, "groups": 1}
        )
    )
    for layer in model.layers:
        if layer.name.endswith("norm2"):
            layer.gamma.assign(np.zeros(layer.gamma.shape))
    ends = [model.get_layer(name).output for name in ("relu", "stage2_block1_relu2", "stage3_block3_relu2")]
    first, second, last = keras.Model(model.inputs, ends).predict(
        np.random.default_rng(0).random((3, 16, 16, 2)), verbose=0
    )
    np.testing.assert_array_equal(second, np.pad(first[:, ::2, ::2], [(0, 0), (0, 0), (0, 0), (1, 1)]))
    np.testing.assert_array_equal(last, np.pad(first[:, ::4, ::4], [(0, 0), (0, 0), (0, 0), (3, 3)]))


@pytest.mark.parametrize("width", [0.35, 1.4])
def test_mobilenetv2_matches_keras_applications(width):
    reference = keras.applications.MobileNetV2(
        (32, 32, 3), width, include_top=False, weights=None, pooling="avg"
    )
    model = build_model(
        ModelConfig(name="mobilenetv2", input_shape=(32, 32, 3), num_classes=7, options={"width": width})
    )
    trunk = keras.Model(model.inputs, model.get_layer("average").output)
    trunk.set_weights(reference.get_weights())
    x = np.random.default_rng(0).random((2, 32, 32, 3), dtype=np.float32)
    np.testing.assert_allclose(trunk(x), reference(x), atol=1e-5)


FAILING = """
import keras
def looks_up(input_shape, num_classes):
    return {}["width"]
def too_wide(input_shape, num_classes):
    return keras.Sequential([keras.Input(input_shape), keras.layers.Conv2D(2, 9), keras.layers.Flatten()])
"""


@pytest.mark.parametrize(
    ("code", "function", "message"),
    [
        (
            FAILING,
            "looks_up",
            r"cannot be built for input_shape \(4, 4, 1\) and num_classes 3: KeyError: 'width'",
        ),
        (FAILING, "too_wide", "cannot be built for input_shape .*: ValueError: .*negative"),
        ("def model(:", "model", "cannot import model .*: SyntaxError: .*correct the module failing_model"),
        ("raise RuntimeError('no disk')", "model", "cannot import model .*: RuntimeError: no disk"),
    ],
)
def test_function_of_a_user_that_fails_is_an_error_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, function: str, message: str
):
    (tmp_path / "failing_model.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "failing_model", raising=False)
    with pytest.raises(ConfigError, match=message):
        build_model(ModelConfig(name=f"failing_model:{function}", input_shape=(4, 4, 1), num_classes=3))


def test_models_of_users_are_loaded_from_files_and_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "my_models.py").write_text(
        "import keras\ndef small(input_shape, num_classes, width=4):\n    return "
        "keras.Sequential([keras.Input(input_shape), keras.layers.Dense(width), "
        "keras.layers.Dense(num_classes)])\nnumber = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_models", raising=False)
    first = build_model(
        ModelConfig(name="my_models:small", input_shape=(5,), num_classes=2, options={"width": 3})
    )
    assert [layer.name for layer in first.layers] == ["dense", "dense_1"]
    again = build_model(
        ModelConfig(name="my_models:small", input_shape=(5,), num_classes=2, options={"width": 3})
    )
    assert [layer.name for layer in again.layers] == ["dense", "dense_1"]
    first.save(tmp_path / "small.keras")
    loaded = build_model(ModelConfig(name=str(tmp_path / "small.keras"), input_shape=(5,), num_classes=2))
    assert (loaded.get_weights()[0] == first.get_weights()[0]).all()
    for name, message in (
        ("my_models:number", "is not a function"),
        ("my_models:missing", "cannot import"),
        ("no_such_module:f", "installed"),
    ):
        with pytest.raises(ConfigError, match=message):
            build_model(ModelConfig(name=name, input_shape=(5,), num_classes=2))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (ModelConfig(name="lenet"), "did you mean 'lenet5'"),
        (ModelConfig(name="lenet5", input_shape=(20, 20, 1)), "28x28 or 32x32"),
        (
            ModelConfig(name="lenet5", input_shape=(28, 28, 1), num_classes=10, options={"padding": "full"}),
            "expected auto, same or valid",
        ),
        (
            ModelConfig(name="aem-cnn", input_shape=(32, 32, 3), num_classes=10, options={"filter1": 3}),
            "did you mean 'filters1'",
        ),
        (
            ModelConfig(name="aem-cnn", input_shape=(32, 32, 3), num_classes=10, options={"filters1": 3.0}),
            "aem-cnn: filters1 is 3.0, expected a whole number",
        ),
        (
            ModelConfig(name="aem-cnn", input_shape=(32, 32, 3), num_classes=10, options={"filters1": 0}),
            "expected 1 or more",
        ),
        (
            ModelConfig(name="aem-cnn", input_shape=(32, 32, 3), num_classes=10, options={"dropout": 1}),
            "below 1",
        ),
        (
            ModelConfig(name="softmax", input_shape=(4,), num_classes=2, options={"width": 3}),
            "unknown option 'width'; it has none; remove it",
        ),
        (ModelConfig(name="resnet20", input_shape=(4, 32, 3)), "8x8 or more"),
        (
            ModelConfig(name="resnet20", input_shape=(32, 32, 3), num_classes=10, options={"groups": 3}),
            "groups that divide it",
        ),
        (ModelConfig(name="mobilenetv2", input_shape=(15, 16, 3)), "16x16 or more"),
        (
            ModelConfig(name="mobilenetv2", input_shape=(16, 16, 3), num_classes=10, options={"width": 0}),
            "above 0",
        ),
        (
            ModelConfig(name="ds-cnn", input_shape=(49, 10), num_classes=12),
            r"received input_shape \(49, 10\); write the data as",
        ),
        (
            ModelConfig(name="ds-cnn", input_shape=(49, 10, 1), num_classes=12, options={"filters": 0}),
            "1 or more",
        ),
        (ModelConfig(name="resnet8", input_shape=(3, 32, 3)), "4x4 or more"),
        (
            ModelConfig(name="resnet8", input_shape=(32, 32, 3), num_classes=10, options={"width": 0}),
            "1 or more",
        ),
        (ModelConfig(name="mobilenetv1", input_shape=(15, 16, 3)), "16x16 or more"),
        (
            ModelConfig(name="mobilenetv1", input_shape=(16, 16, 3), num_classes=10, options={"width": 0.01}),
            "1/32 or more",
        ),
        (ModelConfig(name="vgg16"), "32x32 or more"),
        (ModelConfig(name="cnn1d"), r"windows \(samples, channels\)"),
    ],
)
def test_invalid_model_configurations_are_refused(config, message):
    with pytest.raises(ConfigError, match=message):
        build_model(config)


def test_model_file_without_a_fixed_shape_is_refused_with_a_remedy_that_helps(tmp_path: Path):
    ends = [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(3)]
    keras.Sequential([keras.Input((None, None, 1)), *ends]).save(tmp_path / "any.keras")
    with pytest.raises(ConfigError, match=r"any size, \(None, None, 1\).*keras.Input\(\(6, 6, 1\)\)"):
        build_model(ModelConfig(name=str(tmp_path / "any.keras"), input_shape=(6, 6, 1), num_classes=3))


def test_model_file_with_other_shapes_is_refused(tmp_path: Path):
    keras.Sequential([keras.Input((5,)), keras.layers.Dense(2)]).save(tmp_path / "m.keras")
    with pytest.raises(ConfigError, match=r"takes samples of shape \(5,\).*input_shape \(6,\)"):
        build_model(ModelConfig(name=str(tmp_path / "m.keras"), input_shape=(6,), num_classes=2))
    with pytest.raises(ConfigError, match="num_classes 3"):
        build_model(ModelConfig(name=str(tmp_path / "m.keras"), input_shape=(5,), num_classes=3))


def test_a_model_is_normalized_once():
    """Such as one that was saved from a model with mean and std."""
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Normalization(mean=0.0, variance=1.0, name=LAYER_NAME)]
    )
    with pytest.raises(ConfigError, match=r"already has a layer input_normalization.*leave mean and std out"):
        normalize_input(model, [0.5], [2.0])

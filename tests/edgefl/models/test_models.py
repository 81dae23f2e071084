"""The papers' networks have the weights that the papers count, and a user's own model is taken or refused in words."""

import sys
from pathlib import Path

import keras
import pytest

from edgefl.config import ModelConfig
from edgefl.errors import ConfigError
from edgefl.models import build_model, list_models

LOCAL = {"filters1": 32, "filters2": 256, "hidden": 256, "dropout": 0.76}
GATE = {"filters1": 12, "filters2": 12, "hidden": 8, "dropout": 0.78}


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
    ],
)
def test_weights_are_as_many_as_the_paper_says(name, shape, classes, options, count):
    model = build_model(ModelConfig(name, shape, classes, options))
    assert model.count_params() == count
    assert tuple(model.outputs[0].shape) == (None, classes)


def test_every_model_has_a_source():
    assert set(list_models()) == {"lenet5", "aem-cnn", "five-conv", "softmax"}
    assert all(list_models().values())


def test_a_file_and_a_function_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "my_models.py").write_text(
        "import keras\n"
        "def small(input_shape, num_classes, width=4):\n"
        "    return keras.Sequential([keras.Input(input_shape), keras.layers.Dense(width), keras.layers.Dense(num_classes)])\n"
        "number = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_models", raising=False)
    first = build_model(ModelConfig("my_models:small", (5,), 2, {"width": 3}))
    assert [layer.name for layer in first.layers] == ["dense", "dense_1"]
    again = build_model(ModelConfig("my_models:small", (5,), 2, {"width": 3}))
    assert [layer.name for layer in again.layers] == ["dense", "dense_1"]
    first.save(tmp_path / "small.keras")
    loaded = build_model(ModelConfig(str(tmp_path / "small.keras"), (5,), 2))
    assert (loaded.get_weights()[0] == first.get_weights()[0]).all()
    for name, message in (
        ("my_models:number", "is no function"),
        ("my_models:missing", "cannot import"),
        ("no_such_module:f", "installed"),
    ):
        with pytest.raises(ConfigError, match=message):
            build_model(ModelConfig(name, (5,), 2))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (ModelConfig("lenet"), "did you mean 'lenet5'"),
        (ModelConfig("lenet5", (20, 20, 1)), "28x28 or 32x32"),
        (ModelConfig("aem-cnn", (32, 32, 3), 10, {"filter1": 3}), "filter1"),
        (ModelConfig("no-such.keras"), "cannot load the model no-such.keras"),
    ],
)
def test_what_is_refused(config, message):
    with pytest.raises(ConfigError, match=message):
        build_model(config)


def test_shapes_that_the_configuration_contradicts(tmp_path: Path):
    keras.Sequential([keras.Input((5,)), keras.layers.Dense(2)]).save(tmp_path / "m.keras")
    with pytest.raises(ConfigError, match=r"takes samples of \(5,\).*input_shape \(6,\)"):
        build_model(ModelConfig(str(tmp_path / "m.keras"), (6,), 2))
    with pytest.raises(ConfigError, match="num_classes 3"):
        build_model(ModelConfig(str(tmp_path / "m.keras"), (5,), 3))

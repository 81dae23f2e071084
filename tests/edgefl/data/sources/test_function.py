"""A user's function as a data source, and the JSON object from which a source is restored."""

import json
import sys

import numpy as np
import pytest

from edgefl.base.errors import ConfigError, DataError
from edgefl.data.sources import DataSource, load_samples, make_source, parse_source, read_source


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a user's module to the working folder, and return its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(tmp_path)])
    (tmp_path / "own_sensors.py").write_text(
        "import numpy as np\ncalls = []\n"
        "def load():\n    calls.append(1)\n    return np.full((6, 2), 51, np.uint8), np.arange(6) % 2\n"
        "def lists(): return [[0.5], [1.5]], [0, 1]\n"
        "def broken(): raise RuntimeError('no sensor')\n"
        "def ragged(): return [[1.0], [1.0, 2.0]], [0, 1]\n"
        "def bare(): return np.zeros(3)\n"
        "number = 3\n"
    )
    (tmp_path / "own_typo.py").write_text("import nothing_of_this_name\n")
    yield "own_sensors"
    for name in ("own_sensors", "own_typo"):
        sys.modules.pop(name, None)


def test_result_of_the_function_becomes_the_shard(module):
    shard = load_samples(make_source(f"{module}:load"), num_classes=3).shard
    assert (shard.x_train.shape, shard.x_test.shape, shard.num_classes) == ((4, 2), (2, 2), 3)
    assert set(shard.x_train.ravel().tolist()) == {float(np.float32(0.2))}
    assert len(sys.modules[module].calls) == 1
    assert read_source(make_source(f"{module}:lists"))["x"].tolist() == [[0.5], [1.5]]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_sensors:broken", "failed: RuntimeError: no sensor; EDGEFL_DEBUG"),
        ("own_sensors:ragged", "the same shape"),
        ("own_sensors:bare", "returned ndarray, expected a tuple"),
        ("own_sensors:none", "has no function 'none'"),
        ("own_sensors:number", "has no function 'number'"),
        ("own_typo:load", "importing own_typo failed: ModuleNotFoundError"),
        ("not_there.at_all:load", "run the command in the folder"),
    ],
)
def test_error_names_the_failing_function(module, name, message):
    with pytest.raises(DataError, match=message) as caught:
        read_source(make_source(name))
    assert name in str(caught.value)


def test_working_folder_does_not_shadow_installed_modules(module, tmp_path):
    (tmp_path / "colorsys.py").write_text("raise RuntimeError('hidden')")
    sys.modules.pop("colorsys", None)
    read_source(make_source(f"{module}:load"))
    import colorsys

    assert colorsys.rgb_to_hsv(0, 0, 0) == (0.0, 0.0, 0)


def test_window_options_are_refused_for_a_function(module):
    with pytest.raises(ConfigError, match="is a function"):
        make_source(f"{module}:load", window=3, label="y")


def test_source_is_restored_from_json(module, tmp_path):
    for source in (
        make_source("shard.npz"),
        make_source("a.csv", window=4, label="y", channels=("a", "b")),
        make_source("a.csv", window=4, target=("c", "d"), channels=("a", "b")),
        make_source("a.csv", window=4),
        make_source(f"{module}:load"),
    ):
        assert parse_source(json.loads(json.dumps(source.to_json()))) == source
    assert make_source("shard.npz").to_json() == {"data": str(tmp_path / "shard.npz")}
    assert make_source("a.csv", window=4, label="y") == DataSource(
        data=str(tmp_path / "a.csv"), window=4, step=4, label="y"
    )


@pytest.mark.parametrize(
    "source", [3, {"window": "4"}, {"unknown": 1}, {"channels": 3}, {"target": 3}, {"target": [3]}]
)
def test_invalid_json_sources_are_refused(source):
    with pytest.raises((TypeError, ValueError)):
        parse_source({"data": "x", "source": source})

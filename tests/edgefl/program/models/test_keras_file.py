"""Untrusted files: files of other formats and files that would run code are refused before loading."""

import io
import json
import random
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pytest

from edgefl.base.config import FederationConfig, ModelConfig
from edgefl.base.errors import ConfigError
from edgefl.program.models import build_model, keras_file
from edgefl.program.models.keras_file import MAX_UNPACKED_BYTES, read_compiled_loss
from edgefl.protocol.server.config_check import check_config

L = keras.layers


def save(path: Path, *layers: Any) -> Path:
    keras.Sequential([keras.Input((4,)), *layers, L.Dense(3, name="fc")]).save(path)
    return path


def load(path: Path) -> Any:
    return build_model(ModelConfig(name=str(path), input_shape=(4,), num_classes=3))


def rewrite(path: Path, replaced: dict[str, bytes | None]) -> None:
    """Replace members of an archive. None removes a member."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**members, **replaced}.items():
            if content is not None:
                archive.writestr(name, content)


def make(path: Path, class_name: str, module: str | None, config: Any) -> Path:
    """Write a `.keras` file of a Sequential with one object of this class."""
    layer = {"class_name": class_name, "module": module, "config": config, "registered_name": class_name}
    model = {"class_name": "Sequential", "module": "keras", "config": {"name": "model", "layers": [layer]}}
    save(path)
    rewrite(path, {"config.json": json.dumps(model).encode()})
    return path


def test_a_lambda_layer_never_runs(tmp_path):
    mark = tmp_path / "ran"
    name = str(mark)
    path = save(tmp_path / "m.keras", L.Lambda(lambda x: (open(name, "w").close(), x)[1], output_shape=(4,)))
    mark.unlink(missing_ok=True)
    with pytest.raises(ConfigError, match=r"Lambda layer.*module:function"):
        load(path)
    assert not mark.exists()
    keras.models.load_model(path, safe_mode=False)(np.zeros((1, 4)))
    assert mark.exists(), "the layer's code would have left its mark"


@pytest.mark.parametrize(
    ("class_name", "module"),
    [
        ("system", "os"),
        ("function", "os"),
        ("run", "subprocess"),
        ("import_module", "importlib"),
        ("get_file", "keras.utils"),
        ("get_file", "keras.src.utils.file_utils"),
        ("load_model", "keras.saving"),
        ("Odd", None),
        ("Layer", "kerasx.layers"),
        ("eval", "builtins"),
    ],
)
def test_objects_outside_keras_are_not_imported(tmp_path, class_name, module):
    mark = tmp_path / "ran"
    with pytest.raises(
        ConfigError, match=rf"{class_name} of {module or 'no module'} is not part of Keras; .*module:function"
    ):
        load(make(tmp_path / "m.keras", class_name, module, f"touch {mark}"))
    assert not mark.exists()


@pytest.mark.parametrize("class_name", ["Lambda", "__lambda__", "TorchModuleWrapper", "TFSMLayer"])
def test_nested_objects_with_code_are_refused(tmp_path, class_name):
    inner = {"class_name": class_name, "module": "keras.layers", "config": {}}
    with pytest.raises(ConfigError, match="whose code would run on this machine"):
        load(
            make(
                tmp_path / "m.keras",
                "Dense",
                "keras.layers",
                {"units": 3, "kernel_initializer": [{"deep": inner}]},
            )
        )


@keras.saving.register_keras_serializable("edgefl_tests")
class Scaled(L.Layer):
    def call(self, x):
        return 2 * x


def test_error_for_a_custom_class_names_the_class(tmp_path):
    with pytest.raises(ConfigError, match=r"Scaled of .*module:function"):
        load(save(tmp_path / "m.keras", Scaled()))


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_truncated_file_is_refused(tmp_path, share):
    path = save(tmp_path / "m.keras")
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ConfigError, match=r"cannot load the model .*expected a .keras file; copy it again"):
        load(path)


def test_files_of_other_formats_are_refused(tmp_path):
    save(tmp_path / "m.h5")
    for content, message in (
        ((tmp_path / "m.h5").read_bytes(), "an HDF5 file.*save it again as .keras"),
        (b"{}", "not a zip archive"),
        (b"\x80\x04\x95" + bytes(50), "not a zip archive"),
    ):
        (tmp_path / "m.keras").write_bytes(content)
        with pytest.raises(ConfigError, match=message):
            load(tmp_path / "m.keras")
    with pytest.raises(ConfigError, match="there is no such file"):
        load(tmp_path / "missing.keras")


@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        ({"config.json": None}, "without a readable config.json"),
        ({"config.json": b"{"}, "without a readable config.json"),
        ({"config.json": b"\xff\xfe"}, "without a readable config.json"),
        ({"config.json": b"[1, 2]"}, "save it again"),
        ({"model.weights.h5": None}, "save it again"),
        ({"model.weights.h5": b"\x89HDF\r\n\x1a\n"}, "save it again"),
    ],
)
def test_archives_with_damaged_members_are_refused(tmp_path, replaced, message):
    path = save(tmp_path / "m.keras")
    rewrite(path, replaced)
    with pytest.raises(ConfigError, match=message):
        load(path)


def test_archive_that_unpacks_to_too_many_bytes_is_refused(tmp_path, monkeypatch):
    path = save(tmp_path / "m.keras")
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("padding", bytes(2_000_000))
    monkeypatch.setitem(MAX_UNPACKED_BYTES, "all of it", 1_000_000)
    with pytest.raises(
        ConfigError,
        match=r"all of it unpacks to 2,\d+,\d+ bytes, expected at most 1,000,000; .*module:function",
    ):
        load(path)
    monkeypatch.setitem(MAX_UNPACKED_BYTES, "config.json", 10)
    with pytest.raises(ConfigError, match=r"config.json unpacks to"):
        load(path)


def test_configuration_that_does_not_match_the_weights_is_refused(tmp_path):
    path = save(tmp_path / "m.keras")
    with zipfile.ZipFile(path) as archive:
        config = archive.read("config.json")
    rewrite(path, {"config.json": config.replace(b'"units": 3', b'"units": 5')})
    with pytest.raises(ConfigError, match="save it again"):
        build_model(ModelConfig(name=str(path), input_shape=(4,), num_classes=5))


def test_options_for_a_file_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="options width have no effect"):
        build_model(
            ModelConfig(
                name=str(save(tmp_path / "m.keras")), input_shape=(4,), num_classes=3, options={"width": 2}
            )
        )


def test_compiled_model_of_keras_objects_is_loaded(tmp_path):
    """A model with nested models, operations and slices, and with a custom loss, which is not created."""
    inner = keras.Sequential([keras.Input((4,)), L.Dense(6, activation="gelu", kernel_regularizer="l2")])
    inner.compile("sgd", keras.losses.MeanSquaredError())
    x = keras.Input((4,))
    y = inner(x)
    y = (keras.ops.relu(y) + y)[:, :3]
    model = keras.Model(x, L.Dense(3)(y))
    model.compile("adam", lambda y, p: p)
    model.save(tmp_path / "m.keras")
    data = np.random.default_rng(0).random((5, 4), dtype=np.float32)
    np.testing.assert_allclose(load(tmp_path / "m.keras")(data), model(data), atol=1e-6)


def measure_load(path: Path) -> tuple[str, int]:
    """Load a file in a separate process, and return its message and its peak memory in MB."""
    code = (
        "import sys, resource, pathlib\n"
        "import keras\n"
        "from edgefl.base.errors import ConfigError\n"
        "from edgefl.program.models.keras_file import load_keras_file\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "words = 'loaded'\n"
        "try:\n    load_keras_file(pathlib.Path(sys.argv[1]))\n"
        "except ConfigError as error:\n    words = str(error)\n"
        "children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss\n"
        "print(max(children, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10, words)\n"
    )
    completed = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stderr[-2000:]
    memory, message = completed.stdout.strip().split(" ", 1)
    return message, int(memory)


def change_weights(path: Path, change: Callable[[Any], None]) -> Path:
    """Change the HDF5 file in an archive of one dense layer."""
    save(path)
    with zipfile.ZipFile(path) as archive:
        content = io.BytesIO(archive.read("model.weights.h5"))
    with h5py.File(content, "a") as file:
        change(file)
    rewrite(path, {"model.weights.h5": content.getvalue()})
    return path


def test_decompression_bomb_in_the_arrays_is_refused(tmp_path):
    """HDF5 compresses zeros by a factor of a million: a file of kilobytes can contain a gigabyte."""

    def inflate(file: Any) -> None:
        group = file["layers/dense/vars"]
        del group["0"]
        group.create_dataset("0", (256 << 20,), "f4", chunks=(16 << 20,), compression="gzip", fillvalue=1.0)
        group["0"][:16] = 0.5

    path = change_weights(tmp_path / "bomb.keras", inflate)
    assert path.stat().st_size < 200_000
    message, memory = measure_load(path)
    assert memory < 1000, f"{memory} MB"
    assert "arrays in model.weights.h5" in message and "1,073,7" in message and "module:function" in message


def test_huge_layer_in_the_configuration_is_refused(tmp_path):
    path = save(tmp_path / "bomb.keras")
    with zipfile.ZipFile(path) as archive:
        config = archive.read("config.json")
    rewrite(path, {"config.json": config.replace(b'"units": 3', b'"units": 100000000')})
    assert path.stat().st_size < 50_000
    message, memory = measure_load(path)
    assert memory < 1000, f"{memory} MB"
    assert "500,000,000 weights" in message and "module:function" in message


def point_outside(file: Any, kind: str) -> None:
    group = file["layers/dense/vars"]
    shape = group["0"].shape
    del group["0"]
    if kind == "storage":
        group.create_dataset("0", shape, "f4", external=[("/etc/hostname", 0, h5py.h5f.UNLIMITED)])
    elif kind == "link":
        group["0"] = h5py.ExternalLink("/etc/hostname", "/x")
    elif kind == "soft":
        group["0"] = h5py.SoftLink("/layers/dense/vars/1")
    elif kind == "virtual":
        layout = h5py.VirtualLayout(shape, "f4")
        layout[:] = h5py.VirtualSource("/etc/hostname", "x", shape)
        group.create_virtual_dataset("0", layout)
    else:
        group.create_dataset("0", shape, h5py.string_dtype())


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("storage", "another file"),
        ("link", "link"),
        ("soft", "link"),
        ("virtual", "other arrays"),
        ("text", "expected numbers"),
    ],
)
def test_linked_external_and_text_arrays_are_refused(tmp_path, kind, message):
    path = change_weights(tmp_path / "m.keras", lambda file: point_outside(file, kind))
    with pytest.raises(ConfigError, match=rf"model.weights.h5.*{message}.*save it again"):
        load(path)


def test_loading_stops_at_the_cpu_time_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(keras_file, "LOAD_CPU_LIMIT_S", 0.05)
    path = save(tmp_path / "m.keras", *(L.Dense(4) for _ in range(200)))
    with pytest.raises(ConfigError, match=r"0\.05 s.*module:function"):
        load(path)


def test_file_with_too_many_objects_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(keras_file, "MAX_OBJECTS", 5)
    with pytest.raises(ConfigError, match="more than 5 objects"):
        load(save(tmp_path / "m.keras"))


def test_loading_does_not_use_the_global_random_generator(tmp_path):
    """Other random draws of a federation do not depend on whether the model is a file."""
    path = save(tmp_path / "m.keras", L.Dropout(0.1))
    random.seed(5)
    expected = random.random()
    random.seed(5)
    keras_file._check_weights(path, keras_file._read_config(path))
    assert random.random() == expected


def test_quantized_model_is_loaded_as_a_model_of_keras(tmp_path):
    """The compiler then names its int8 layers."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="h")])
    model.quantize("int8")
    model.save(tmp_path / "int8.keras")
    assert load(tmp_path / "int8.keras").get_layer("h").quantization_mode == "int8"


def test_stateful_layer_is_refused_by_its_name(tmp_path):
    x = keras.Input(batch_shape=(1, 4, 2))
    keras.Model(x, keras.layers.LSTM(3, stateful=True, name="keeps")(x)).save(tmp_path / "own.keras")
    with pytest.raises(ConfigError, match=r"layer keeps is stateful, expected .*stateful=False"):
        load(tmp_path / "own.keras")


LOSSES: dict[str, tuple[Any, str]] = {
    "none": (None, ""),
    "name": ("mse", "mse"),
    "smoothed": (
        keras.losses.CategoricalCrossentropy(label_smoothing=0.2),
        "CategoricalCrossentropy(label_smoothing=0.2)",
    ),
    "plain": (keras.losses.SparseCategoricalCrossentropy(from_logits=True), "SparseCategoricalCrossentropy"),
    "focal": (
        keras.losses.CategoricalFocalCrossentropy(),
        "CategoricalFocalCrossentropy(alpha=0.25, gamma=2.0)",
    ),
    "function": (keras.losses.hinge, "hinge"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_loss_of_a_compiled_model_is_read_without_loading_it(tmp_path, name):
    loss, expected = LOSSES[name]
    model = keras.Sequential([keras.Input((4,)), L.Dense(3)])
    if loss is not None:
        model.compile("sgd", loss)
    model.save(tmp_path / "own.keras")
    assert read_compiled_loss(tmp_path / "own.keras") == expected


@pytest.mark.parametrize(("name", "is_other"), [("plain", False), ("smoothed", True), ("name", True)])
def test_another_loss_than_that_of_the_task_is_a_warning(tmp_path, name, is_other):
    model = keras.Sequential([keras.Input((4,)), L.Dense(3)])
    model.compile("sgd", LOSSES[name][0])
    model.save(tmp_path / "own.keras")
    warnings = check_config(
        FederationConfig(model=ModelConfig(name=str(tmp_path / "own.keras"), input_shape=(4,), num_classes=3))
    )
    assert [("devices train with cross-entropy" in warning) for warning in warnings] == [True] * is_other

"""Hints of `edgefl init` about samples that are probably wrong, and the advice in errors about bad data."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from edgefl.base.config import load_config
from edgefl.base.errors import DataError
from edgefl.cli import main as cli
from edgefl.data import load_data, make_shards
from edgefl.data.npz import load_shard
from edgefl.data.sources import load_samples, make_source

RNG = np.random.default_rng(0)
LABELS = np.arange(100) % 10


def draw_images(*shape: int) -> Any:
    return RNG.random((100, *shape)).astype(np.float32)


def draw_uint8_images(*shape: int) -> Any:
    return RNG.integers(0, 256, (100, *shape)).astype(np.uint8)


def run_init(folder: Path, capsys: pytest.CaptureFixture[str], **arrays: Any) -> str:
    np.savez(folder / "pi-1.npz", **arrays)
    assert (
        cli.run_command(
            ["init", "--yes", "--data", str(folder / "pi-1.npz"), str(folder / "federation.toml")]
        )
        == 0
    )
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("x", "y", "phrases"),
    [
        (draw_images(9, 128), LABELS, ("9x128", "128 readings of 9 channels", "x.transpose(0, 2, 1)")),
        (np.float32(draw_uint8_images(24, 32)) / 9, LABELS, ()),
        (draw_uint8_images(24, 32), LABELS, ("24x32", "x[..., None]")),
        (draw_images(28, 28, 1) * 255, LABELS, ("25", "x / 255")),
        (draw_images(28, 28, 1), LABELS + 7, ("7 to 16", "17 classes", "y - 7")),
    ],
)
def test_a_probable_mistake_is_named_with_its_remedy(tmp_path, capsys, x, y, phrases) -> None:
    output = run_init(tmp_path, capsys, x=x, y=y)
    assert all(phrase in output for phrase in phrases), output


@pytest.mark.parametrize(
    ("x", "y", "shape", "model", "phrases"),
    [
        (draw_images(28, 28), LABELS, (28, 28, 1), "lenet5", ("28x28 get a channel axis", "28x28x1")),
        (draw_images(1, 28, 28), LABELS, (28, 28, 1), "lenet5", ("1x28x28", "channels first", "28x28x1")),
        (draw_images(3, 32, 32), LABELS, (32, 32, 3), "lenet5", ("3x32x32", "moved to the end", "32x32x3")),
        (
            np.floor(draw_images(28, 28, 1) * 256),
            LABELS,
            (28, 28, 1),
            "lenet5",
            ("255", "divided by 255", "scale = 255"),
        ),
        (draw_images(28, 28, 1), np.eye(10)[LABELS], (28, 28, 1), "lenet5", ("one-hot", "10 classes")),
        (draw_images(9), LABELS[:, None].astype(float), (9,), "softmax", ("float64[100, 1]",)),
    ],
)
def test_unambiguous_data_forms_are_converted_and_reported(
    tmp_path, capsys, x, y, shape, model, phrases
) -> None:
    output = run_init(tmp_path, capsys, x=x, y=y)
    change = next(line for line in output.splitlines() if "change: pi-1: " in line)
    assert all(phrase in change for phrase in phrases), output
    config = load_config(tmp_path / "federation.toml").model
    assert (config.input_shape, config.num_classes, config.name) == (shape, 10, model)


def test_input_shape_option_overrides_the_detected_shape(tmp_path, capsys) -> None:
    np.savez(tmp_path / "a.npz", x=draw_images(28, 28), y=LABELS)
    data = ["init", "--yes", "--data", str(tmp_path / "a.npz"), str(tmp_path / "f.toml"), "--input-shape"]
    assert cli.run_command([*data, "28,2"]) == 1
    assert "--input-shape is 28x2; expected 28,28 or 28,28,1" in capsys.readouterr().err
    assert cli.run_command([*data, "28,28"]) == 0
    assert "change" not in capsys.readouterr().err
    assert load_config(tmp_path / "f.toml").model.input_shape == (28, 28)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (draw_images(28, 28, 1), LABELS),
        (draw_images(128, 9), LABELS),
        # Could also be three readings of 32 channels, so nothing is reported
        (draw_images(3, 32, 4), LABELS),
        ((draw_images(28, 28, 1) * 255).astype(np.uint8), LABELS),
        (draw_images(9), LABELS),
    ],
)
def test_usual_samples_get_no_hint(tmp_path, capsys, x, y) -> None:
    assert "warning" not in run_init(tmp_path, capsys, x=x, y=y)


def test_devices_may_have_different_label_ranges(tmp_path, capsys) -> None:
    for name, first in (("pi-1", 0), ("pi-2", 3)):
        np.savez(tmp_path / f"{name}.npz", x=draw_images(28, 28, 1), y=first + np.arange(100) % 3)
    arguments = [
        argument for name in ("pi-1", "pi-2") for argument in ("--data", str(tmp_path / f"{name}.npz"))
    ]
    assert cli.run_command(["init", "--yes", *arguments, str(tmp_path / "federation.toml")]) == 0
    assert "warning" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("y", "phrases"),
    [
        (RNG.random((100, 10)), ("y.argmax(1)",)),
        (LABELS / 2, ("0.5", "not a class")),
        (np.zeros((100, 2, 2), int), ("one whole number per sample",)),
        (np.array(["a"] * 100), ("number the classes from 0",)),
    ],
)
def test_labels_that_are_no_whole_numbers_are_refused_with_a_remedy(tmp_path, y, phrases) -> None:
    np.savez(tmp_path / "a.npz", x=draw_images(4), y=y)
    with pytest.raises(DataError) as caught:
        load_shard(tmp_path / "a.npz")
    assert all(phrase in str(caught.value) for phrase in phrases), caught.value
    assert "ravel" not in str(caught.value)


def test_errors_never_advise_unpickling(tmp_path, capsys) -> None:
    (tmp_path / "text.npz").write_text("temperature,label\n20,1\n")
    np.savez(tmp_path / "objects.npz", x=np.array([{}] * 3, object), y=np.arange(3))
    for name, phrase in (("text.npz", "not a NumPy file"), ("objects.npz", "Python objects")):
        assert (
            cli.run_command(["init", "--yes", "--data", str(tmp_path / name), str(tmp_path / "f.toml")]) == 1
        )
        output = capsys.readouterr().err
        assert phrase in output and "numpy.savez" in output
        assert "pickle" not in output and "--input-shape" not in output


def test_input_shape_is_not_suggested_for_unrelated_errors(tmp_path, capsys) -> None:
    np.savez(tmp_path / "nan.npz", x=np.full((4, 3), np.nan), y=np.arange(4))
    np.savez(tmp_path / "one.npz", x=np.zeros((1, 3)), y=np.zeros(1, int))
    for name in ("nan.npz", "one.npz"):
        assert (
            cli.run_command(["init", "--yes", "--data", str(tmp_path / name), str(tmp_path / "f.toml")]) == 1
        )
        assert "--input-shape" not in capsys.readouterr().err


@pytest.mark.parametrize("suffix", [".jpg", ".JPEG"])
def test_jpeg_folders_are_loaded_and_broken_files_refused(tmp_path, suffix) -> None:
    for index, name in enumerate(("cat", "dog")):
        (tmp_path / name).mkdir()
        for number in range(3):
            Image.fromarray(np.full((8, 10, 3), 40 * (index + number), np.uint8)).save(
                tmp_path / name / f"{number}{suffix}", "JPEG"
            )
    shard = load_samples(make_source(str(tmp_path))).shard
    assert shard.x_train.shape[1:] == (8, 10, 3) and shard.num_classes == 2
    assert float(shard.x_train.max()) <= 120 / 255 + 0.02
    (tmp_path / "cat" / f"0{suffix}").write_bytes(b"\xff\xd8\xff\xe0 no more")
    with pytest.raises(DataError, match="cannot be read as JPEG"):
        load_samples(make_source(str(tmp_path)))


def test_init_simulates_all_devices(tmp_path, capsys, monkeypatch) -> None:
    """Each file becomes one client. The first file is not partitioned over invented clients."""
    monkeypatch.chdir(tmp_path)
    for number, count in ((1, 40), (2, 60)):
        np.savez(f"pi-{number}.npz", x=np.full((count, 5), number, np.float32), y=np.arange(count) % 2)
    assert cli.run_command(["init", "--yes", "--data", "pi-1.npz", "--data", "pi-2.npz"]) == 0
    assert "simulate all 2 devices" in capsys.readouterr().out
    config = load_config(Path("federation.toml"))
    assert (config.partition.name, config.partition.num_clients) == ("group", 2)
    dataset = load_data(config.data, config.seed)
    shards = make_shards(dataset, config.partition, config.seed).values()
    assert [len(shard.y_train) + len(shard.y_test) for shard in shards] == [40, 60]
    assert [set(shard.x_train.ravel()) for shard in shards] == [{1.0}, {2.0}]


def test_one_file_is_simulated_with_invented_clients(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("pi-1.npz", x=np.zeros((40, 5), np.float32), y=np.arange(40) % 2)
    assert cli.run_command(["init", "--yes", "--data", "pi-1.npz"]) == 0
    assert "simulate 10 clients that share the data of pi-1.npz" in capsys.readouterr().out

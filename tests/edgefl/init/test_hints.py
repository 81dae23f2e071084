"""Hints of `edgefl init` about samples that are probably wrong, and the advice in errors about bad data."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from edgefl.cli import main as cli
from edgefl.config import load_config
from edgefl.data import load_data, make_shards
from edgefl.data.npz import load_shard
from edgefl.data.sources import load_source, make_source
from edgefl.errors import DataError

RNG = np.random.default_rng(0)
LABELS = np.arange(100) % 10


def pictures(*shape: int) -> Any:
    return RNG.random((100, *shape)).astype(np.float32)


def uint8_pictures(*shape: int) -> Any:
    return RNG.integers(0, 256, (100, *shape)).astype(np.uint8)


def init(folder: Path, capsys: pytest.CaptureFixture[str], **arrays: Any) -> str:
    np.savez(folder / "pi-1.npz", **arrays)
    assert (
        cli.run_command(
            ["init", "--yes", "--data", str(folder / "pi-1.npz"), str(folder / "federation.toml")]
        )
        == 0
    )
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (pictures(9, 128), LABELS, ("9x128", "128 readings of 9 channels", "x.transpose(0, 2, 1)")),
        (np.float32(uint8_pictures(24, 32)) / 9, LABELS, ()),
        (uint8_pictures(24, 32), LABELS, ("24x32", "x[..., None]")),
        (pictures(28, 28, 1) * 255, LABELS, ("25", "x / 255")),
        (pictures(28, 28, 1), LABELS + 7, ("7 to 16", "17 classes", "y - 7")),
    ],
)
def test_a_probable_mistake_is_named_with_its_remedy(tmp_path, capsys, x, y, words) -> None:
    output = init(tmp_path, capsys, x=x, y=y)
    assert all(word in output for word in words), output


@pytest.mark.parametrize(
    ("x", "y", "shape", "model", "words"),
    [
        (pictures(28, 28), LABELS, (28, 28, 1), "lenet5", ("28x28 get a channel axis", "28x28x1")),
        (pictures(1, 28, 28), LABELS, (28, 28, 1), "lenet5", ("1x28x28", "channels first", "28x28x1")),
        (pictures(3, 32, 32), LABELS, (32, 32, 3), "lenet5", ("3x32x32", "moved to the end", "32x32x3")),
        (np.floor(pictures(28, 28, 1) * 256), LABELS, (28, 28, 1), "lenet5", ("255", "divided by 255")),
        (pictures(28, 28, 1), np.eye(10)[LABELS], (28, 28, 1), "lenet5", ("one-hot", "10 classes")),
        (pictures(9), LABELS[:, None].astype(float), (9,), "softmax", ("float64[100, 1]",)),
    ],
)
def test_a_form_with_one_meaning_is_changed_and_init_says_so(
    tmp_path, capsys, x, y, shape, model, words
) -> None:
    output = init(tmp_path, capsys, x=x, y=y)
    change = next(line for line in output.splitlines() if "change: pi-1: " in line)
    assert all(word in change for word in words), output
    config = load_config(tmp_path / "federation.toml").model
    assert (config.input_shape, config.num_classes, config.name) == (shape, 10, model)


def test_a_shape_by_hand_overrides_the_likely_one(tmp_path, capsys) -> None:
    np.savez(tmp_path / "a.npz", x=pictures(28, 28), y=LABELS)
    data = ["init", "--yes", "--data", str(tmp_path / "a.npz"), str(tmp_path / "f.toml"), "--input-shape"]
    assert cli.run_command([*data, "28,2"]) == 1
    assert "--input-shape is 28x2; expected 28,28 or 28,28,1" in capsys.readouterr().err
    assert cli.run_command([*data, "28,28"]) == 0
    assert "change" not in capsys.readouterr().err
    assert load_config(tmp_path / "f.toml").model.input_shape == (28, 28)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (pictures(28, 28, 1), LABELS),
        (pictures(128, 9), LABELS),
        (pictures(3, 32, 4), LABELS),  # could also be three readings of 32 channels, so nothing is reported
        ((pictures(28, 28, 1) * 255).astype(np.uint8), LABELS),
        (pictures(9), LABELS),
    ],
)
def test_usual_samples_get_no_hint(tmp_path, capsys, x, y) -> None:
    assert "warning" not in init(tmp_path, capsys, x=x, y=y)


def test_labels_of_one_device_may_begin_where_those_of_another_end(tmp_path, capsys) -> None:
    for name, first in (("pi-1", 0), ("pi-2", 3)):
        np.savez(tmp_path / f"{name}.npz", x=pictures(28, 28, 1), y=first + np.arange(100) % 3)
    data = [word for name in ("pi-1", "pi-2") for word in ("--data", str(tmp_path / f"{name}.npz"))]
    assert cli.run_command(["init", "--yes", *data, str(tmp_path / "federation.toml")]) == 0
    assert "warning" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("y", "words"),
    [
        (RNG.random((100, 10)), ("y.argmax(1)",)),
        (LABELS / 2, ("0.5", "not a class")),
        (np.zeros((100, 2, 2), int), ("one whole number per sample",)),
        (np.array(["a"] * 100), ("number the classes from 0",)),
    ],
)
def test_what_to_do_with_labels_that_are_no_whole_numbers(tmp_path, y, words) -> None:
    np.savez(tmp_path / "a.npz", x=pictures(4), y=y)
    with pytest.raises(DataError) as caught:
        load_shard(tmp_path / "a.npz")
    assert all(word in str(caught.value) for word in words), caught.value
    assert "ravel" not in str(caught.value)


def test_numpy_never_advises_to_unpickle(tmp_path, capsys) -> None:
    (tmp_path / "text.npz").write_text("temperature,label\n20,1\n")
    np.savez(tmp_path / "objects.npz", x=np.array([{}] * 3, object), y=np.arange(3))
    for name, words in (("text.npz", "not a NumPy file"), ("objects.npz", "Python objects")):
        assert (
            cli.run_command(["init", "--yes", "--data", str(tmp_path / name), str(tmp_path / "f.toml")]) == 1
        )
        output = capsys.readouterr().err
        assert words in output and "numpy.savez" in output
        assert "pickle" not in output and "--input-shape" not in output


def test_a_shape_by_hand_is_offered_only_where_it_helps(tmp_path, capsys) -> None:
    np.savez(tmp_path / "nan.npz", x=np.full((4, 3), np.nan), y=np.arange(4))
    np.savez(tmp_path / "one.npz", x=np.zeros((1, 3)), y=np.zeros(1, int))
    for name in ("nan.npz", "one.npz"):
        assert (
            cli.run_command(["init", "--yes", "--data", str(tmp_path / name), str(tmp_path / "f.toml")]) == 1
        )
        assert "--input-shape" not in capsys.readouterr().err


@pytest.mark.parametrize("suffix", [".jpg", ".JPEG"])
def test_pictures_of_a_camera(tmp_path, suffix) -> None:
    for index, name in enumerate(("cat", "dog")):
        (tmp_path / name).mkdir()
        for number in range(3):
            Image.fromarray(np.full((8, 10, 3), 40 * (index + number), np.uint8)).save(
                tmp_path / name / f"{number}{suffix}", "JPEG"
            )
    shard = load_source(make_source(str(tmp_path)))
    assert shard.x_train.shape[1:] == (8, 10, 3) and shard.num_classes == 2
    assert float(shard.x_train.max()) <= 120 / 255 + 0.02
    (tmp_path / "cat" / f"0{suffix}").write_bytes(b"\xff\xd8\xff\xe0 no more")
    with pytest.raises(DataError, match="cannot be read as JPEG"):
        load_source(make_source(str(tmp_path)))


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
    assert [len(each.y_train) + len(each.y_test) for each in shards] == [40, 60]
    assert [set(each.x_train.ravel()) for each in shards] == [{1.0}, {2.0}]


def test_one_file_is_said_to_be_dealt_to_invented_clients(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("pi-1.npz", x=np.zeros((40, 5), np.float32), y=np.arange(40) % 2)
    assert cli.run_command(["init", "--yes", "--data", "pi-1.npz"]) == 0
    assert "simulate 10 clients that share the data of pi-1.npz" in capsys.readouterr().out

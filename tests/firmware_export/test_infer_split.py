"""The held-out samples that `edgefl infer` chooses.

It uses the rule in the model's metadata, in whatever folder the model is. Without a usable rule it holds out
nothing.
"""

import json
import os
import shutil
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.learning.checkpoint import encode_mixture
from edgefl.program.plan.spec import save_plan

ROOT = Path(__file__).parents[2]
COUNT = 200


def run_edgefl(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edgefl", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


def infer(model: Path, data: Path, *more: str) -> str:
    done = run_edgefl("infer", model, "--data", data, "--reference", *more)
    assert done.returncode == 0, done.stderr
    return done.stdout


def write_noise(path: Path, count: int, seed: int) -> Path:
    """Write random pictures with random labels, and return the path.

    A model predicts the labels only by chance, or because it memorized them.
    """
    rng = np.random.default_rng(seed)
    np.savez(path, x=rng.random((count, 28, 28, 1), np.float32), y=rng.permutation(np.arange(count) % 10))
    return path


@pytest.fixture(scope="module")
def home(digits, tmp_path_factory) -> Path:
    """A device's state, its data with random labels, and its exported model."""
    home = tmp_path_factory.mktemp("device")
    save_plan(digits.plan, home / "plan")
    (home / "mixture.safetensors").write_bytes(encode_mixture(digits.mixture))
    data = write_noise(home / "pi-1.npz", COUNT, 1)
    (home / "device.json").write_text(
        json.dumps({"data": str(data), "id": "pi-1", "federation": "digits", "seed": 3})
    )
    done = run_edgefl("export", "--state", home, "-o", home / "model")
    assert done.returncode == 0, done.stderr
    assert "XNNPACK" not in done.stderr
    return home


def test_copied_model_is_measured_on_the_same_held_out_samples(home, tmp_path) -> None:
    report = json.loads((home / "model/report.json").read_text())
    copied = Path(shutil.copy(home / "model/model.tflite", tmp_path / "copied.tflite"))
    shown = infer(copied, home / "pi-1.npz")
    assert f"accuracy {report['accuracy_int8']:.4f} on 40 held-out samples" in shown
    float_copy = Path(shutil.copy(home / "model/model_float.tflite", tmp_path / "float.tflite"))
    assert f"accuracy {report['accuracy_float']:.4f} on 40 held-out samples" in infer(
        float_copy, home / "pi-1.npz"
    )


def test_shard_of_another_size_is_measured_on_all_samples(home, tmp_path) -> None:
    shown = infer(home / "model/model.tflite", write_noise(tmp_path / "pi-2.npz", 150, 2))
    assert "on all 150 samples" in shown and "may have been trained on some of them" in shown
    assert "200 samples" in shown and "this shard has 150" in shown
    assert "test" not in shown and "held-out" not in shown


def test_samples_of_another_device_are_held_out_by_the_same_rule(home, tmp_path) -> None:
    """The measured samples are those on which the other device did not train."""
    arrays = dict(np.load(home / "pi-1.npz"))
    arrays["y"] = (
        np.arange(COUNT) // 20
    )  # labels by position: the accuracy reveals which positions were measured
    np.savez(tmp_path / "pi-2.npz", **arrays)
    state = Path(shutil.copytree(home, tmp_path / "state", ignore=shutil.ignore_patterns("model", "*.npz")))
    (state / "device.json").write_text(
        json.dumps({"data": str(tmp_path / "pi-2.npz"), "id": "pi-2", "federation": "f", "seed": 3})
    )
    done = run_edgefl("export", "--state", state, "-o", state / "model", "--json")
    figures = json.loads(done.stdout)
    shown = infer(home / "model/model.tflite", tmp_path / "pi-2.npz")
    assert f"accuracy {figures['accuracy_int8']:.4f} on 40 " in shown


def test_the_export_reports_how_samples_were_held_out(home, tmp_path) -> None:
    """The samples have no groups and no overlaps, so they count as ordered in time."""
    report = json.loads((home / "model/report.json").read_text())
    assert "the last samples of each class" in report["held_out"] and "time order" in report["held_out"]
    state = Path(shutil.copytree(home, tmp_path / "state", ignore=shutil.ignore_patterns("model")))
    done = run_edgefl("export", "--state", state, "-o", state / "model")
    assert f"held-out samples: {report['held_out']}" in done.stdout


def test_the_export_reports_overlapping_windows(home, tmp_path) -> None:
    """The file stores the windows without a channel axis. The model has this axis."""
    signal = np.random.default_rng(5).random((COUNT * 28, 28), np.float32)
    x = signal.reshape(COUNT, 28, 28)
    x_test = np.stack([signal[14:42], 1 - x[0], x[1]])
    path = tmp_path / "windows.npz"
    np.savez(path, x=x, y=np.arange(COUNT) % 10, x_test=x_test, y_test=np.arange(3))
    done = run_edgefl("export", "--state", home, "-o", tmp_path / "model", "--data", path)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "model/report.json").read_text())
    assert report["held_out"].startswith("the file itself contains its test samples; ")
    assert "2 of 3 windows of x_test overlap training windows" in report["held_out"]
    assert f"held-out samples: {report['held_out']}" in done.stdout


def test_split_record_allows_tests_only_for_equal_rule_seed_and_size() -> None:
    from edgefl.data.split import SplitRecord

    note = SplitRecord(rule="time", seed=3, train=160, test=40)
    assert note.allows_test_on(SplitRecord(rule="time", seed=3, train=160, test=40))
    for changed in ({"rule": "group"}, {"seed": 4}, {"train": 161, "test": 39}):
        assert not note.allows_test_on(replace(note, **changed))
    assert SplitRecord(rule="window_number", seed=3, train=80, test=20).allows_test_on(
        SplitRecord(rule="window_number", seed=3, train=90, test=21)
    )
    assert not SplitRecord(rule="window_number", seed=3, train=80, test=20).allows_test_on(
        SplitRecord(rule="window_number", seed=4, train=80, test=20)
    )


def test_model_without_split_record_is_measured_on_all_samples(home, tmp_path) -> None:
    content = (home / "model/model.tflite").read_bytes()
    (tmp_path / "model.tflite").write_bytes(content.replace(b"EDGEFL_SPLIT", b"EDGEFL_OTHER"))
    shown = infer(tmp_path / "model.tflite", home / "pi-1.npz")
    assert "on all 200 samples" in shown and "may have been trained on some of them" in shown
    figures = json.loads(infer(tmp_path / "model.tflite", home / "pi-1.npz", "--json"))
    assert figures["split"] == "all" and figures["samples"] == 200 and "no record" in figures["split_unknown"]
    refused = run_edgefl("infer", tmp_path / "model.tflite", "--data", home / "pi-1.npz", "--split", "train")
    assert refused.returncode == 1 and "--split all" in refused.stderr and "Traceback" not in refused.stderr


def test_data_file_with_test_samples_is_measured_on_all_samples(home, tmp_path) -> None:
    """The file has its own test samples, but the model was split by another rule.

    The model may have been trained on some of them.
    """
    arrays = dict(np.load(home / "pi-1.npz"))
    parts = {
        "x": arrays["x"][:160],
        "y": arrays["y"][:160],
        "x_test": arrays["x"][160:],
        "y_test": arrays["y"][160:],
    }
    np.savez(tmp_path / "own.npz", **parts)
    shown = infer(home / "model/model.tflite", tmp_path / "own.npz")
    assert "on all 200 samples" in shown and "may have been trained" in shown


def test_split_record_names_no_sample_and_no_device(home) -> None:
    from edgefl.data.split import SPLIT_METADATA_NAME, decode_split
    from edgefl.program.plan.tflite import read_metadata

    for name in ("model.tflite", "model_float.tflite"):
        note = read_metadata((home / "model" / name).read_bytes(), SPLIT_METADATA_NAME)
        assert json.loads(note) == {"version": 2, "rule": "time", "seed": 3, "train": 160, "test": 40}
        assert decode_split(note) is not None
        assert b"pi-1" not in (home / "model" / name).read_bytes()


def test_only_the_owner_reads_models_and_the_report_follows_the_umask(home) -> None:
    umask = os.umask(0)
    os.umask(umask)
    modes = {"model.tflite": 0o600, "model_float.tflite": 0o600, "report.json": 0o666 & ~umask}
    for name, mode in modes.items():
        assert (home / "model" / name).stat().st_mode & 0o777 == mode, name


def test_infer_prints_nothing_on_standard_error(home) -> None:
    done = run_edgefl("infer", home / "model/model_float.tflite", "--data", home / "pi-1.npz")
    assert done.returncode == 0
    assert done.stderr == ""


def test_metadata_changes_no_weight_and_preserves_alignment(home) -> None:
    from edgefl.program.plan.tflite import read_float_constants, unpack_model, with_metadata
    from firmware_export.tflite.graph import read_graph

    model = (home / "model/model.tflite").read_bytes()
    again = with_metadata(model, {"more": b"\x00\x01"})
    assert read_graph(again) == read_graph(model)
    assert read_float_constants(again).keys() == read_float_constants(model).keys()
    first = np.frombuffer(again, np.uint8).__array_interface__["data"][0]
    for buffer in unpack_model(again).buffers:
        if buffer.data is not None:
            assert (buffer.data.__array_interface__["data"][0] - first) % 16 == 0


@pytest.fixture(scope="module")
def tiny() -> bytes:
    """A model that has only the metadata."""
    from ai_edge_litert import schema_py_generated as schema

    from edgefl.data.split import SPLIT_METADATA_NAME
    from edgefl.program.plan.tflite import pack_model, with_metadata

    root = schema.ModelT()
    root.version = 3
    root.buffers = [schema.BufferT()]
    return with_metadata(pack_model(root, 64), {SPLIT_METADATA_NAME: b"note"})


@given(st.integers(0, 2**32 - 1), st.integers(0, 400), st.integers(0, 64))
def test_metadata_of_a_damaged_model_is_read_without_a_crash(
    tiny: bytes, value: int, offset: int, cut: int
) -> None:
    from edgefl.data.split import SPLIT_METADATA_NAME
    from edgefl.program.plan.tflite import read_metadata

    assert read_metadata(tiny, SPLIT_METADATA_NAME) == b"note"
    model = bytearray(tiny[: len(tiny) - cut])
    struct.pack_into("<I", model, offset % (len(model) - 4), value)
    note = read_metadata(bytes(model), SPLIT_METADATA_NAME)
    assert note is None or len(note) < len(model)


@pytest.mark.parametrize(
    "note",
    [
        b"",
        b"[]",
        b"{",
        b'{"version":3}',
        b'{"version":1,"rule":"x_test","seed":1,"train":1,"test":1}',
        b'{"version":2,"rule":"time","seed":-1,"train":1,"test":1}',
        b"[" * 100_000,
        b'{"version":2,"rule":"drawn","seed":1,"train":1,"test":1}',
        b'{"version":2,"rule":["time"],"seed":1,"train":1,"test":1}',
        b'{"version":2,"rule":"time","seed":1,"train":1,"test":true}',
    ],
)
def test_invalid_split_record_is_ignored(note: bytes) -> None:
    from edgefl.data.split import decode_split

    assert decode_split(note) is None

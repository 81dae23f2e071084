"""The export reads the samples from every kind of source.

It does not run code merely because a file names it.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from devices.export import export_in_child
from edgefl.base.errors import StateError
from edgefl.data.sources import make_source
from edgefl.learning.checkpoint import encode_mixture
from edgefl.program.plan.spec import save_plan
from firmware_export.quantize.device_state import read_state


def run_edgefl(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edgefl", *map(str, arguments)]
    # Preserve the Python path of the test in every working directory
    path = os.pathsep.join(filter(None, (str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH"))))
    return subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, env={**os.environ, "PYTHONPATH": path}, check=False
    )


@pytest.fixture
def state(digits, tmp_path):
    """A function that writes a device's state directory for a source. The digits are a folder of classes."""
    shard = digits.shard
    x = np.concatenate([shard.x_train, shard.x_test])
    y = np.concatenate([shard.y_train, shard.y_test])
    for index, (values, label) in enumerate(zip(x, y, strict=True)):
        (tmp_path / "samples" / str(label)).mkdir(parents=True, exist_ok=True)
        np.save(tmp_path / "samples" / str(label) / f"{index:05}.npy", values)

    def make(source):
        home = tmp_path / "state"
        save_plan(digits.plan, home / "plan")
        (home / "mixture.safetensors").write_bytes(encode_mixture(digits.mixture))
        (home / "device.json").write_text(
            json.dumps({"id": "pi-1", "federation": "digits", "seed": 1, **source.to_json()})
        )
        return home

    return make


def test_folder_and_function_sources_give_the_same_export(state, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    home = state(make_source("samples"))
    done = run_edgefl("export", "--state", home, "-o", tmp_path / "one", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    done = run_edgefl(
        "infer", tmp_path / "one" / "model.tflite", "--data", "samples", "--reference", "--json", cwd=tmp_path
    )
    assert json.loads(done.stdout)["accuracy"] == report["accuracy_int8"]

    (tmp_path / "own_digits.py").write_text(
        "from edgefl.data.sources import make_source, read_source\n"
        "def load():\n    arrays = read_source(make_source('samples'))\n    return arrays['x'], arrays['y']\n"
    )
    source = make_source("own_digits:load")
    home = state(source)
    refused = run_edgefl("export", "--state", home, "-o", tmp_path / "two", cwd=tmp_path)
    assert refused.returncode == 1
    assert "allow it to run with --data own_digits:load" in refused.stderr
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")])
    )
    again = export_in_child(home, source)
    assert again["accuracy_int8"] == report["accuracy_int8"]
    assert (home / "model" / "model.tflite").read_bytes() == (tmp_path / "one" / "model.tflite").read_bytes()


def test_windows_are_rebuilt_from_the_stored_source(state, tmp_path) -> None:
    (tmp_path / "a.csv").write_text("t,ax,y\n" + "".join(f"{i},{i * 2},{i // 4 % 3}\n" for i in range(80)))
    home = state(make_source(str(tmp_path / "a.csv"), window=4, label="y", channels=("ax",)))
    shard = read_state(home).read_shard()
    assert (shard.x_train.shape, shard.x_test.shape) == ((14, 4, 1), (6, 4, 1))
    assert sorted(np.concatenate([shard.x_train, shard.x_test])[:, 0, 0].tolist()) == [
        8.0 * i for i in range(20)
    ]


def test_damaged_source_in_device_json_is_refused(state, tmp_path) -> None:
    home = state(make_source(str(tmp_path / "samples")))
    note = json.loads((home / "device.json").read_text())
    for source in (3, {"window": "4"}, {"unknown": 1}):
        (home / "device.json").write_text(json.dumps(note | {"source": source}))
        with pytest.raises(StateError, match="damaged"):
            read_state(home)


def test_csv_options_without_data_are_refused(state, tmp_path) -> None:
    done = run_edgefl(
        "export", "--state", state(make_source("samples")), "-o", tmp_path, "--window", "3", cwd=tmp_path
    )
    assert done.returncode == 2
    assert "which is missing" in done.stderr

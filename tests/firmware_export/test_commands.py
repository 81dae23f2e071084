"""`edgefl export` and `edgefl infer` as a user runs them.

The process does not import TensorFlow, and bad input gives no traceback.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edgefl.data.npz import save_shard
from edgefl.learning.checkpoint import encode_mixture
from edgefl.program.plan.spec import save_plan

CHECK = """
import sys
from edgefl.cli.main import cli
try:
    cli(standalone_mode=False)
finally:
    heavy = [m for m in ("tensorflow", "keras", "sklearn") if m in sys.modules]
    assert not heavy, heavy
"""
ROOT = Path(__file__).parents[2]


def run(
    *arguments: object, env: dict[str, str] | None = None, code: str = ""
) -> subprocess.CompletedProcess[str]:
    start = ["-c", code] if code else ["-m", "edgefl"]
    command = [sys.executable, *start, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env, check=False)


@pytest.fixture(scope="session")
def state(digits, tmp_path_factory) -> Path:
    """A device's state directory, with its shard."""
    home = tmp_path_factory.mktemp("device")
    save_plan(digits.plan, home / "plan")
    (home / "mixture.safetensors").write_bytes(encode_mixture(digits.mixture))
    save_shard(home / "shard.npz", digits.shard)
    note = {"data": str(home / "shard.npz"), "id": "pi-1", "federation": "digits", "seed": 1}
    (home / "device.json").write_text(json.dumps(note))
    return home


@pytest.fixture(scope="session")
def model(state, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("out")
    done = run("export", "--state", state, "-o", out, "--json", code=CHECK)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["within_one_point"]
    assert report["peak_rss_mb"] < 150
    assert report["tflite_bytes"] == (out / "model.tflite").stat().st_size
    return out / "model.tflite"


def test_export_and_infer_agree(model, state) -> None:
    report = json.loads((model.parent / "report.json").read_text())
    done = run("infer", model, "--data", state / "shard.npz", "--reference", "--json", code=CHECK)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["accuracy"] == report["accuracy_int8"]
    assert figures["samples"] == report["num_test"]
    assert figures["runtime"] == report["runtime"]
    assert 0 < figures["latency_ms_median"] <= figures["latency_ms_p90"]


def test_export_and_infer_print_readable_text(model, state, tmp_path) -> None:
    exported = run("export", "--state", state, "-o", tmp_path)
    assert exported.returncode == 0 and "int8" in exported.stdout and "recipe" in exported.stdout
    shown = run("infer", model.parent / "model_float.tflite", "--data", state / "shard.npz", "--split", "all")
    assert shown.returncode == 0 and "float32" in shown.stdout and "runtime ai-edge-litert" in shown.stdout


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_tuned_export_prints_its_control(state, tmp_path) -> None:
    pytest.importorskip("tensorflow_model_optimization")
    options = ("--route", "tensorflow", "--qat", "--tune-epochs", 1)
    done = run("export", "--state", state, "-o", tmp_path, *options)
    assert done.returncode == 0, done.stderr
    tuned, control = json.loads((tmp_path / "report.json").read_text())["tried"]
    assert (
        f"compared: quantization-aware training {tuned['accuracy_int8']:.4f}, "
        f"control: as many epochs in float {control['accuracy_int8']:.4f}"
    ) in done.stdout


def test_infer_runs_in_tflite_micro(model, state, micro_environment) -> None:
    done = run(
        "infer",
        model,
        "--data",
        state / "shard.npz",
        "--runtime",
        "tflite-micro",
        "--json",
        env=micro_environment,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["runtime"].startswith("tflite-micro ")
    assert figures["accuracy"] == pytest.approx(
        json.loads((model.parent / "report.json").read_text())["accuracy_int8"], abs=0.01
    )

    broken = model.parent / "half.tflite"
    broken.write_bytes(model.read_bytes()[:50_000])
    done = run(
        "infer", broken, "--data", state / "shard.npz", "--runtime", "tflite-micro", env=micro_environment
    )
    assert done.returncode == 1 and "rejects this model" in done.stderr


def assert_refused(done: subprocess.CompletedProcess[str], *texts: str) -> None:
    assert done.returncode == 1, done.stdout
    assert "Traceback" not in done.stderr
    assert all(text in done.stderr for text in texts), done.stderr


def test_infer_explains_errors(model, state, digits, tmp_path) -> None:
    data = state / "shard.npz"
    content = model.read_bytes()
    for number, (blob, text) in enumerate(
        ((content[:1000], "rejects"), (b"not a model at all", "TFL3"), (b"", "TFL3"))
    ):
        (tmp_path / f"{number}.tflite").write_bytes(blob)
        assert_refused(run("infer", tmp_path / f"{number}.tflite", "--data", data), text)
    assert_refused(run("infer", tmp_path / "none.tflite", "--data", data), "cannot read", "edgefl export")
    assert_refused(run("infer", state / "plan" / "plan.tflite", "--data", data), "expected one", "plan")
    assert_refused(run("infer", model, "--data", tmp_path / "none.npz"), "no shard")
    np.savez(tmp_path / "small.npz", x=np.random.default_rng(0).random((10, 8, 8)), y=np.arange(10))
    assert_refused(run("infer", model, "--data", tmp_path / "small.npz"), "(8, 8)", "(28, 28, 1)")


def test_export_explains_errors(state, tmp_path) -> None:
    assert_refused(run("export", "--state", tmp_path / "none", "-o", tmp_path), "no state directory")
    assert_refused(run("export", "--state", tmp_path, "-o", tmp_path), "not a device's state")
    (tmp_path / "device.json").write_text('{"data": 1}')
    assert_refused(run("export", "--state", tmp_path, "-o", tmp_path), "damaged")
    (tmp_path / "device.json").write_bytes((state / "device.json").read_bytes())
    assert_refused(run("export", "--state", tmp_path, "-o", tmp_path), "no mixture yet")
    (tmp_path / "mixture.safetensors").write_bytes(b"\0" * 40)
    assert_refused(run("export", "--state", tmp_path, "-o", tmp_path), "mixture.safetensors")
    (tmp_path / "mixture.safetensors").write_bytes((state / "mixture.safetensors").read_bytes())
    assert_refused(run("export", "--state", tmp_path, "-o", tmp_path), "no plan")
    (tmp_path / "file").write_text("")
    assert_refused(run("export", "--state", state, "-o", tmp_path / "file"), "cannot write")


@pytest.mark.parametrize("command", ["export", "infer"])
def test_help_has_an_example(command) -> None:
    done = run(command, "--help")
    assert done.returncode == 0 and f"Example: edgefl {command}" in done.stdout

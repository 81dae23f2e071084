"""Small runs of the benchmarks. Their results are in docs/results."""

import getpass
import json
import socket
import subprocess
import sys
from dataclasses import replace

import pytest
from click.testing import CliRunner

from edgefl.cli.bench import device
from edgefl.cli.commands.bench import bench
from edgefl.program.plan.spec import save_plan

pytest.importorskip("tensorflow", reason="the aggregator extra is not installed")


@pytest.mark.slow
def test_device_bench_reports_time_and_memory(monkeypatch):
    monkeypatch.setitem(
        device.BENCH_MODELS, "lenet5-b10", replace(device.BENCH_MODELS["lenet5-b10"], steps=3)
    )
    result = CliRunner().invoke(
        bench, ["device", "--repeats", "1", "--model", "lenet5-b10", "--json"], catch_exceptions=False
    )
    (row,) = json.loads(result.stdout)["rows"]
    assert row["litert_ms"] > 0 and row["keras_mb"] > row["litert_mb"] > 20
    assert row["predict_ms"] > 0 and row["predict_mb"] > 20 and row["plan_bytes"] > 10_000


@pytest.mark.slow
def test_device_bench_compares_a_micro_batch_with_a_whole_batch_of_keras(monkeypatch):
    model = replace(device.BENCH_MODELS["lenet5-b64-m8"], batch_size=8, micro_batch=2, steps=2)
    monkeypatch.setattr(device, "BENCH_MODELS", {"lenet5-b8-m2": model})
    (row,) = device.run_device_bench(("lenet5-b8-m2",), 1, lambda line: None)["rows"]
    assert (row["model"], row["batch_size"]) == ("lenet5-b8-m2", 8)
    assert row["litert_ms"] > 0 and row["keras_ms"] > 0


@pytest.mark.slow
def test_torch_trains_the_same_model(tmp_path):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    model = replace(device.BENCH_MODELS["lenet5-b10"], steps=2)
    plan = device.compile_bench_plan(model, tmp_path / "plan")
    figures = device.run_bench_step(["torch", str(plan), "2"])
    assert figures["ms"] > 0 and figures["mb"] > 100


ROW = {
    "model": "lenet5-b10",
    "batch_size": 10,
    "litert_ms": 1.5,
    "keras_ms": 2.0,
    "ratio": 0.75,
    "litert_mb": 67.0,
    "keras_mb": 774.0,
}


def render_rows(*rows):
    """Return the table of the benchmark without the line about the machine."""
    result = {"machine": "a machine", "versions": {}, "rows": list(rows)}
    return device.render_device_bench(result).splitlines()[1:]


def test_table_has_columns_for_each_installed_peer():
    header, line = render_rows(ROW)
    assert header == "model            batch  LiteRT ms   Keras ms  ratio  LiteRT MB   Keras MB"
    assert line == "lenet5-b10          10       1.50       2.00   0.75         67        774"
    header, line = render_rows({**ROW, "torch_ms": 3.0, "torch_ratio": 0.5, "torch_mb": 927.0})
    assert header.split("Keras ms")[1] == "  ratio PyTorch ms  ratio  LiteRT MB   Keras MB PyTorch MB"
    assert line.split("2.00")[1] == "   0.75       3.00   0.50         67        774        927"


BLOCK_TENSORFLOW = """
import sys
sys.modules["tensorflow"] = sys.modules["keras"] = None
from edgefl.cli.main import run_command
sys.exit(run_command(sys.argv[1:]))
"""


def run_without_tensorflow(*arguments, cwd):
    command = [sys.executable, "-c", BLOCK_TENSORFLOW, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


def test_board_measures_a_plan_without_tensorflow(tiny, tmp_path):
    """The file names the machine, versions and figures, and nothing of the owner."""
    save_plan(tiny[0], tmp_path / "secret-name" / "plan")
    done = run_without_tensorflow(
        "bench",
        "device",
        "--plan",
        tmp_path / "secret-name" / "plan",
        "--repeats",
        "1",
        "--out",
        "board.json",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "training step of" in done.stdout and "inference of one sample" in done.stdout
    text = (tmp_path / "board.json").read_text()
    result = json.loads(text)
    assert set(result) == {"machine", "memory_mb", "edgefl", "versions", "command", "rows"}
    (row,) = result["rows"]
    assert set(row) == {
        *("model", "algorithm", "input_shape", "parameters", "plan_bytes", "batch_size"),
        *("litert_ms", "litert_mb", "predict_ms", "predict_mb"),
    }
    assert min(row[key] for key in ("litert_ms", "litert_mb", "predict_ms", "predict_mb", "parameters")) > 0
    for private in ("secret-name", socket.gethostname(), getpass.getuser() + "@", str(tmp_path)):
        assert private not in text


def test_built_in_models_without_tensorflow_are_an_error_with_remedy(tmp_path):
    done = run_without_tensorflow("bench", "device", cwd=tmp_path)
    assert done.returncode == 1
    assert "need TensorFlow, which is not installed here; pass --plan" in done.stderr


@pytest.mark.slow
def test_wire_bench_compares_codecs_with_fp32(tmp_path):
    out = tmp_path / "wire"
    arguments = [
        "wire",
        "--codec",
        "int8",
        "--rounds",
        "2",
        "--seeds",
        "1",
        "--data",
        "digits",
        "--out",
        str(out),
        "--processes",
        "1",
    ]
    result = CliRunner().invoke(bench, arguments, catch_exceptions=False)
    rows = {row["codec"]: row for row in json.loads((out / "wire.json").read_text())["rows"]}
    assert rows["int8"]["bytes_of_fp32"] < 0.27
    assert rows["fp32"]["points_from_fp32"] == 0
    assert "int8" in result.stdout and "points from fp32" in result.stdout

"""The benchmarks run, small; what they measure stands in docs/results, not here."""

import json
import sys

import pytest
from click.testing import CliRunner

from edgefl.bench import device, simulate_scale, simulate_steps
from edgefl.cli.commands.bench import bench
from edgefl.errors import PlanError

pytest.importorskip("tensorflow", reason="the aggregator extra is not installed")


def test_every_peer_starts_at_the_same_loss_and_all_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(simulate_steps, "STEPS", 4)
    monkeypatch.setattr(simulate_steps, "EPOCHS", 1)
    monkeypatch.setattr(simulate_scale, "SPEED", {"clients": 2, "cohort": 2, "samples": 10, "rounds": 2})
    monkeypatch.setattr(simulate_scale, "MEMORY", {"cohort": 2, "samples": 10, "rounds": 2, "processes": 1})
    monkeypatch.setattr(simulate_scale, "FEW", 2)
    monkeypatch.setattr(simulate_scale, "MANY", 20)
    out = tmp_path / "bench.json"
    ran = CliRunner().invoke(bench, ["simulate", "--repeats", "1", "--out", str(out)], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    result = json.loads(out.read_text())
    peers = {name: row for name, row in result["steps"].items() if row}
    assert {"edgefl", "keras-fit", "tf-function"} <= set(peers)
    assert [row["time_over_ours"] for name, row in peers.items() if name == "edgefl"] == [1.0]
    assert (
        max(row["first_loss"] for row in peers.values()) - min(row["first_loss"] for row in peers.values())
        < 1e-3
    )
    assert result["scaling"]["steps_per_second_2"] > 0 and result["memory"]["few_mb"] > 30
    for told in (*peers, "client steps/s", "peak memory", result["machine"]):
        assert told in ran.stdout


def test_peers_that_differ_are_an_error(monkeypatch, tmp_path):
    losses = iter([2.3, 2.4, 2.3])
    monkeypatch.setattr(
        simulate_steps,
        "run_process",
        lambda command: {"ms": [1.0], "cpu_ms": [1.0], "loss": next(losses), "version": "one 1"},
    )
    with pytest.raises(PlanError, match="they train on different things"):
        simulate_steps.measure_steps(tmp_path, 1, None, lambda line: None)


def test_a_python_without_torch_is_an_error_with_a_remedy(tmp_path):
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    bare.chmod(0o755)
    for given in (bare, tmp_path / "nothing"):
        with pytest.raises(PlanError, match="cannot import torch and numpy; give --torch-python"):
            simulate_steps.find_torch(str(given))


def test_device_bench(monkeypatch):
    monkeypatch.setitem(device.MODELS, "lenet5-b10", ("lenet5", (28, 28, 1), 10, 3))
    ran = CliRunner().invoke(
        bench, ["device", "--repeats", "1", "--model", "lenet5-b10", "--json"], catch_exceptions=False
    )
    (row,) = json.loads(ran.stdout)["rows"]
    assert row["litert_ms"] > 0 and row["keras_mb"] > row["litert_mb"] > 20


def test_wire_bench(tmp_path):
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
    ran = CliRunner().invoke(bench, arguments, catch_exceptions=False)
    rows = {row["codec"]: row for row in json.loads((out / "wire.json").read_text())["rows"]}
    assert rows["int8"]["bytes_of_fp32"] < 0.27
    assert rows["fp32"]["points_from_fp32"] == 0
    assert "int8" in ran.stdout and "points from fp32" in ran.stdout

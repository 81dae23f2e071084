"""A small run of the simulate benchmark. Its real measurements are in docs/results."""

import json
import sys

import pytest
from click.testing import CliRunner

from edgefl.base.errors import PlanError
from tests.benchmarks.__main__ import benchmarks
from tests.benchmarks.simulate import scale, steps

pytest.importorskip("tensorflow", reason="the aggregator extra is not installed")


@pytest.mark.slow
def test_all_peers_start_at_the_same_loss_and_are_reported(monkeypatch, tmp_path):
    monkeypatch.setattr(steps, "STEPS", 4)
    monkeypatch.setattr(steps, "EPOCHS", 1)
    monkeypatch.setattr(scale, "SPEED", {"clients": 2, "cohort": 2, "samples": 10, "rounds": 2})
    monkeypatch.setattr(scale, "MEMORY", {"cohort": 2, "samples": 10, "rounds": 2, "processes": 1})
    monkeypatch.setattr(scale, "FEW", 2)
    monkeypatch.setattr(scale, "MANY", 20)
    out = tmp_path / "bench.json"
    ran = CliRunner().invoke(
        benchmarks, ["simulate", "--repeats", "1", "--out", str(out)], catch_exceptions=False
    )
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
    for text in (*peers, "client steps/s", "peak memory", result["machine"]):
        assert text in ran.stdout


def test_peers_with_different_losses_are_an_error(monkeypatch, tmp_path):
    losses = iter([2.3, 2.4, 2.3])
    monkeypatch.setattr(
        steps,
        "run_process",
        lambda command: {"ms": [1.0], "cpu_ms": [1.0], "loss": next(losses), "version": "one 1"},
    )
    with pytest.raises(PlanError, match="they train on different things"):
        steps.measure_steps(tmp_path, 1, None, lambda line: None)


def test_a_python_without_torch_is_an_error_with_a_remedy(tmp_path):
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    bare.chmod(0o755)
    for python in (bare, tmp_path / "nothing"):
        with pytest.raises(PlanError, match="cannot import torch and numpy; give --torch-python"):
            steps.find_torch(str(python))

"""A simulation that diverges with the rate of its range test starts again with the algorithm's own rate."""

import json
from pathlib import Path

import pytest

from edgefl.cli.main import run_command as edgefl
from edgefl.program.plan.measured_values import with_learning_rate
from edgefl.program.plan.spec import load_plan, save_plan


def raise_rate(out, rate):
    """Change the plan of a run as a range test does that chose this rate."""
    plan = Path(out) / "plan"
    save_plan(with_learning_rate(load_plan(plan), rate), plan)


def expect_little(monkeypatch):
    """Let three rounds no better than round 1 be enough at any accuracy. With a rate of .3 the losses of the
    rounds 2 to 4 are about twice the loss of round 1.
    """
    monkeypatch.setattr("edgefl.protocol.server.divergence.ROUNDS_WITHOUT_EFFECT", 3)
    monkeypatch.setattr("edgefl.protocol.server.divergence.ACCURACY_SHARE", 1.0)


def read_outcome(out):
    rounds = [json.loads(line) for line in (Path(out) / "rounds.jsonl").read_text().splitlines()]
    return [record["loss"] for record in rounds], (Path(out) / "server_state.safetensors").read_bytes()


def test_rate_is_taken_back_and_the_results_are_those_of_the_lower_rate(prepare, capfd):
    settings = {"algorithm": "fedavg", "rounds": 5, "federation": "range_test = true"}
    config, expected = prepare("expected", **settings)
    _, raised = prepare("raised", **settings)
    raise_rate(raised, 1e4)
    assert edgefl(["simulate", config, "--out", expected, "--resume"]) == 0
    assert "starts again" not in capfd.readouterr().err
    assert edgefl(["simulate", config, "--out", raised, "--resume"]) == 0
    assert "the range test chose learning_rate = 10000, and" in capfd.readouterr().err
    assert read_outcome(raised) == read_outcome(expected)
    assert json.loads((Path(raised) / "summary.json").read_text())["learning_rate"] == 0.01


@pytest.mark.parametrize("tables", ["", "[fleet]\n"], ids=["plain", "fleet"])
def test_rate_without_effect_is_taken_back(prepare, capfd, monkeypatch, tables):
    expect_little(monkeypatch)
    settings = {"algorithm": "fedavg", "rounds": 4, "federation": "range_test = true", "tables": tables}
    config, out = prepare(**settings)
    raise_rate(out, 0.3)
    assert edgefl(["simulate", config, "--out", out, "--resume"]) == 0
    error = capfd.readouterr().err
    assert "no effect until round 4: the median losses of the last 3 rounds are not below" in error
    assert "the range test chose learning_rate = 0.3, and the federation starts again with 0.01" in error
    assert json.loads((Path(out) / "summary.json").read_text())["learning_rate"] == 0.01


def test_finished_run_without_effect_takes_further_rounds(prepare, capfd, monkeypatch):
    """It is not stopped, because its result would be lost if it started again."""
    expect_little(monkeypatch)
    config, out = prepare(algorithm="fedavg", rounds=4, federation="range_test = true")
    raise_rate(out, 0.3)
    (Path(out) / "summary.json").write_text("{}")
    assert edgefl(["simulate", config, "--out", out, "--resume"]) == 0
    assert "starts again" not in capfd.readouterr().err
    assert json.loads((Path(out) / "summary.json").read_text())["learning_rate"] == 0.3


def test_finished_run_is_not_removed_when_further_rounds_diverge(prepare, capfd):
    config, out = prepare(algorithm="fedavg", rounds=5, federation="range_test = true")
    raise_rate(out, 1e4)
    (Path(out) / "summary.json").write_text("{}")  # a result, to which the owner added rounds
    assert edgefl(["simulate", config, "--out", out, "--resume"]) == 1
    assert "training diverged" in capfd.readouterr().err
    assert len((Path(out) / "rounds.jsonl").read_text().splitlines()) == 4


@pytest.mark.slow
def test_rate_that_the_owner_set_ends_the_run(prepare, capfd):
    config, out = prepare(algorithm="fedavg", rounds=5, learning_rate=1e38)
    assert edgefl(["simulate", config, "--out", out, "--resume"]) == 1
    assert "the loss is nan" in capfd.readouterr().err

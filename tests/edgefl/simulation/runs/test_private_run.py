"""`edgefl simulate` with `[privacy]`: an interrupted run reports the same epsilon as an uninterrupted one."""

import json
from dataclasses import replace

import pytest

from edgefl.base.config import load_config
from edgefl.cli.main import run_command as edgefl
from edgefl.learning.privacy.accountant import compute_epsilon
from edgefl.simulation.runs.directory import RunDirectory
from edgefl.simulation.runs.pipeline import open_partitioned_dataset, play_run

PRIVACY = {"[privacy]\nclip": 1.0, "noise_multiplier": 1.5, "population": 6, "delta": 1e-4}


@pytest.fixture(autouse=True)
def _require_dp_accounting():
    pytest.importorskip("dp_accounting", reason="the extra dp is not installed")


def test_resumed_private_run_spends_the_same_epsilon(prepare, capfd, tmp_path):
    config, whole = prepare("whole", algorithm="fedavg", rounds=8, clients=6, **PRIVACY)
    _, halved = prepare("halved", algorithm="fedavg", rounds=8, clients=6, **PRIVACY)
    assert edgefl(["simulate", config, "--out", whole, "--resume", "--processes", "2"]) == 0
    out = capfd.readouterr().out
    settings = load_config(tmp_path / "whole.toml")
    with open_partitioned_dataset(settings) as shared:  # stands for the interrupted run
        part = replace(settings, rounds=3)
        play_run(RunDirectory(tmp_path / "halved", part, "a test", resume=True), part, shared)
    assert edgefl(["simulate", config, "--out", halved, "--resume"]) == 0
    summaries = [json.loads((tmp_path / name / "summary.json").read_text()) for name in ("whole", "halved")]
    assert summaries[0]["privacy"] == summaries[1]["privacy"]
    assert summaries[0]["privacy"]["epsilon"] == compute_epsilon(0.5, 1.5, 8, 1e-4)
    assert summaries[0]["privacy"]["holds_against"] == "those who do not know the seed"
    assert f"privacy: epsilon {summaries[0]['privacy']['epsilon']:.3f} at delta 0.0001 a client" in out
    states = [(tmp_path / name / "server_state.safetensors").read_bytes() for name in ("whole", "halved")]
    assert states[0] == states[1]


def test_unsupported_private_algorithm_is_refused_before_the_run_starts(prepare, capfd, tmp_path):
    config, _ = prepare(algorithm="clustered", clients=6, **PRIVACY)
    assert edgefl(["simulate", config, "--out", str(tmp_path / "new")]) == 1
    assert "[privacy] does not work with clustered" in capfd.readouterr().err
    assert not (tmp_path / "new").exists()


def test_missing_accountant_error_names_the_package_to_install(prepare, capfd, tmp_path, monkeypatch):
    config, _ = prepare(algorithm="fedavg", clients=6, **PRIVACY)
    for name in ("dp_accounting", "dp_accounting.pld"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    assert edgefl(["simulate", config, "--out", str(tmp_path / "new")]) == 1
    assert "pip install -e '.[dp]'" in capfd.readouterr().err

"""Each experiment at smoke scale, from the command line to the report, on real data."""

import json
from pathlib import Path

import pytest

from edgefl.cli.main import run_command
from edgefl.reproduce import EXPERIMENTS, load_experiment

DATA = {"fedmix-cifar10": "cifar10", "outcomes": "mnist-writers"}


def is_dataset_available(data: str) -> bool:
    from edgefl.data import load_dataset
    from edgefl.errors import DataError

    try:
        load_dataset(data)
    except DataError:
        return False
    return True


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_smoke_scale_experiment_runs_from_data_to_report(name, tmp_path, capsys, monkeypatch):
    pytest.importorskip("tensorflow", reason="the aggregator extra is not installed")
    data = DATA.get(name, "fashion-mnist")
    if data == "fashion-mnist" and not Path("/usr/share/datasets/fashion-mnist").exists():
        pytest.skip("dataset-fashion-mnist is not installed")
    if data != "fashion-mnist" and not is_dataset_available(data):
        pytest.skip(f"no {data} in EDGEFL_DATA")
    out = tmp_path / name
    assert run_command(["reproduce", name, "--smoke", "--out", str(out), "--processes", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report == json.loads((out / "report.json").read_text())
    assert report["figures"]
    for figure in report["figures"]:
        assert len(figure["measured"]) == 1
        assert figure["mean"] is not None, figure
    stages = load_experiment(name).stages("smoke", 1)
    for stage in stages:
        summary = json.loads((out / f"{stage.name}-{stage.config.seed}" / "summary.json").read_text())
        if name == "fedmix-cifar10":  # three server steps are too few for accuracy, but the loss falls
            lines = (out / f"{stage.name}-{stage.config.seed}" / "rounds.jsonl").read_text().splitlines()
            assert json.loads(lines[-1])["loss"] < json.loads(lines[0])["loss"]
        elif name == "outcomes":
            assert summary["figures"]["accuracy_shipped"]["mean"] > 0.5
            assert all(0.5 < row["accuracy_shipped_int8"] <= 1 for row in summary["clients"])
        else:
            assert (
                summary["figures"]["accuracy_mixture"]["mean"] > 0.1
            )  # better than guessing among ten classes
    before = (out / f"{stages[0].name}-{stages[0].config.seed}" / "summary.json").stat().st_mtime_ns
    assert run_command(["reproduce", name, "--smoke", "--out", str(out), "--processes", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["figures"] == report["figures"]
    assert (out / f"{stages[0].name}-{stages[0].config.seed}" / "summary.json").stat().st_mtime_ns == before

"""`edgefl simulate --log`: TensorBoard and MLflow show the figures of rounds.jsonl and summary.json."""

import json
from pathlib import Path

import pytest

from edgefl.cli.main import run_command as edgefl


def test_tensorboard_and_mlflow_logs_match_the_run_files(prepare, tmp_path, capfd):
    pytest.importorskip("tensorboardX")
    pytest.importorskip("mlflow")
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    from mlflow.tracking import MlflowClient

    config, out = prepare(rounds=3)
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    logs = ["--log", f"tensorboard:{tmp_path / 'tb'}", "--log", f"mlflow:{uri}"]
    assert edgefl(["simulate", config, "--out", out, "--resume", *logs, "--json"]) == 0, (
        capfd.readouterr().err
    )
    summary = json.loads(capfd.readouterr().out)
    rounds = [json.loads(line) for line in (Path(out) / "rounds.jsonl").read_text().splitlines()]

    events = accumulator.EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    for name in ("loss", "bytes_up", "bytes_down", "seconds"):
        logged = [(each.step, each.value) for each in events.Scalars(f"round/{name}")]
        # Event files hold float32
        assert logged == [(each["round"], pytest.approx(each[name], rel=1e-6)) for each in rounds]
    mixture = summary["figures"]["accuracy_mixture"]
    assert [(e.step, e.value) for e in events.Scalars("end/accuracy_mixture/p10")] == [
        (3, pytest.approx(mixture["p10"], rel=1e-6))
    ]

    client = MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("small").experiment_id])
    assert (run.info.status, run.data.params["algorithm"]) == ("FINISHED", "ditto")
    assert [each.value for each in client.get_metric_history(run.info.run_id, "round/loss")] == [
        each["loss"] for each in rounds
    ]
    assert run.data.metrics["end/accuracy_mixture/mean"] == mixture["mean"]
    assert run.data.tags["edgefl.verdict"] == summary["verdict"]["sentence"]
    means = {name: mean for name, mean in summary["verdict"]["means"].items() if mean is not None}
    assert means
    assert {name: run.data.metrics[f"verdict/{name}"] for name in means} == means
    (shipped,) = events.Scalars("verdict/shipped")
    assert (shipped.step, shipped.value) == (3, pytest.approx(means["shipped"]))


def test_unknown_log_type_is_refused_before_the_run_starts(tmp_path, capfd):
    (tmp_path / "f.toml").write_text("")
    assert (
        edgefl(["simulate", str(tmp_path / "f.toml"), "--out", str(tmp_path / "run"), "--log", "wandb:x"])
        == 1
    )
    assert "expected tensorboard:DIR or mlflow:URI" in capfd.readouterr().err
    assert not (tmp_path / "run").exists()

"""TensorBoard and MLflow logs: scalars computed by hand, and logs read back with the tools' own readers."""

import math
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.base.errors import ConfigError
from edgefl.base.round_scalars import extract_figure_scalars, extract_round_scalars, extract_verdict_scalars
from edgefl.base.verdict import as_dict, judge_federation
from edgefl.watch.loggers import check_log, open_logs

SUMMARY = {
    "round": 2,
    "phase": "federate",
    "updates": 3,
    "loss": 0.5,
    "accuracy_mean": math.nan,
    "accuracy_p10": None,
    "accuracy_p90": 0.75,
    "bytes_up": 700,
    "bytes_down": 1900,
    "seconds": 1.25,
    "dropped": ["pi-2"],
    "ts": 1.7e9,
}

DEVICE = {
    "accuracy_local": 0.5,
    "accuracy_federated": 0.25,
    "accuracy_shipped": 0.75,
    "accuracy_shipped_int8": 0.75,
    "test_gained": 10.0,
    "test_lost": 0.0,
}
OTHER_DEVICE = {**DEVICE, "accuracy_local": 0.75, "test_gained": 0.0}
VERDICT = as_dict(judge_federation([{"id": "pi-1", **DEVICE}, {"id": "pi-2", **OTHER_DEVICE}]))
VERDICT_SCALARS = {
    "verdict/local": 0.625,
    "verdict/federated": 0.25,
    "verdict/shipped": 0.75,
    "verdict/int8": 0.75,
    "verdict/better": 1.0,
    "verdict/as_good": 1.0,
    "verdict/worse": 0.0,
    "verdict/gain_points": 12.5,
}


def open_log(log_option, **changes):
    return open_logs(
        [log_option],
        "kitchen",
        **{"key": "one", "resumed": False, "about": {"algorithm": "fedavg"}, **changes},
    )


def test_round_scalars_match_hand_calculation():
    scalars = {
        "loss": 0.5,
        "updates": 3.0,
        "dropped": 1.0,
        "seconds": 1.25,
        "bytes_up": 700.0,
        "bytes_down": 1900.0,
        "accuracy_p90": 0.75,
    }
    assert extract_round_scalars(SUMMARY) == {f"round/{name}": value for name, value in scalars.items()}
    updates = {
        "a": {"num_samples": 10.0, "loss": 2.0, "accuracy": 0.5},
        "b": {"num_samples": 30.0, "loss": 1.0, "accuracy": 0.9, "x": math.nan},
    }
    record = {
        "round": 1,
        "phase": "federate",
        "loss": 1.25,
        "seconds": 0.5,
        "bytes_up": 8,
        "bytes_down": 9,
        "updates": updates,
    }
    scalars = {
        "round/loss": 1.25,
        "round/seconds": 0.5,
        "round/bytes_up": 8.0,
        "round/bytes_down": 9.0,
        "round/updates": 2.0,
    }
    assert extract_round_scalars(record) == scalars | {"clients/accuracy": pytest.approx(0.8)}
    accuracy = {"accuracy_mean": 0.8, "accuracy_p10": 0.6, "accuracy_p90": 0.9}
    assert {f"round/{name}": value for name, value in accuracy.items()}.items() <= extract_round_scalars(
        SUMMARY | accuracy
    ).items()
    personalized = extract_round_scalars(SUMMARY | accuracy | {"phase": "personalize"})
    assert {name: value for name, value in personalized.items() if "accuracy" in name} == {
        "end/accuracy_shipped/mean": 0.8,
        "end/accuracy_shipped/p10": 0.6,
        "end/accuracy_shipped/p90": 0.9,
    }, "another model on other samples is no point of the same curve"
    metrics = {"auc_mean": 0.5, "auc_p10": 0.25, "accuracy_mean": 0.7, "mae_mean": math.nan}
    scalars = extract_round_scalars(SUMMARY | accuracy | {"metrics": metrics})
    assert (scalars["round/auc_mean"], scalars["round/auc_p10"], scalars["round/accuracy_mean"]) == (
        0.5,
        0.25,
        0.8,
    )
    assert not [name for name in scalars if "mae" in name]
    scalars = extract_round_scalars(SUMMARY | {"phase": "personalize", "metrics": metrics})
    assert (scalars["end/auc/mean"], scalars["end/auc/p10"], scalars["end/accuracy/mean"]) == (0.5, 0.25, 0.7)
    r2 = {"r2_mean": 0.8, "r2_p10": 0.6, "r2_p90": 0.9}
    scalars = extract_round_scalars(SUMMARY | accuracy | {"metrics": r2})
    assert {name: scalars[name] for name in scalars if "r2" in name} == {
        f"round/{name}": value for name, value in r2.items()
    }
    ended = SUMMARY | accuracy | {"phase": "personalize", "metrics": {"auc_shipped_mean": 0.8}}
    scalars |= extract_round_scalars(ended)
    assert scalars["end/auc_shipped/mean"] == 0.8
    assert not [name for name in scalars if "accuracy" in name], "no accuracy of another task"
    spread = {"mean": 0.9, "weighted": 0.8, "std": 0.1, "p10": None, "count": 4}
    assert extract_figure_scalars({"accuracy_mixture": spread}) == {
        "end/accuracy_mixture/mean": 0.9,
        "end/accuracy_mixture/std": 0.1,
    }


def test_verdict_scalars_match_hand_calculation():
    assert extract_verdict_scalars(VERDICT) == VERDICT_SCALARS
    row_without_local = {"id": "pi-1", "accuracy_shipped": 0.5}
    assert extract_verdict_scalars(as_dict(judge_federation([row_without_local]))) == {"verdict/shipped": 0.5}
    assert extract_verdict_scalars(as_dict(judge_federation([]))) == {}


@given(
    st.dictionaries(st.sampled_from(sorted(SUMMARY)), st.floats() | st.none() | st.integers(-(2**40), 2**40))
)
def test_round_scalars_contain_only_finite_numbers(changed):
    record = {
        **SUMMARY,
        **{name: value for name, value in changed.items() if name not in ("dropped", "updates")},
    }
    assert all(
        isinstance(value, float) and math.isfinite(value) for value in extract_round_scalars(record).values()
    )


@pytest.mark.parametrize("log_option", ["wandb:x", "tensorboard", "tensorboard:", "mlflow", ""])
def test_unknown_log_option_is_refused(log_option):
    with pytest.raises(ConfigError, match="expected tensorboard:DIR or mlflow:URI"):
        check_log(log_option)
    assert check_log("mlflow:http://h:5000") == ("mlflow", "http://h:5000")


def read_events(directory):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(directory))
    events.Reload()
    return {
        tag: [(point.step, point.value) for point in events.Scalars(tag)] for tag in events.Tags()["scalars"]
    }


def test_tensorboard_reads_the_logged_scalars(tmp_path):
    pytest.importorskip("tensorboardX")
    pytest.importorskip("tensorboard")
    with open_log(f"tensorboard:{tmp_path / 'tb'}") as log:
        log(1, {"round/loss": 0.5, "round/updates": 3.0})
        deadline = time.monotonic() + 60
        while read_events(tmp_path / "tb").keys() != {"round/loss", "round/updates"}:  # before it is closed
            assert time.monotonic() < deadline
        log(2, {"round/loss": 0.25})
    with open_log(f"tensorboard:{tmp_path / 'tb'}", resumed=True) as log:
        log(3, {"round/loss": 0.125})
    assert read_events(tmp_path / "tb") == {
        "round/loss": [(1, 0.5), (2, 0.25), (3, 0.125)],
        "round/updates": [(1, 3.0)],
    }


def test_tensorboard_shows_a_verdict(tmp_path):
    pytest.importorskip("tensorboardX")
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with open_log(f"tensorboard:{tmp_path / 'tb'}") as log:
        log.write_verdict(3, VERDICT)
    assert read_events(tmp_path / "tb") == {
        name: [(3, value)] for name, value in sorted(VERDICT_SCALARS.items())
    }
    events = event_accumulator.EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    (event,) = events.Tensors("edgefl.verdict/text_summary")
    assert event.tensor_proto.string_val[0].decode() == VERDICT["sentence"]


def test_loggers_do_not_import_tensorflow(tmp_path):
    pytest.importorskip("tensorboardX")
    pytest.importorskip("mlflow")
    code = """
import sys
from edgefl.watch.loggers import open_logs
with open_logs(sys.argv[1:], "f", key="k", resumed=False, about={}) as log:
    log(1, {"x": 1.0})
assert not {"tensorflow", "keras", "torch"} & sys.modules.keys()
"""
    logs = [f"tensorboard:{tmp_path / 'tb'}", f"mlflow:sqlite:///{tmp_path / 'm.db'}"]
    completed = subprocess.run(
        [sys.executable, "-c", code, *logs], capture_output=True, text=True, timeout=200
    )
    assert completed.returncode == 0, completed.stderr


def read_runs(uri, name="kitchen"):
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    runs = client.search_runs([client.get_experiment_by_name(name).experiment_id], order_by=["start_time"])
    return [
        (
            run,
            {
                key: [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, key)]
                for key in run.data.metrics
            },
        )
        for run in runs
    ]


def test_mlflow_reads_the_logged_scalars_and_resumes_a_run(tmp_path):
    pytest.importorskip("mlflow")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    with pytest.raises(RuntimeError, match="killed"), open_log(f"mlflow:{uri}", key="a'b") as log:
        log(1, {"round/loss": 0.5})
        raise RuntimeError("killed")
    assert read_runs(uri)[0][0].info.status == "FAILED"
    with open_log(f"mlflow:{uri}", key="a'b", resumed=True) as log:
        log(2, {"round/loss": 0.25})
    # No earlier run has this key
    with open_log(f"mlflow:{uri}", key="another", resumed=True) as log:
        log(7, {"round/loss": 0.125})
    (first, first_metrics), (second, second_metrics) = read_runs(uri)
    assert (first.info.status, second.info.status) == ("FINISHED", "FINISHED")
    assert first_metrics == {"round/loss": [(1, 0.5), (2, 0.25)]}
    assert second_metrics == {"round/loss": [(7, 0.125)]}
    assert first.data.params == {"algorithm": "fedavg"}


@pytest.mark.slow
def test_mlflow_shows_a_rewritten_verdict_once(tmp_path):
    pytest.importorskip("mlflow")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    for resumed in (False, True):
        with open_log(f"mlflow:{uri}", resumed=resumed) as log:
            log.write_verdict(3, VERDICT)
    ((run, metrics),) = read_runs(uri)
    assert {name: set(points) for name, points in metrics.items()} == {
        name: {(3, value)} for name, value in VERDICT_SCALARS.items()
    }
    assert run.data.tags["edgefl.verdict"] == VERDICT["sentence"]


def test_unreachable_log_destination_is_an_error(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with (
        pytest.raises(ConfigError, match="check that the server runs"),
        open_log("mlflow:http://127.0.0.1:9"),
    ):
        pass
    with (
        pytest.raises(ConfigError, match="give a writable directory"),
        open_log(f"tensorboard:{Path(__file__)}/x"),
    ):
        pass

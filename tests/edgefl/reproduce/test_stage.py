"""Stages on a few digits: late clients, an interruption, and the measured seconds and bytes."""

import json
from collections import Counter

import pytest

from edgefl.config import DataConfig, FederationConfig, ModelConfig, PartitionConfig
from edgefl.reproduce.stage import ExperimentStage, StageRunner
from edgefl.reproduce.timed_engine import TimedEngine, read_seconds
from edgefl.simulation import simulate
from edgefl.system.progress import Progress

ROUNDS = 2
CLIENTS = [f"client-{i}" for i in range(4)]
CONFIG = FederationConfig(
    name="stage",
    seed=3,
    rounds=ROUNDS,
    algorithm="ditto",
    options={"epochs": 1},
    model=ModelConfig("softmax", (28, 28, 1)),
    data=DataConfig("digits", num_train=120, num_test=40),
    partition=PartitionConfig("iid", len(CLIENTS)),
)


@pytest.fixture
def calls(monkeypatch):
    """Count the calls of the two client functions."""
    pytest.importorskip("keras", reason="the aggregator extra is not installed")
    counter = Counter()

    def count_calls(function):
        def call(federation, item):
            counter[function.__name__, item.client_id] += 1
            return function(federation, item)

        return call

    for function in (simulate.train_client, simulate.personalize_client):
        monkeypatch.setattr(simulate, function.__name__, count_calls(function))
    return counter


def play_stage(out, stage):
    with Progress() as progress, StageRunner(out, "a test", 1, progress) as stages:
        return stages.play(stage, "a test")


def test_late_clients_are_personalized_once_and_take_part_in_no_round(calls, tmp_path):
    result = play_stage(tmp_path, ExperimentStage("late", CONFIG, num_late=1))
    *early, late = sorted(row["id"] for row in result["clients"])
    assert len(early) == 3
    assert calls == {
        **{("train_client", client_id): ROUNDS for client_id in early},
        **{("personalize_client", client_id): 1 for client_id in (*early, late)},
    }
    assert result["late"] == [late]
    assert all(sorted(record["updates"]) == early for record in result["records"])


def test_interrupted_stage_continues_and_finished_stage_is_reloaded(calls, tmp_path, monkeypatch):
    stage = ExperimentStage("whole", CONFIG)
    counting_function = simulate.personalize_client

    def interrupt(federation, item):
        if calls["personalize_client", item.client_id] or len(calls) == len(CLIENTS) + 2:
            raise KeyboardInterrupt
        return counting_function(federation, item)

    monkeypatch.setattr(simulate, "personalize_client", interrupt)
    with pytest.raises(KeyboardInterrupt):
        play_stage(tmp_path, stage)
    assert sorted(calls.values()) == [1, 1, *[ROUNDS] * len(CLIENTS)]
    calls.clear()
    monkeypatch.setattr(simulate, "personalize_client", counting_function)
    result = play_stage(tmp_path, stage)
    assert {name for name, _ in calls} == {"personalize_client"}
    assert set(calls.values()) == {1}
    calls.clear()
    again = play_stage(tmp_path, stage)
    assert not calls
    assert json.dumps(again, sort_keys=True) == json.dumps(result, sort_keys=True)
    whole = play_stage(tmp_path / "other", stage)
    assert whole["figures"] == result["figures"]

    seconds = read_seconds(tmp_path / "whole-3" / "client_seconds.jsonl")
    totals = []
    for row in result["clients"]:
        times = seconds[row["id"]]
        assert sorted(times) == [1, 2, 3]
        assert row["round_seconds"] == pytest.approx(times[1] + times[2])
        assert row["personalization_seconds"] == times[3] > 0
        totals.append(sum(times.values()))
    assert result["device_seconds"] == pytest.approx(sum(totals) / len(totals), abs=0.01)
    in_rounds = sum(record["bytes_down"] for record in result["records"])
    assert result["bytes_down"] - in_rounds > len(CLIENTS) * 4 * 784 * 10, (
        "the last broadcast contains a model"
    )


def test_missing_time_measurements_are_omitted(calls, tmp_path):
    """A stage that an older version started has no times for its rounds."""
    stage = ExperimentStage("whole", CONFIG)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulate, "personalize_client", lambda federation, item: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            play_stage(tmp_path, stage)
    (tmp_path / "whole-3" / "client_seconds.jsonl").unlink()
    result = play_stage(tmp_path, stage)
    assert result["device_seconds"] is None
    assert all(row["round_seconds"] is None for row in result["clients"])


def test_last_recorded_time_of_a_round_is_used(tmp_path):
    path = tmp_path / "seconds"
    path.write_text('["a", 1, 0.5]\n["a", 2, 7]\n["b", 1, 2]\n["a", 2, 0.25]\n["a", 3')
    assert read_seconds(path) == {"a": {1: 0.5, 2: 0.25}, "b": {1: 2}}
    assert read_seconds(tmp_path / "missing") == {}


def test_the_engine_times_only_the_clients(tmp_path):
    """The engine measures the processor time of clients, but not the time between them."""
    from time import process_time
    from types import SimpleNamespace

    from edgefl.client.runner import WorkItem
    from edgefl.types import Broadcast, ClientState

    def use_cpu(seconds):
        until = process_time() + seconds
        while process_time() < until:
            pass

    federation = SimpleNamespace(runner=SimpleNamespace(learner=None))

    class DirectEngine:
        def run(self, function, items):
            for item in items:
                use_cpu(0.2)
                yield function(federation, item)

    items = [WorkItem(Broadcast(4, "federate", {}), ClientState(), name) for name in ("a", "b")]
    engine = TimedEngine(DirectEngine(), tmp_path / "seconds")
    assert list(engine.run(lambda federation, item: use_cpu(0.05) or item.client_id, items)) == ["a", "b"]
    seconds = read_seconds(tmp_path / "seconds")
    assert [0.05 <= seconds[name][4] < 0.15 for name in ("a", "b")] == [True, True]

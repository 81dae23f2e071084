"""Stages on a few digits: late clients, an interruption, and the measured seconds and bytes."""

import errno
import json
import os
import shutil
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file as st_load

from edgefl.base.config import MIXTURE_ONLY, DataConfig, FederationConfig, ModelConfig, PartitionConfig
from edgefl.base.errors import ConfigError, DataError, StateError
from edgefl.base.system.progress import Progress
from edgefl.lab.reproduce.stage import ExperimentStage, LockedError, StageRunner
from edgefl.lab.reproduce.timed_engine import TimedEngine, read_seconds
from edgefl.learning.checkpoint import decode_server_state
from edgefl.simulation import simulate

ROUNDS = 2
CLIENTS = [f"client-{i}" for i in range(4)]
CONFIG = FederationConfig(
    name="stage",
    seed=3,
    rounds=ROUNDS,
    algorithm="ditto",
    options={"epochs": 1},
    model=ModelConfig(name="softmax", input_shape=(28, 28, 1)),
    data=DataConfig(name="digits", num_train=120, num_test=40),
    partition=PartitionConfig(name="iid", num_clients=len(CLIENTS)),
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

    for function in (simulate.train_unless_diverged, simulate.personalize_client):
        monkeypatch.setattr(simulate, function.__name__, count_calls(function))
    return counter


def play_stage(out, stage):
    with Progress() as progress, StageRunner(out, "a test", 1, progress) as stages:
        return stages.play(stage, "a test")


@pytest.mark.slow
def test_late_clients_are_personalized_once_and_take_part_in_no_round(calls, tmp_path):
    result = play_stage(tmp_path, ExperimentStage(name="late", config=CONFIG, num_late=1))
    *early, late = sorted(row["id"] for row in result["clients"])
    assert len(early) == 3
    assert calls == {
        **{("train_unless_diverged", client_id): ROUNDS for client_id in early},
        **{("personalize_client", client_id): 1 for client_id in (*early, late)},
    }
    assert result["late"] == [late]
    assert all(sorted(record["updates"]) == early for record in result["records"])


def test_interrupted_stage_continues_and_finished_stage_is_reloaded(calls, tmp_path, monkeypatch):
    stage = ExperimentStage(name="whole", config=CONFIG)
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


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        (ExperimentStage(name="whole", config=replace(CONFIG, rounds=ROUNDS + 1)), "rounds"),
        (ExperimentStage(name="whole", config=CONFIG, num_late=1), "num_late"),
    ],
)
def test_finished_stage_of_other_settings_is_refused(calls, tmp_path, changed, name):
    play_stage(tmp_path, ExperimentStage(name="whole", config=CONFIG))
    with pytest.raises(ConfigError, match=rf"whole-3 contains a run with {name} = .*remove it"):
        play_stage(tmp_path, changed)


def test_stage_that_ran_with_another_default_is_refused(calls, tmp_path):
    stage = ExperimentStage(name="whole", config=CONFIG)
    play_stage(tmp_path, stage)
    path = tmp_path / "whole-3" / "stage.json"
    settings = json.loads(path.read_text())
    assert settings["default weight_decay"] == 0.0
    path.write_text(json.dumps(settings | {"default weight_decay": 0.1}))
    with pytest.raises(ConfigError, match=r"contains a run with default weight_decay = 0\.1, expected 0\.0;"):
        play_stage(tmp_path, stage)


def test_stage_of_an_older_version_is_read_if_its_rounds_match(calls, tmp_path):
    stage = ExperimentStage(name="whole", config=CONFIG)
    result = play_stage(tmp_path, stage)
    (tmp_path / "whole-3" / "stage.json").unlink()
    assert play_stage(tmp_path, stage)["figures"] == result["figures"]
    (tmp_path / "whole-3" / "stage.json").unlink()
    with pytest.raises(ConfigError, match="rounds"):
        play_stage(tmp_path, ExperimentStage(name="whole", config=replace(CONFIG, rounds=ROUNDS + 1)))


def test_second_runner_of_a_directory_is_refused_until_the_first_ends(tmp_path):
    with Progress() as progress:
        with (
            StageRunner(tmp_path, "a test", 1, progress),
            pytest.raises(LockedError, match="another process has"),
            StageRunner(tmp_path, "a test", 1, progress),
        ):
            pass
        with StageRunner(tmp_path, "a test", 1, progress):
            pass


def test_file_system_without_locks_is_named(tmp_path, monkeypatch):
    def refuse(descriptor, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("edgefl.lab.reproduce.stage.fcntl.flock", refuse)
    with Progress() as progress, pytest.raises(StateError, match="--out") as error:
        StageRunner(tmp_path, "a test", 1, progress).__enter__()
    assert not isinstance(error.value, LockedError)
    assert os.strerror(errno.ENOLCK) in str(error.value)


@pytest.mark.slow
def test_stage_refuses_a_start_that_was_played_again(calls, tmp_path):
    first, second = (
        ExperimentStage(name="first", config=CONFIG),
        ExperimentStage(name="second", config=CONFIG, after="first"),
    )
    with Progress() as progress:
        with StageRunner(tmp_path, "a test", 1, progress) as runner:
            runner.play_all([first, second], "a test")
        shutil.rmtree(tmp_path / "first-3")
        other = replace(first, config=replace(CONFIG, options={"epochs": 2}))
        with (
            StageRunner(tmp_path, "a test", 1, progress) as runner,
            pytest.raises(ConfigError, match=r"second-3 .* start_sha256"),
        ):
            runner.play_all([other, second], "a test")


@pytest.mark.slow
def test_stage_starts_from_the_states_after_the_rounds(calls, tmp_path):
    """A late client of FedPer trains its head in the personalization. A second stage trains it again, also
    if it follows in the same process.
    """
    config = replace(CONFIG, algorithm="fedper", model=ModelConfig(name="lenet5", input_shape=(28, 28, 1)))
    longer = replace(config, options={"epochs": 4})
    stages = [
        ExperimentStage(name="first", config=config, num_late=1),
        ExperimentStage(name="second", config=longer, after="first"),
    ]
    accuracies = []
    for _ in range(2):
        with Progress() as progress, StageRunner(tmp_path, "a test", 1, progress) as runner:
            result = runner.play_all(stages, "a test")["second"]
        accuracies.append([row["accuracy_mixture"] for row in result["clients"]])
        shutil.rmtree(tmp_path / "second-3")
    assert accuracies[0] == accuracies[1]


def test_runners_of_different_seeds_share_a_directory(tmp_path):
    with Progress() as progress, StageRunner(tmp_path, "a test", 1, progress, seed=1):
        with StageRunner(tmp_path, "a test", 1, progress, seed=2):
            pass
        with pytest.raises(LockedError, match="lock-1"), StageRunner(tmp_path, "a test", 1, progress, seed=1):
            pass


def test_missing_time_measurements_are_omitted(calls, tmp_path):
    """A stage that an older version started has no times for its rounds."""
    stage = ExperimentStage(name="whole", config=CONFIG)
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


def test_time_after_a_cut_line_is_kept(tmp_path):
    path = tmp_path / "seconds"
    path.write_text('["a", 1, 0.5]\n["a", 2')
    with TimedEngine(nullcontext(), path), path.open("a") as file:
        file.write('["a", 2, 0.25]\n')
    assert read_seconds(path) == {"a": {1: 0.5, 2: 0.25}}


def test_the_engine_times_only_the_clients(tmp_path):
    """The engine measures the processor time of clients, but not the time between them."""
    from time import process_time
    from types import SimpleNamespace

    from edgefl.base.types import Broadcast, ClientState
    from edgefl.learning.client.runner import WorkItem

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

    items = [
        WorkItem(
            broadcast=Broadcast(round=4, phase="federate", models={}), state=ClientState(), client_id=name
        )
        for name in ("a", "b")
    ]
    engine = TimedEngine(DirectEngine(), tmp_path / "seconds")
    assert list(engine.run(lambda federation, item: use_cpu(0.05) or item.client_id, items)) == ["a", "b"]
    seconds = read_seconds(tmp_path / "seconds")
    assert [0.05 <= seconds[name][4] < 0.15 for name in ("a", "b")] == [True, True]


@pytest.mark.slow
def test_pooled_stage_has_one_client_with_all_samples(calls, tmp_path):
    config = replace(CONFIG, algorithm="local", personalization=MIXTURE_ONLY)
    result = play_stage(tmp_path, ExperimentStage(name="pooled", config=config, pooled=True))
    assert [(row["n_train"], row["n_test"]) for row in result["clients"]] == [(120, 40)]


def test_rotated_clients_cannot_be_pooled(calls, tmp_path):
    config = replace(CONFIG, partition=PartitionConfig(name="rotation", num_clients=4, options={"angles": 2}))
    with pytest.raises(DataError, match="client-000 rotates"):
        play_stage(tmp_path, ExperimentStage(name="pooled", config=config, pooled=True))


@pytest.mark.slow
def test_stage_starts_from_the_weights_of_an_earlier_one_where_they_fit(calls, tmp_path):
    """The trained stage has ten classes. The next one has nine, so that only hidden layers fit."""
    model = ModelConfig(name="mlp", input_shape=(28, 28, 1), num_classes=10, options={"hidden": 4})
    trained = ExperimentStage(name="trained", config=replace(CONFIG, algorithm="fedavg", model=model))
    data = replace(CONFIG.data, options={"classes": list(range(9))})
    few = replace(trained.config, model=replace(model, num_classes=9), data=data, seed=4)
    started = ExperimentStage(name="started", config=few, weights_from="trained")
    fresh = ExperimentStage(name="fresh", config=few)
    with Progress() as progress, StageRunner(tmp_path, "a test", 1, progress) as runner:
        for stage in (trained, started, fresh):
            runner.play(stage, "a test")
    models = decode_server_state((tmp_path / "trained-3" / "server_state.safetensors").read_bytes()).models
    first, drawn = (
        st_load(tmp_path / f"{name}-4" / "plan" / "initial.safetensors") for name in ("started", "fresh")
    )
    assert first.keys() == drawn.keys()
    fitting = [name for name in drawn if drawn[name].shape == models["global"][name].shape]
    assert 0 < len(fitting) < len(drawn)
    for name in drawn:
        expected = models["global"][name] if name in fitting else drawn[name]
        np.testing.assert_array_equal(first[name], expected)


@pytest.mark.slow
def test_stage_refuses_weights_that_do_not_fit(calls, tmp_path):
    trained = ExperimentStage(name="trained", config=replace(CONFIG, algorithm="fedavg"))
    other = replace(
        trained.config,
        model=ModelConfig(name="mlp", input_shape=(28, 28, 1), num_classes=10, options={"hidden": 4}),
    )
    started = ExperimentStage(name="started", config=other, weights_from="trained")
    with Progress() as progress, StageRunner(tmp_path, "a test", 1, progress) as runner:
        runner.play(trained, "a test")
        with pytest.raises(ConfigError, match=r"no weight of .*trained-3 fits .*started-3.*weights_from"):
            runner.play(started, "a test")


@pytest.mark.slow
def test_layers_and_evaluations_are_measured(calls, tmp_path):
    partition = PartitionConfig(
        name="tasks", num_clients=4, options={"num_tasks": 4, "clusters": 2, "samples": 4, "test_samples": 2}
    )
    model = ModelConfig(name="mlp", input_shape=(28, 28, 1), num_classes=10, options={"hidden": 4})
    data = DataConfig(name="digits")
    config = replace(CONFIG, algorithm="fedavg", model=model, data=data, partition=partition)
    result = play_stage(
        tmp_path, ExperimentStage(name="layers", config=config, layers_over=2, evaluate_every=1)
    )
    assert set(result["layer_gaps"]) == {"dense", "dense_relative", "dense_between"}, (
        "an mlp has no other layers"
    )
    assert set(result["layer_gaps"]["dense"]) == {"1", "2"}
    assert all(len(record["measured"]["clients"]) == 4 for record in result["records"])

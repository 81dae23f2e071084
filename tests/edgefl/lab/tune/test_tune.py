"""A whole search with tiny budgets on digits: results, files, and continuation."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgefl.base.config import load_config, parse_config, with_simulated_clients
from edgefl.base.errors import ConfigError, DataError, DivergedError, EdgeflError
from edgefl.cli.commands.tune import format_trials, tune
from edgefl.data import load_data
from edgefl.data.partitions.registry import make_client_partitions
from edgefl.lab.tune.directory import TuneResult
from edgefl.lab.tune.plans import apply_options, describe_structure
from edgefl.lab.tune.space import with_options
from edgefl.lab.tune.stages import TUNE_STAGES
from edgefl.lab.tune.trial import Trial, run_trial
from edgefl.lab.tune.validation import make_validation_shards, with_iid_partition
from edgefl.learning.checkpoint import encode_server_state
from edgefl.simulation.simulate import simulate

CONFIG = """
[federation]
name = "tiny"
seed = 2
rounds = 2
clients_per_round = 3

[model]
name = "softmax"
input_shape = [28, 28, 1]

[data]
name = "digits"
num_train = 120
num_test = 40

[partition]
name = "dirichlet"
num_clients = 4

[algorithm]
name = "aem"
num_experts = 2
epochs = 1
learning_rate = 0.001
local_epochs = 2
gate_epochs = 2
"""


@pytest.fixture
def config_file(tmp_path):
    (tmp_path / "federation.toml").write_text(CONFIG)
    return tmp_path / "federation.toml"


@pytest.fixture
def run(capfd):
    """Run the command; return what it printed on standard output and on standard error."""

    def call(*arguments):
        capfd.readouterr()
        tune.main([str(argument) for argument in arguments], standalone_mode=False)
        return capfd.readouterr()

    return call


@pytest.fixture
def local_ray(monkeypatch):
    """Start one local Ray for all searches of a test, which would otherwise each start one."""
    pytest.importorskip("ray", reason="the ray extra is not installed")
    from edgefl.simulation.engines.ray_session import open_ray_session

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with open_ray_session(1):
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
def test_search_runs_four_stages_once_and_writes_the_federation(run, config_file, tmp_path):
    pytest.importorskip("keras", reason="the aggregator extra is not installed")
    out = tmp_path / "tuned"
    first = json.loads(run("--stages", "1,2", "--samples", 2, "--out", out, "--json", config_file).out)
    done = {path.name: path.read_bytes() for path in out.glob("?-*.json")}
    assert sorted(done) == ["1-cluster.json", "2-local.json"]
    whole = run("--samples", 2, "--out", out, "--json", config_file)
    result = json.loads(whole.out)
    assert result["stages"][:2] == first["stages"]
    assert whole.err.count(": already complete") == 2
    assert whole.err.count("2 of 2 trials are complete") == 2
    assert all((out / name).read_bytes() == content for name, content in done.items())

    best = {}
    for stage, each in zip(TUNE_STAGES, result["stages"], strict=True):
        assert (each["stage"], each["name"], each["given"]) == (stage.number, stage.name, best)
        assert [trial["trial"] for trial in each["trials"]] == [0, 1]
        assert each["trials"][0]["options"] == {}, "the first is the configuration as it is"
        ended = [trial for trial in each["trials"] if trial["ended"] == "full"]
        assert each["score"] == max(trial["score"] for trial in ended)
        assert each["best"] in [trial["options"] for trial in ended]
        best |= each["best"]
    written = load_config(Path(result["federation"]))
    assert written == with_options(load_config(config_file), best)
    assert written.partition.name == "dirichlet", "the search is IID, the federation is not"

    with pytest.raises(ConfigError, match="contains a search of another configuration"):
        run("--samples", 2, "--out", out, "--seed", 9, config_file)
    (out / "1-cluster.json").write_text(json.dumps({**result["stages"][0], "best": {"epochs": 5}}))
    with pytest.raises(
        ConfigError,
        match=r"stage 2 in .* was searched with other options of the earlier stages; remove its file",
    ):
        run("--stages", "2", "--samples", 2, "--out", out, config_file)


@pytest.fixture
def build_fitting_plan():
    pytest.importorskip("keras", reason="the aggregator extra is not installed")
    from edgefl.learning.algorithms.plans import build_plan

    return lambda config: apply_options(build_plan(with_simulated_clients(config)), config)


@pytest.fixture
def config_and_shards():
    config = with_iid_partition(parse_config(CONFIG))
    dataset = load_data(config.data, config.seed)
    return config, make_validation_shards(
        dataset, make_client_partitions(dataset, config.partition, config.seed), config.seed
    )


@pytest.mark.slow
def test_shared_plan_trains_like_a_separately_built_plan(build_fitting_plan, config_and_shards):
    """The structure omits only the options that are inputs of the compiled functions."""
    config, shards = config_and_shards
    other = with_options(
        config,
        {
            "learning_rate": 0.05,
            "epochs": 2,
            "local_learning_rate": 0.003,
            "local_weight_decay": 0.05,
            "local_epochs": 1,
            "gate_learning_rate": 0.02,
            "gate_weight_decay": 0.001,
            "gate_epochs": 3,
            "epsilon": 0.8,
        },
    )
    assert describe_structure(config) == describe_structure(other)
    for change in (
        {"weight_decay": 0.01},
        {"num_experts": 3},
        {"batch_size": 5},
        {"gate": "features"},
        {"model.x": 1},
    ):
        assert describe_structure(with_options(config, change)) != describe_structure(config)
    ends = []
    for plan, initial in (apply_options(build_fitting_plan(config), other), build_fitting_plan(other)):
        ends.append(simulate(plan, initial, shards, other))
    assert encode_server_state(ends[0].state) == encode_server_state(ends[1].state)
    assert ends[0].metrics == ends[1].metrics


@pytest.mark.slow
def test_trial_reports_the_scores_of_the_simulation(build_fitting_plan, config_and_shards):
    config, shards = config_and_shards
    for stage in TUNE_STAGES:
        stage_config = stage.configure(config)
        plan, initial = build_fitting_plan(stage_config)
        reports = []
        run_trial(
            Trial(stage=stage, config=stage_config, plan=plan, initial=initial, shards=shards),
            lambda step, score, reports=reports: reports.append((step, score)),
        )
        assert [step for step, _ in reports] == ([1, 2] if stage.by_round else [1, 3, 4])
        if stage.federates:
            end = simulate(plan, initial, shards, stage_config)
            scores = [each[stage.metric] for each in end.metrics.values()]
            assert reports[-1][1] == pytest.approx(np.mean(scores))
            if not stage.by_round:
                assert reports[0][1] == scores[0]


def test_diverging_trial_is_an_error(build_fitting_plan, config_and_shards):
    config, shards = config_and_shards
    stage_config = TUNE_STAGES[0].configure(with_options(config, {"learning_rate": 1e38}))
    plan, initial = build_fitting_plan(stage_config)
    with pytest.raises(DivergedError, match="round 1"):
        run_trial(
            Trial(stage=TUNE_STAGES[0], config=stage_config, plan=plan, initial=initial, shards=shards),
            lambda step, score: None,
        )


@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
def test_only_divergence_counts_as_diverged(build_fitting_plan, config_and_shards):
    """Any other error of a trial, here a shard with NaN, reaches the user with its text."""
    from edgefl.lab.tune.search import TRIAL_DIVERGED, TrialCandidate, run_trials

    config, shards = config_and_shards
    stage = TUNE_STAGES[0]
    stage_config = stage.configure(with_options(config, {"learning_rate": 1e38}))
    candidates = [TrialCandidate({}, stage_config, build_fitting_plan(stage_config))]

    def run(shards):
        return run_trials(stage, candidates, shards, None, processes=1, asha=False, on_trial=lambda: None)

    (outcome,) = run(shards)
    assert (outcome.ended, outcome.score) == (TRIAL_DIVERGED, 0.0)
    images = np.full(shards.dataset.x_train.shape, np.nan, np.float32)
    damaged = replace(shards, dataset=replace(shards.dataset, x_train=images))
    with pytest.raises(EdgeflError, match=r"a trial of stage 1 \(cluster\) failed: .*NaN .*clean the shard"):
        run(damaged)


def test_invalid_search_arguments_are_refused(run, config_file, tmp_path):
    pytest.importorskip("ray", reason="the ray extra is not installed")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is in use, expected a new or empty directory"):
        run("--out", tmp_path / "used", config_file)
    config_file.write_text(
        CONFIG.replace('"aem"', '"ifca"').replace("local_epochs = 2\ngate_epochs = 2\n", "")
    )
    with pytest.raises(ConfigError, match="the algorithm is 'ifca', expected 'aem'"):
        run("--out", tmp_path / "new", config_file)
    with pytest.raises(ConfigError, match="expected all, or numbers"):
        run("--out", tmp_path / "new", "--stages", "gate", config_file)
    assert not (tmp_path / "new").exists()


def test_table_marks_the_best_trial():
    trials = [
        {"trial": 0, "options": {}, "score": 0.5, "step": 9, "seconds": 1.0, "ended": "full"},
        {"trial": 1, "options": {"epsilon": 0.2}, "score": 0.75, "step": 9, "seconds": 2.0, "ended": "full"},
        {
            "trial": 2,
            "options": {"epsilon": 0.9},
            "score": 0.875,
            "step": 1,
            "seconds": 0.25,
            "ended": "stopped",
        },
    ]
    assert format_trials(
        TuneResult(stage=4, name="exploration", given={}, best={"epsilon": 0.2}, score=0.75, trials=trials), 9
    ).splitlines() == [
        "trial   epsilon  score  steps    s    ended",
        "0      as given  50.00    9/9  1.0     full",
        "1 *         0.2  75.00    9/9  2.0     full",
        "2           0.9  87.50    1/9  0.2  stopped",
    ]


def test_best_complete_trial_is_chosen():
    pytest.importorskip("ray", reason="the ray extra is not installed")
    from edgefl.lab.tune.search import TRIAL_DIVERGED, TRIAL_FULL, TRIAL_STOPPED, TrialOutcome, choose_best

    def outcome(trial, score, ended=TRIAL_FULL):
        return TrialOutcome(
            trial=trial, options={"epsilon": trial / 10}, score=score, step=4, seconds=1.0, ended=ended
        )

    outcomes = [
        outcome(0, 0.5),
        outcome(1, 0.9, TRIAL_STOPPED),
        outcome(2, 0.7),
        outcome(3, 0.7),
        outcome(4, 0.0, TRIAL_DIVERGED),
    ]
    assert choose_best(TUNE_STAGES[3], outcomes).trial == 2, "the first of the best that came to their end"
    with pytest.raises(DataError, match=r"no trial of stage 4 \(exploration\) ran to its end"):
        choose_best(TUNE_STAGES[3], [replace(each, ended=TRIAL_DIVERGED) for each in outcomes])

"""Each experiment at smoke scale, from the command line to the report, on real data."""

import json
from dataclasses import fields
from pathlib import Path

import pytest

from edgefl.base.errors import DivergedError
from edgefl.base.system.progress import Progress
from edgefl.cli.commands import reproduce as command
from edgefl.cli.main import run_command
from edgefl.lab.reproduce.experiment import list_sources, load_experiments, make_stages, parse_experiment
from edgefl.lab.reproduce.outcomes import SMOKE_ALGORITHMS
from edgefl.lab.reproduce.results import write_result
from edgefl.lab.reproduce.stage import ExperimentStage, StageRunner
from edgefl.program.plan.spec import INITIAL_FILE, load_plan
from edgefl.protocol.server.initial_weights import decode_initial_weights
from tests.edgefl.lab.reproduce.test_results import make_seed_result


def list_parts(experiment):
    """Return the algorithms of the stages, each with the measurements of its stage."""
    names = [f.name for f in fields(ExperimentStage) if f.name not in ("name", "config")]
    return {
        (stage.config.algorithm, tuple(bool(getattr(stage, name)) for name in names))
        for stage in make_stages(experiment, "smoke", 1)
    }


FAST = {"aem.rotated-cifar10"}
"""Experiments that take about ten seconds. Those of most other papers take half a minute or more."""


def choose_smoke_experiments():
    """Return the fast experiments, and as slow tests those with stages of another kind."""
    chosen, seen = [], set()
    for experiment in load_experiments():
        if experiment.name in FAST:
            chosen.append(experiment)
        elif "smoke" in experiment.scales and not list_parts(experiment) <= seen:
            chosen.append(pytest.param(experiment, marks=pytest.mark.slow))
        else:
            continue
        seen |= list_parts(experiment)
    return chosen


def skip_without_data(*names):
    pytest.importorskip("tensorflow", reason="the aggregator extra is not installed")
    from edgefl.base.errors import DataError
    from edgefl.data import load_dataset

    for name in names:
        try:
            load_dataset(name)
        except DataError as error:
            pytest.skip(str(error))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("experiment", choose_smoke_experiments(), ids=lambda experiment: experiment.name)
def test_smoke_scale_runs_from_data_to_report(experiment, tmp_path, capsys):
    stages = make_stages(experiment, "smoke", 1)
    skip_without_data(*{stage.config.data.name for stage in stages})
    out = tmp_path / "out"
    typed = ["reproduce", experiment.paper, "--table", experiment.table, "--smoke", "--processes", "1"]
    assert run_command([*typed, "--out", str(out), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report == json.loads((out / "report.json").read_text())
    assert {figure["name"] for figure in report["figures"]} == list_sources(experiment, "smoke", 1).keys()
    assert report["verdicts"]
    never = {row.name for row in experiment.rows if row.value == "exact_round"}  # two rounds are too few
    for figure in report["figures"]:
        assert figure["mean"] is not None or figure["name"] in never, figure
    for stage in stages:
        summary = json.loads((out / f"{stage.name}-1" / "summary.json").read_text())
        rounds = out / f"{stage.name}-1" / "rounds.jsonl"
        lines = [] if stage.after else rounds.read_text().splitlines()
        losses = [json.loads(line)["loss"] for line in lines]
        if stage.config.algorithm != "local" and len(losses) > 1:
            assert losses[-1] < losses[0], stage.name
        assert 0 <= summary["figures"]["accuracy_mixture"]["mean"] <= 1
    assert (out / "results" / f"{experiment.name}.smoke.1.json").exists()
    before = (out / f"{stages[0].name}-1" / "summary.json").stat().st_mtime_ns
    assert run_command([*typed, "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert all(figure["name"] in shown for figure in report["figures"])
    assert "1 seed, 5 needed" in shown
    assert (out / f"{stages[0].name}-1" / "summary.json").stat().st_mtime_ns == before


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_outcomes_run_at_smoke_scale(tmp_path, capsys):
    skip_without_data("mnist-writers")
    typed = ["reproduce", "outcomes", "--smoke", "--out", str(tmp_path), "--processes", "1"]
    assert run_command([*typed, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["figures"]
    paths = list(tmp_path.glob("*/summary.json"))
    assert len(paths) == len(SMOKE_ALGORITHMS)
    for path in paths:
        summary = json.loads(path.read_text())
        assert summary["figures"]["accuracy_shipped"]["mean"] > 0.5
        assert all(0.5 < row["accuracy_shipped_int8"] <= 1 for row in summary["clients"])
    assert run_command(typed) == 0
    shown = capsys.readouterr().out
    for part in ("points above local", "shipped above local, seed 1", report["note"]["machine"], "keras "):
        assert part in shown


TINY = """
title = "tiny"
item = "table 0"
order = 1
[config]
federation = { rounds = 1 }
model = { name = "softmax", input_shape = [28, 28, 1] }
data = { name = "digits" }
partition = { name = "dirichlet", num_clients = 2 }
algorithm = { name = "fedavg" }
[stages.a]
[scales.reduced]
seeds = 2
[rows]
"A" = { stage = "a" }
[claims."A is above chance"]
row = "A"
at_least = 10
paper = "50"
"""


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """Return the only experiment that the command finds. It has two planned seeds."""
    pytest.importorskip("tensorflow", reason="the aggregator extra is not installed")
    experiment = parse_experiment("aem.tiny", TINY)
    monkeypatch.setattr("edgefl.lab.reproduce.experiment.load_experiments", lambda: (experiment,))
    monkeypatch.chdir(tmp_path)
    return experiment


@pytest.mark.slow
def test_next_runs_the_first_missing_seed_until_none_is_left(tiny, tmp_path, capsys):
    results = tmp_path / "results"
    write_result(results, make_seed_result(1, {"A": 50.0}, tiny, "reduced"))
    typed = ["reproduce", "--next", "--results", str(results), "--processes", "1"]
    assert run_command(typed) == 0
    captured = capsys.readouterr()
    assert "aem.tiny --reduced, seed 2" in captured.err
    assert "A is above chance" in captured.out
    stored = json.loads((results / "aem.tiny.reduced.2.json").read_text())
    assert stored["rows"]["A"] > 10
    assert stored["core_hours"] >= 0
    report = json.loads((tmp_path / "runs/reproduce/aem.tiny-reduced/report.json").read_text())
    assert report["seeds"] == [1, 2]
    assert run_command(typed) == 0
    assert f"all planned seeds have a result in {results}\n" in capsys.readouterr().out
    assert run_command([*typed, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {}
    assert sorted(path.name for path in results.iterdir()) == [
        "aem.tiny.reduced.1.json",
        "aem.tiny.reduced.2.json",
    ]


@pytest.mark.slow
def test_next_gives_each_experiment_a_directory_in_out(tiny, tmp_path):
    """Stages of different experiments may have the same name."""
    typed = ["reproduce", "--next", "--out", "mine", "--results", "results", "--processes", "1"]
    assert run_command(typed) == 0
    assert (tmp_path / "mine/aem.tiny-reduced/a-1/summary.json").exists()


@pytest.mark.slow
def test_stages_start_from_the_weights_of_a_model_file(tiny, tmp_path, capsys, monkeypatch):
    """The planned result is not replaced, and a directory is not continued with another file."""
    import keras

    layers = [keras.Input((28, 28, 1)), keras.layers.Flatten(), keras.layers.Dense(10, name="own")]
    model = keras.Sequential(layers)
    model.save(tmp_path / "own.keras")
    typed = ["reproduce", "aem", "--model", "own.keras", "--processes", "1"]
    assert run_command(typed) == 0
    assert "own.keras in place of any model" in capsys.readouterr().out
    out = tmp_path / "runs/reproduce/aem.tiny-reduced-own"
    assert [path.name for path in (out / "results").iterdir()] == ["aem.tiny.reduced.1.json"]
    assert not (tmp_path / "runs/reproduce/results").exists()
    plan = load_plan(out / "a-1/plan")
    initial = decode_initial_weights((out / "a-1/plan" / INITIAL_FILE).read_bytes(), plan.spec, "")
    for name, value in zip(("own/kernel", "own/bias"), model.get_weights(), strict=True):
        assert initial[name].tobytes() == value.tobytes()
    model.set_weights([2 * value for value in model.get_weights()])
    model.save(tmp_path / "own.keras")
    capsys.readouterr()
    assert run_command(typed) == 1
    assert "contains a run with model_sha256 = " in capsys.readouterr().err


@pytest.mark.slow
def test_refused_model_file_can_be_replaced(tiny, tmp_path, capsys):
    import keras

    typed = ["reproduce", "aem", "--model", "own.keras", "--processes", "1"]
    (tmp_path / "own.keras").write_text("no model")
    assert run_command(typed) == 1
    assert "it is not a zip archive" in capsys.readouterr().err
    model = keras.Sequential([keras.Input((28, 28, 1)), keras.layers.Flatten(), keras.layers.Dense(10)])
    model.save(tmp_path / "own.keras")
    assert run_command(typed) == 0


@pytest.mark.slow
def test_model_file_that_changes_during_the_run_leaves_no_result(tiny, tmp_path, capsys, monkeypatch):
    import keras

    model = keras.Sequential([keras.Input((28, 28, 1)), keras.layers.Flatten(), keras.layers.Dense(10)])
    model.save(tmp_path / "own.keras")
    play_all = StageRunner.play_all

    def play_and_save(*args):
        results = play_all(*args)
        model.set_weights([2 * value for value in model.get_weights()])
        model.save(tmp_path / "own.keras")
        return results

    monkeypatch.setattr(StageRunner, "play_all", play_and_save)
    assert run_command(["reproduce", "aem", "--model", "own.keras", "--processes", "1"]) == 1
    assert "own.keras was changed while the stages ran; remove" in capsys.readouterr().err
    assert not list((tmp_path / "runs/reproduce/aem.tiny-reduced-own/results").iterdir())


def test_next_skips_a_seed_that_diverges(tiny, tmp_path, capsys, monkeypatch):
    play_seed = command.play_seed

    def diverge(experiment, scale, seed, runner, results):
        if seed == 1:
            raise DivergedError("the loss of round 1 is not finite")
        return play_seed(experiment, scale, seed, runner, results)

    monkeypatch.setattr(command, "play_seed", diverge)
    typed = ["reproduce", "--next", "--results", "results", "--processes", "1"]
    assert run_command(typed) == 0
    assert "skipped: the loss of round 1 is not finite" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["aem.tiny.reduced.2.json"]
    assert run_command(typed) == 0
    assert capsys.readouterr().out.endswith("except 1 that diverged\n")


def test_list_ends_with_core_hours_and_verdicts(tiny, tmp_path, capsys):
    """Two of two planned seeds have .5 core-hours each. Five seeds give a verdict."""
    for seed in (1, 2):
        write_result(tmp_path / "two", make_seed_result(seed, {"A": 50.0}, tiny, "reduced"))
    for seed in range(1, 6):
        write_result(tmp_path / "five", make_seed_result(seed, {"A": 50.0 + seed}, tiny, "reduced"))
    for results, last in (
        ("two", "together: 1.0 core-hours; claims: 1 undecided"),
        ("five", "together: 2.5 core-hours; claims: 1 reproduced"),
    ):
        assert run_command(["reproduce", "--list", "--results", results]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == last


def test_ctrl_c_says_how_to_continue(tiny, capsys, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "play_seed", interrupt)
    assert run_command(["reproduce", "--next", "--results", "results", "--processes", "1"]) == 130
    assert "stopped; the same command continues\n" in capsys.readouterr().err


def test_next_skips_seeds_that_other_processes_run(tiny, tmp_path, capsys):
    results = tmp_path / "results"
    typed = ["reproduce", "--next", "--results", str(results), "--processes", "1"]
    with (
        Progress() as progress,
        StageRunner(Path("runs/reproduce/aem.tiny-reduced"), "", 1, progress, seed=1),
    ):
        assert run_command(typed) == 0
        assert [path.name for path in results.iterdir()] == ["aem.tiny.reduced.2.json"]
        capsys.readouterr()
        assert run_command(typed) == 0
    captured = capsys.readouterr()
    assert "lock-1" in captured.err
    assert captured.out.endswith("except 1 that other processes run\n")


def test_list_names_every_table_and_its_verdicts(tmp_path, capsys):
    assert run_command(["reproduce", "--list", "--results", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    for experiment in load_experiments():
        assert f"{experiment.paper} --table {experiment.table}" in shown
        assert experiment.item in shown
        for claim in experiment.claims:
            assert claim.text in shown
    hours = sum(scale.seeds * scale.core_hours for e in load_experiments() for scale in e.scales.values())
    last = shown.splitlines()[-1]
    assert last.startswith(f"together: 0.0 of {hours:.1f} core-hours; claims: ")
    claims = sum(len(e.claims) * len(e.planned_scales) for e in load_experiments())
    assert f"{claims} not run" in last
    assert run_command(["reproduce", "fedap", "--list", "--json", "--results", str(tmp_path)]) == 0
    entries = json.loads(capsys.readouterr().out)
    assert {entry["experiment"].split(".")[0] for entry in entries} == {"fedap"}


@pytest.mark.parametrize(
    ("typed", "parts"),
    [
        (["reproduce"], ("--list", "clustered")),
        (["reproduce", "clustered", "--half"], ("--half", "--full")),
        (["reproduce", "clustered", "--table", "table-7"], ("'table-7'", "figure-6-2-tasks")),
        (["reproduce", "outcomes", "--full"], ("--full", "--reduced")),
        (["reproduce", "outcomes", "--next"], ("--next", "outcomes")),
        (["reproduce", "--list", "--next"], ("--list", "--next")),
        (["reproduce", "--next", "--full"], ("--next", "--full")),
        (["reproduce", "fedmix", "--smoke", "--full"], ("--smoke and --full", "pass only one")),
        (["reproduce", "--list", "--seeds", "2"], ("--list", "--seeds")),
        (["reproduce", "--next", "--algorithm", "fedavg"], ("--algorithm", "outcomes")),
        (["reproduce", "aem", "--list", "--table", "figure-9"], ("'figure-9'", "table-2")),
        (["reproduce", "outcomes", "--model", __file__], ("--model", "outcomes")),
        (["reproduce", "aem", "--model", __file__], (__file__, ".keras", "save the model")),
        (
            ["reproduce", "aem", "--model", __file__, "--results", "here"],
            ("--results is here", "leave --results"),
        ),
        (["reproduce", "aem", "--smoke", "--results", "here"], ("--smoke writes", "leave --results")),
        (["reproduce", "outcomes", "--results", "here"], ("outcomes has no", "leave --results")),
    ],
)
def test_impossible_experiment_is_refused_at_the_start(typed, parts, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_command(typed) != 0
    err = capsys.readouterr().err
    for part in parts:
        assert part in err
    assert list(Path(tmp_path).iterdir()) == []

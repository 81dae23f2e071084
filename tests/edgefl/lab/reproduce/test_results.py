"""Result files: round trip, out-of-date and damaged files, and the queue of missing seeds."""

import json
from dataclasses import replace

import pytest

from edgefl.base.errors import StateError
from edgefl.lab.reproduce.experiment import digest_stages, list_defaults, list_sources, parse_experiment
from edgefl.lab.reproduce.results import (
    SeedResult,
    create_results_directory,
    format_result_path,
    iterate_missing,
    read_result,
    read_results,
    write_result,
)
from edgefl.lab.reproduce.run import average_curves, list_experiments, make_report, play_seed, select_pictured
from tests.edgefl.lab.reproduce.test_experiment import TOY

EXPERIMENT = parse_experiment("aem.toy", TOY)


def make_seed_result(seed, rows, experiment=EXPERIMENT, scale="full"):
    return SeedResult(
        experiment=experiment.name,
        scale=scale,
        seed=seed,
        digest=digest_stages(experiment, scale, seed),
        rows=rows,
        sources=list_sources(experiment, scale, seed),
        defaults=list_defaults(experiment, scale, seed),
        core_hours=0.5,
        date="2026-11-26",
        machine="a board",
        versions={"edgefl": "1"},
    )


def test_results_are_read_back_by_seed(tmp_path):
    results = [make_seed_result(seed, {"A": 1.0 * seed, "B": 2.0}) for seed in (1, 2, 10)]
    for result in reversed(results):
        write_result(tmp_path / "new", result)
    assert read_results(tmp_path / "new", EXPERIMENT, "full") == tuple(results)
    assert read_results(tmp_path / "new", EXPERIMENT, "smoke") == ()
    assert read_results(tmp_path / "absent", EXPERIMENT, "full") == ()


def test_result_of_changed_settings_counts_as_missing(tmp_path):
    write_result(tmp_path, make_seed_result(1, {"A": 1.0, "B": 3.0}))
    changed = parse_experiment("aem.toy", TOY.replace("rounds = 9", "rounds = 8"))
    assert read_result(tmp_path, changed, "full", 1) is None


def test_result_without_a_new_row_counts_as_missing(tmp_path):
    write_result(tmp_path, make_seed_result(1, {"A": 1.0, "B": 3.0}))
    grown = parse_experiment("aem.toy", TOY.replace("[claims", '"C" = { stage = "c" }\n[claims'))
    assert read_result(tmp_path, EXPERIMENT, "full", 1) is not None
    assert read_result(tmp_path, grown, "full", 1) is None


def test_result_whose_row_reads_another_figure_counts_as_missing(tmp_path):
    write_result(tmp_path, make_seed_result(1, {"A": 1.0, "B": 3.0}))
    changed = parse_experiment("aem.toy", TOY.replace('"A" = { stage = "a"', '"A" = { stage = "b"'))
    assert read_result(tmp_path, changed, "full", 1) is None


def test_result_that_lacks_a_figure_counts_as_missing(tmp_path):
    """The file says where the row comes from, but has no figure for it."""
    write_result(tmp_path, make_seed_result(1, {"A": 1.0}))
    assert read_result(tmp_path, EXPERIMENT, "full", 1) is None


def test_result_of_another_default_counts_as_missing(tmp_path):
    result = make_seed_result(1, {"A": 1.0, "B": 3.0})
    assert result.defaults["a.epsilon"] == 0.33
    assert "a.epochs" not in result.defaults
    write_result(tmp_path, replace(result, defaults=result.defaults | {"a.epsilon": 0.2}))
    assert read_result(tmp_path, EXPERIMENT, "full", 1) is None
    older = {option: value for option, value in result.defaults.items() if option != "a.epsilon"}
    write_result(tmp_path, replace(result, defaults=older))
    assert read_result(tmp_path, EXPERIMENT, "full", 1) is not None


def test_copy_under_another_seed_is_refused(tmp_path):
    path = write_result(tmp_path, make_seed_result(1, {"A": 1.0, "B": 3.0}))
    copy = format_result_path(tmp_path, "aem.toy", "full", 2)
    copy.write_bytes(path.read_bytes())
    with pytest.raises(StateError, match=r"full\.2\.json is the result of aem\.toy --full, seed 1"):
        read_results(tmp_path, EXPERIMENT, "full")


def test_number_with_zeros_is_no_seed(tmp_path):
    path = write_result(tmp_path, make_seed_result(1, {"A": 1.0, "B": 3.0}))
    (tmp_path / "aem.toy.full.01.json").write_bytes(path.read_bytes())
    assert [result.seed for result in read_results(tmp_path, EXPERIMENT, "full")] == [1]


def test_result_has_the_machines_and_versions_that_played_its_stages(tmp_path):
    class FinishedStages:
        def play_all(self, stages, label):
            stage = {"clients": [], "records": [], "measurement_seconds": 18.0, "machine": "a board"}
            figures = {"figures": {"accuracy_mixture": {"mean": 0.5}}, "experts_used": 2}
            old = stage | figures | {"versions": {"edgefl-tinyml": "0.2.0"}}
            new = old | {"machine": "a server", "versions": {"edgefl-tinyml": "0.3.0"}}
            return {"a": old, "c": new}

    rows = '[rows]\n"A" = { stage = "a" }\n"C" = { stage = "c" }\n'
    toy = parse_experiment("aem.toy", TOY[: TOY.index("[rows]")] + rows)
    result = play_seed(toy, "full", 2, FinishedStages(), tmp_path)
    assert (result.machine, result.versions) == ("a board; a server", {"edgefl-tinyml": "0.2.0; 0.3.0"})
    assert (result.rows, result.core_hours) == ({"A": 50.0, "C": 50.0}, 0.01)
    assert read_result(tmp_path, toy, "full", 2) == result


def test_files_with_another_name_are_no_results(tmp_path):
    write_result(tmp_path, make_seed_result(1, {"A": 1.0, "B": 3.0}))
    (tmp_path / "aem.toy.full.1 (copy).json").write_text("{")
    assert [result.seed for result in read_results(tmp_path, EXPERIMENT, "full")] == [1]


def test_directory_that_cannot_be_created_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match=r"file/results.*a parent of it is a file: choose another"):
        create_results_directory(tmp_path / "file" / "results")


@pytest.mark.parametrize(
    ("damage", "part"),
    [
        (lambda values: "{", "cannot read"),
        (lambda values: '{"seed": 1}', "rows"),
        (lambda values: json.dumps(values | {"rows": None}), "'rows'"),
        (lambda values: json.dumps(values | {"rows": {"A": "x"}}), "'rows'"),
        (lambda values: json.dumps(values | {"core_hours": None}), "'core_hours'"),
        (lambda values: json.dumps(values | {"curves": {"a": {}}}), "'curves'"),
        (lambda values: json.dumps(values | {"curves": []}), "'curves'"),
        (
            lambda values: json.dumps(
                values | {"curves": {"a": {"rounds": [1, 2], "accuracy_mixture": [0.1]}}}
            ),
            "'curves'",
        ),
        (lambda values: json.dumps(values | {"sources": None}), "'sources'"),
        (lambda values: json.dumps(values | {"defaults": []}), "'defaults'"),
    ],
)
def test_damaged_result_is_named(tmp_path, damage, part):
    path = write_result(tmp_path, make_seed_result(1, {"A": 1.0, "B": 3.0}))
    path.write_text(damage(json.loads(path.read_text())))
    with pytest.raises(StateError, match=part) as error:
        read_result(tmp_path, EXPERIMENT, "full", 1)
    assert str(path) in str(error.value)


def test_queue_yields_planned_seeds_in_order(tmp_path):
    other = parse_experiment("fedap.toy", TOY.replace("seeds = 2", "seeds = 1"))
    costly = parse_experiment("aem.big", 'out_of_reach = "days"\n' + TOY.replace("seeds = 2", ""))
    write_result(tmp_path, make_seed_result(1, {"A": 1.0, "B": 3.0}))
    missing = [
        (e.name, scale, seed) for e, scale, seed in iterate_missing(tmp_path, [costly, EXPERIMENT, other])
    ]
    assert missing == [("aem.toy", "full", 2), ("fedap.toy", "full", 1)]


def test_report_has_the_rows_of_all_seeds_and_verdicts():
    results = [make_seed_result(1, {"A": 1.0, "B": 3.0}), make_seed_result(2, {"A": 5.0})]
    report = make_report(EXPERIMENT, "full", results, {})
    assert [figure.name for figure in report.figures] == ["A", "B"]
    assert [figure.mean for figure in report.figures] == [3.0, 3.0]
    assert [verdict.measured for verdict in report.verdicts] == ["-2.00 (1 seed, 5 needed)"]
    assert report.seconds == 3600


def test_list_has_one_entry_for_each_experiment(tmp_path):
    write_result(tmp_path, make_seed_result(2, {"A": 1.0, "B": 3.0}))
    costly = parse_experiment("aem.big", 'out_of_reach = "days"\n' + TOY.replace("seeds = 2", ""))
    run, big = list_experiments([EXPERIMENT, costly], tmp_path)
    assert run["command"] == "edgefl reproduce aem --table toy --full"
    assert (run["seeds"], run["planned_seeds"], run["core_hours"]) == (1, 2, 0.5)
    assert [claim["verdict"] for claim in run["claims"]] == ["undecided"]
    assert [claim["verdict"] for claim in big["claims"]] == ["out of reach (cost)"]
    assert (big["out_of_reach"], big["command"]) == ("days", "edgefl reproduce aem --table big --full")
    json.dumps([run, big])
    write_result(tmp_path, make_seed_result(1, {"A": 1.0, "B": 3.0}, costly))  # a machine that had the days
    _, big = list_experiments([EXPERIMENT, costly], tmp_path)
    assert [claim["verdict"] for claim in big["claims"]] == ["undecided"]
    assert (big["out_of_reach"], big["seeds"]) == ("", 1)


def test_curves_are_means_over_seeds_in_per_cent():
    curves = [
        {"a": {"rounds": [2, 4], "accuracy_mixture": accuracies}} for accuracies in ([0.5, 0.7], [0.6, 0.9])
    ]
    curves[1]["a"]["rounds"].append(6)
    curves[1]["a"]["accuracy_mixture"].append(0.1)  # seed 1 was not evaluated after round 6
    results = [replace(make_seed_result(seed, {}), curves=curve) for seed, curve in enumerate(curves, 1)]
    averaged = average_curves([*results, make_seed_result(3, {})])
    assert list(averaged) == ["a"]
    assert averaged["a"] == ([2, 4], pytest.approx([55.0, 80.0]))


def test_picture_has_only_the_figures_in_per_cent():
    report = make_report(EXPERIMENT, "full", [make_seed_result(1, {"A": 50.0, "B": 3.0})], {})
    assert [figure.name for figure in select_pictured(EXPERIMENT, report).figures] == ["A"]


def test_list_shows_a_result_of_a_scale_without_planned_seeds(tmp_path):
    write_result(tmp_path, make_seed_result(1, {"A": 1.0, "B": 3.0}, scale="smoke"))
    entries = list_experiments([EXPERIMENT], tmp_path)
    assert [(entry["scale"], entry["seeds"], entry["planned_seeds"]) for entry in entries] == [
        ("full", 0, 2),
        ("smoke", 1, 0),
    ]

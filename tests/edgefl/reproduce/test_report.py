"""Reports: tables, CSV and the limits of verdicts. All experiments have consistent stages and figures."""

import csv
import io
import json

import pytest

from edgefl.reproduce import EXPERIMENTS, load_experiment
from edgefl.reproduce.report import (
    ExperimentReport,
    ExperimentVerdict,
    Figure,
    check_at_least,
    check_at_most,
    check_within,
    parse_numbers,
    plot_report,
    to_csv,
    to_json,
    to_text,
)

REPORT = ExperimentReport(
    "toy",
    "reduced",
    (1, 2),
    (Figure("FedAvg", (70.0, 72.0), "90.0", "75.3 / 77.3"), Figure("MoE", (80.0, 81.0))),
    (
        ExperimentVerdict("MoE is at least FedAvg + 4", "80.50 against 75.00", True),
        ExperimentVerdict("MoE is at least 85", "80.50 against 85.00", False),
    ),
    12.5,
    {"command": "edgefl reproduce toy"},
)


def test_verdicts_hold_exactly_at_their_limits():
    assert check_at_least("", 4.0, 4.0).holds
    assert not check_at_least("", 3.99, 4.0).holds
    assert check_at_most("", 1.5, 1.5).holds
    assert not check_at_most("", 1.51, 1.5).holds
    assert [check_within("", value, 72, 80).holds for value in (71.9, 72, 80, 80.1)] == [
        False,
        True,
        True,
        False,
    ]
    assert not check_at_least("", float("nan"), 4.0).holds
    assert not check_at_most("", float("nan"), 4.0).holds


def test_the_table_shows_failed_claims():
    text = to_text(REPORT)
    assert "FAILS  MoE is at least 85: 80.50 against 85.00" in text
    assert "holds  MoE is at least FedAvg + 4" in text
    row = next(line for line in text.splitlines() if line.startswith("FedAvg"))
    assert row.split() == ["FedAvg", "90.0", "75.3", "/", "77.3", "71.00", "70.00", "72.00"]


def test_json_and_csv_hold_the_same_figures():
    result = json.loads(json.dumps(to_json(REPORT)))
    assert [verdict["holds"] for verdict in result["verdicts"]] == [True, False]
    assert set(result["verdicts"][0]) == {"line", "measured", "holds"}
    rows = list(csv.DictReader(io.StringIO(to_csv(REPORT))))
    assert [(row["figure"], float(row["mean"]), float(row["seed 2"])) for row in rows] == [
        ("FedAvg", 71.0, 72.0),
        ("MoE", 80.5, 81.0),
    ]
    assert [figure["mean"] for figure in result["figures"]] == [71.0, 80.5]


def test_numbers_are_parsed_from_a_reference():
    assert parse_numbers("75.3 / 77.3") == [75.3, 77.3]
    assert parse_numbers("about round 9") == [9.0]
    assert parse_numbers("") == []


def test_report_is_plotted_as_png(tmp_path):
    pytest.importorskip("matplotlib")
    plot_report(REPORT, tmp_path / "report.png")
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("scale", ["smoke", "reduced", "full"])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_stages_have_valid_configurations(name, scale):
    """Names are unique, `after` names an earlier stage, and algorithm and partition know all options."""
    from edgefl.algorithms import complete_algorithm_options
    from edgefl.data.options import fill_defaults as partition_options
    from edgefl.data.partitions.registry import find_partition

    seen = []
    for stage in load_experiment(name).stages(scale, 3):
        config = stage.config
        assert config.seed == 3 or config.seed > 100
        complete_algorithm_options(config.algorithm, config.options)
        partition_options("", find_partition(config.partition.name).defaults, config.partition.options)
        assert stage.name not in seen
        assert stage.after == "" or stage.after in seen
        seen.append(stage.name)


def make_permutation_run(clusters):
    """Return the result of a stage with 20 clients, and with `clusters[t]` as the expert of permutation t."""
    from sklearn.metrics import adjusted_rand_score

    truth = [i % 4 for i in range(20)]
    rows = [{"id": f"c{i}", "truth": t, "cluster": clusters[t]} for i, t in enumerate(truth)]
    updates = {row["id"]: {f"q/{k}": float(k == row["cluster"]) for k in range(4)} for row in rows}
    return {
        "clients": rows,
        "records": [{"round": 1, "updates": updates}],
        "figures": {"accuracy_mixture": {"mean": 0.5}},
        "adjusted_rand_index": adjusted_rand_score(truth, [row["cluster"] for row in rows]),
    }


@pytest.mark.parametrize(
    ("clusters", "holds"), [((0, 1, 2, 3), True), ((0, 1, 2, 2), False), ((0, 0, 0, 0), False)]
)
def test_claims_fail_when_permutations_share_an_expert(clusters, holds):
    """Agreement with the majority of a permutation is not enough, because one expert for all reaches it."""
    module = load_experiment("fedmix-permutation")
    exact = make_permutation_run((0, 1, 2, 3))
    tried = make_permutation_run(clusters)
    results = [{"k4-start0": tried, **{f"k6-start{start}": exact for start in range(3)}}]
    result = module.figures("reduced", results)
    assert all(verdict.holds for verdict in module.verdicts("reduced", results)) == holds
    assert {"K 4: adjusted Rand index", "K 4: accuracy"} <= {figure.name for figure in result}


def test_clustering_round_is_added_to_the_training_rounds():
    """There are 40 rounds before the clustering round, and 260 after it."""
    federations = [stage for stage in load_experiment("fedap").stages("reduced", 1) if stage.name != "local"]
    assert len(federations) == 4
    for stage in federations:
        options = stage.config.options
        assert stage.config.rounds == 300 + options["clustering"]
        assert options["decay_rounds"] == (260 if options["clustering"] else 300)


def test_clusters_are_checked_where_true_clusters_exist():
    module = load_experiment("clustered")
    result = {"figures": {"accuracy_mixture": {"mean": 0.9}}, "adjusted_rand_index": 0.13}
    for scale in ("reduced", "full"):
        results = [{stage.name: result for stage in module.stages(scale, 1)}]
        failing = [verdict.line for verdict in module.verdicts(scale, results) if not verdict.holds]
        assert {line.split(":")[0] for line in failing if "exactly" in line} == {"2 tasks", "3 tasks"}


def test_impossible_experiment_is_refused_at_the_start(tmp_path, capsys):
    from edgefl.cli.main import run_command

    assert run_command(["reproduce", "fedap", "--full", "--out", str(tmp_path / "out")]) != 0
    err = capsys.readouterr().err
    assert "ImageNet" in err
    assert "--reduced" in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_report_describes_differences_from_the_paper(name):
    notes = load_experiment(name).SETUP_NOTES["reduced"]
    assert notes.startswith("paper: ")
    assert "; here: " in notes
    assert notes in to_text(
        ExperimentReport(name, "reduced", (1,), (Figure("one", (1.0,), "2.0"),), (), 1.0, {}, notes)
    )

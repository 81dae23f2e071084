"""Reports by hand: tables, CSV, verdicts at their edges; every experiment names its stages and figures
consistently.
"""

import csv
import io
import json

import pytest

from edgefl.reproduce import EXPERIMENTS, experiment
from edgefl.reproduce.report import (
    Figure,
    Report,
    Verdict,
    above,
    below,
    numbers,
    plot,
    to_csv,
    to_json,
    to_text,
    within,
)

REPORT = Report(
    "toy",
    "reduced",
    (1, 2),
    (Figure("FedAvg", (70.0, 72.0), "90.0", "75.3 / 77.3"), Figure("MoE", (80.0, 81.0))),
    (
        Verdict("MoE is at least FedAvg + 4", "80.50 against 75.00", True),
        Verdict("MoE is at least 85", "80.50 against 85.00", False),
    ),
    12.5,
    {"command": "edgefl reproduce toy"},
)


def test_verdicts_at_their_edges():
    assert above("", 4.0, 4.0).holds
    assert not above("", 3.99, 4.0).holds
    assert below("", 1.5, 1.5).holds
    assert not below("", 1.51, 1.5).holds
    assert [within("", value, 72, 80).holds for value in (71.9, 72, 80, 80.1)] == [False, True, True, False]
    assert not above("", float("nan"), 4.0).holds
    assert not below("", float("nan"), 4.0).holds


def test_the_table_says_what_failed():
    text = to_text(REPORT)
    assert "FAILS  MoE is at least 85: 80.50 against 85.00" in text
    assert "holds  MoE is at least FedAvg + 4" in text
    row = next(line for line in text.splitlines() if line.startswith("FedAvg"))
    assert row.split() == ["FedAvg", "90.0", "75.3", "/", "77.3", "71.00", "70.00", "72.00"]


def test_json_and_csv_hold_the_same_figures():
    found = json.loads(json.dumps(to_json(REPORT)))
    assert [verdict["holds"] for verdict in found["verdicts"]] == [True, False]
    assert set(found["verdicts"][0]) == {"line", "measured", "holds"}
    rows = list(csv.DictReader(io.StringIO(to_csv(REPORT))))
    assert [(row["figure"], float(row["mean"]), float(row["seed 2"])) for row in rows] == [
        ("FedAvg", 71.0, 72.0),
        ("MoE", 80.5, 81.0),
    ]
    assert [figure["mean"] for figure in found["figures"]] == [71.0, 80.5]


def test_the_numbers_of_a_reference():
    assert numbers("75.3 / 77.3") == [75.3, 77.3]
    assert numbers("about round 9") == [9.0]
    assert numbers("") == []


def test_a_report_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    plot(REPORT, tmp_path / "report.png")
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("scale", ["smoke", "reduced", "full"])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_stages_are_configurations_that_parse(name, scale):
    """Names are unique, `after` names an earlier stage, and every option is one that the algorithm and the
    partition take.
    """
    from edgefl.algorithms import full_options
    from edgefl.data.options import full_options as partition_options
    from edgefl.data.partitions.registry import partition_entry

    seen = []
    for stage in experiment(name).stages(scale, 3):
        config = stage.config
        assert config.seed == 3 or config.seed > 100
        full_options(config.algorithm, config.options)
        partition_options("", partition_entry(config.partition.name).defaults, config.partition.options)
        assert stage.name not in seen
        assert stage.after == "" or stage.after in seen
        seen.append(stage.name)


def permutation_run(clusters):
    """Return a stage's result: 20 clients of four permutations, each with the expert that `clusters` names
    for its permutation.
    """
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
def test_permutations_that_share_an_expert_are_no_success(clusters, holds):
    """All clients agree with their permutation's majority in each of the three, also with one expert
    for all.
    """
    module = experiment("fedmix-permutation")
    exact = permutation_run((0, 1, 2, 3))
    tried = permutation_run(clusters)
    results = [{"k4-start0": tried, **{f"k6-start{start}": exact for start in range(3)}}]
    found = module.figures("reduced", results)
    assert all(verdict.holds for verdict in module.verdicts("reduced", results)) == holds
    assert {"K 4: adjusted Rand index", "K 4: accuracy"} <= {figure.name for figure in found}


def test_the_clustering_round_is_none_of_those_in_clusters():
    """40 rounds before, one that clusters, 260 in clusters."""
    federations = [each for each in experiment("fedap").stages("reduced", 1) if each.name != "local"]
    assert len(federations) == 4
    for stage in federations:
        options = stage.config.options
        assert stage.config.rounds == 300 + options["clustering"]
        assert options["decay_rounds"] == (260 if options["clustering"] else 300)


def test_clusters_are_checked_wherever_the_true_ones_are_known():
    module = experiment("clustered")
    result = {"figures": {"accuracy_mixture": {"mean": 0.9}}, "adjusted_rand_index": 0.13}
    for scale in ("reduced", "full"):
        results = [{stage.name: result for stage in module.stages(scale, 1)}]
        failing = [verdict.line for verdict in module.verdicts(scale, results) if not verdict.holds]
        assert {line.split(":")[0] for line in failing if "exactly" in line} == {"2 tasks", "3 tasks"}


def test_an_experiment_that_cannot_work_is_refused_before_it_begins(tmp_path, capsys):
    from edgefl.cli.main import run

    assert run(["reproduce", "fedap", "--full", "--out", str(tmp_path / "out")]) != 0
    said = capsys.readouterr().err
    assert "ImageNet" in said
    assert "--reduced" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_report_says_how_it_differs_from_the_paper(name):
    about = experiment(name).ABOUT["reduced"]
    assert about.startswith("paper: ")
    assert "; here: " in about
    assert about in to_text(
        Report(name, "reduced", (1,), (Figure("one", (1.0,), "2.0"),), (), 1.0, {}, about)
    )

"""Reports: tables, CSV and the limits of verdicts."""

import csv
import io
import json
import math
from dataclasses import replace

import pytest

from edgefl.lab.reproduce.report import (
    FAILS,
    HOLDS,
    ExperimentReport,
    ExperimentVerdict,
    Figure,
    check_limits,
    format_figure,
    plot_report,
    to_csv,
    to_json,
    to_text,
)

REPORT = ExperimentReport(
    experiment="toy",
    scale="reduced",
    seeds=(1, 2),
    figures=(
        Figure("FedAvg", (70.0, 72.0), 90.0),
        Figure("MoE", (80.0, 81.0)),
        Figure("Once", (60.0, math.nan)),
    ),
    verdicts=(
        ExperimentVerdict(line="MoE is at least FedAvg + 4", measured="80.50 against 75.00", outcome=HOLDS),
        ExperimentVerdict(
            line="MoE is at least 85", measured="80.50 against 85.00", outcome=FAILS, paper="86"
        ),
    ),
    seconds=12.5,
    note={"command": "edgefl reproduce toy"},
)


def test_verdicts_hold_exactly_at_their_limits():
    assert check_limits("", 4.0, low=4.0) == ExperimentVerdict(
        line="", measured="4.00, expected at least 4", outcome=HOLDS
    )
    assert check_limits("", 3.99, low=4.0).outcome == FAILS
    assert check_limits("", 1.5, high=1.5) == ExperimentVerdict(
        line="", measured="1.50, expected at most 1.5", outcome=HOLDS
    )
    assert check_limits("", 1.51, high=1.5).outcome == FAILS
    verdicts = [check_limits("", value, low=72, high=80) for value in (71.9, 72, 80, 80.1)]
    assert [verdict.outcome for verdict in verdicts] == [FAILS, HOLDS, HOLDS, FAILS]
    assert verdicts[0].measured == "71.90, expected 72 to 80"
    for limits in ({"low": 4.0}, {"high": 4.0}):
        assert check_limits("", float("nan"), **limits).outcome == FAILS


def test_the_table_shows_claims_with_their_verdicts():
    lines = to_text(REPORT).splitlines()
    row = next(line for line in lines if line.startswith("MoE is at least 85"))
    assert row.split()[-5:] == ["86", "80.50", "against", "85.00", "FAILS"]
    assert any(line.startswith("MoE is at least FedAvg + 4") and line.endswith("holds") for line in lines)
    rows = {line.split()[0]: line.split()[1:] for line in lines if line}
    assert rows["FedAvg"] == ["90", "71.00", "70.00", "72.00"]
    assert rows["Once"] == ["-", "60.00", "60.00", "-"]


def test_json_and_csv_hold_the_same_figures():
    result = json.loads(json.dumps(to_json(REPORT)))
    assert [verdict["outcome"] for verdict in result["verdicts"]] == [HOLDS, FAILS]
    assert set(result["verdicts"][0]) == {"line", "measured", "outcome", "paper"}
    rows = list(csv.DictReader(io.StringIO(to_csv(REPORT))))
    assert [(row["figure"], float(row["mean"]), float(row["seed 2"])) for row in rows[:2]] == [
        ("FedAvg", 71.0, 72.0),
        ("MoE", 80.5, 81.0),
    ]
    assert rows[0]["paper"] == "90.0"
    assert [figure["mean"] for figure in result["figures"]] == [71.0, 80.5, 60.0]


def test_report_is_plotted_as_png(tmp_path):
    pytest.importorskip("matplotlib")
    plot_report(REPORT, tmp_path / "report.png")
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")


def test_the_figure_of_the_paper_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    pictures = []
    for paper in (71.0, 78.0):
        figures = (replace(REPORT.figures[0], paper=paper), *REPORT.figures[1:])
        plot_report(replace(REPORT, figures=figures), tmp_path / "report.png")
        pictures.append((tmp_path / "report.png").read_bytes())
    assert pictures[0] != pictures[1]


def test_small_figures_keep_two_significant_digits():
    values = (66.875, 0.0046, -0.012, 0.0, 0.1, math.nan)
    assert [format_figure(value) for value in values] == ["66.88", "0.0046", "-0.012", "0.00", "0.10", "-"]
    assert format_figure(0.0046, "+") == "+0.0046"

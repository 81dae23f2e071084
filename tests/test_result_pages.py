"""The figures of pages equal the result files, and each experiment is on the page of its paper."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from edgefl.lab.reproduce.experiment import PAPERS, load_experiments, parse_experiment
from edgefl.lab.reproduce.results import RESULTS_DIRECTORY, write_result
from tests.edgefl.lab.reproduce.test_results import make_seed_result
from tests.support.result_pages import (
    BLOCK,
    ROOT,
    draw_pictures,
    list_pages,
    record_output,
    render_overview,
    render_table,
    update_page,
)
from tests.support.result_pictures import choose_axis, draw_curves

PAPER_PAGES = sorted((ROOT / "docs" / "papers").glob("*.md"))
RESULT_PAGES = sorted((ROOT / "docs" / "results").glob("*.md"))
FIGURE_ROW = re.compile(r"^\|.*\.\d", re.MULTILINE)
TABLE = re.compile(r"^<!-- table: (\S+) -->$", re.MULTILINE)
SECTIONS = ["The idea", "The equations", "The code", "Tables and figures", "What differs from the paper"]
TOY = """
title = "a toy"
item = "table 0"
order = 1
[config]
federation = { rounds = 9 }
model = { name = "lenet5" }
algorithm = { name = "fedavg" }
[stages.a]
[stages.b]
first_seed_only = true
config.algorithm = { replace = true, name = "local" }
[stages.c]
scales = ["smoke"]
[scales.full]
seeds = 2
[scales.reduced]
seeds = 5
differs = "one round"
config.federation = { rounds = 1 }
[scales.smoke]
[rows]
"A" = { stage = "a", paper = 50 }
"B" = { stage = "b" }
"C" = { stage = "c", paper = 7.5 }
[claims."A is above B"]
row = "A"
than = "B"
at_least = 0
paper = "+4"
"""
EXPERIMENT = parse_experiment("aem.toy", TOY)
COSTLY = parse_experiment("fedap.big", 'out_of_reach = "ten days"\n' + TOY)
HEAD = "|---|---|---|---|\n"


def write_toy_result(directory: Path, scale: str, seed: int, rows: dict[str, float | None]) -> None:
    result = make_seed_result(seed, rows, EXPERIMENT, scale)
    write_result(directory, replace(result, core_hours=0.25))


@pytest.mark.parametrize("page", list_pages(), ids=lambda page: page.stem)
def test_pages_are_up_to_date(page: Path) -> None:
    assert update_page(page.read_text(), ROOT / RESULTS_DIRECTORY) == page.read_text(), (
        "run `python -m tests.support.result_pages`"
    )


def test_pictures_are_up_to_date() -> None:
    pictures = draw_pictures(ROOT / RESULTS_DIRECTORY)
    kept = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs/assets/papers").iterdir()}
    assert kept == set(pictures)
    for name, text in pictures.items():
        assert (ROOT / "docs" / name).read_text() == text, "run `python -m tests.support.result_pages`"


@pytest.mark.parametrize(
    ("values", "start", "low", "high", "step"),
    [
        ([0.3, 0.61], None, 0.3, 0.7, 0.1),
        ([78.2, 88.2], None, 78, 90, 2),
        ([50, 500], 0, 0, 500, 100),
        ([3.0, 3.0], None, 3.0, 4.0, 0.2),
    ],
)
def test_axis_has_round_ends(
    values: list[float], start: float | None, low: float, high: float, step: float
) -> None:
    axis = choose_axis(values, start)
    assert [axis.low, axis.high, axis.step] == pytest.approx([low, high, step])
    assert 3 <= len(axis.ticks) <= 7
    assert axis.ticks[-1] == pytest.approx(high)


def test_picture_has_the_mean_over_seeds_by_round() -> None:
    """Accuracies of 10 to 50 and of 30 to 70 per cent have means of 20 to 60, the axis. Losses fall
    from 4 to 0. A panel is 380 wide and 200 high, and rounds are 76 apart. The lower left corners are at
    (60, 240) and (500, 240).
    """
    rounds = [1, 2, 3, 4, 5]
    first = {
        "rounds": rounds,
        "accuracy_mixture": [0.1, 0.2, 0.3, 0.4, 0.5],
        "loss_mixture": [4.0, 3.0, 2.0, 1.0, 0.0],
    }
    second = {
        "rounds": [*rounds, 6],  # the other seed lacks round 6
        "accuracy_mixture": [0.3, 0.4, 0.5, 0.6, 0.7, 0.9],
        "loss_mixture": [4.0, 3.0, 2.0, 1.0, 0.0, 9.0],
    }
    short = {"rounds": rounds[:2], "accuracy_mixture": [0.1, 0.2]}
    results = [
        replace(make_seed_result(seed, {"A": 1.0}, EXPERIMENT, "full"), curves={"a": curve, "b": short})
        for seed, curve in ((1, first), (2, second))
    ]
    text = draw_curves(EXPERIMENT, "full", results)
    accuracies = " ".join(f"{60 + 76 * number}.0,{240 - 50 * (number - 1)}.0" for number in rounds)
    losses = " ".join(f"{500 + 76 * number}.0,{40 + 50 * (number - 1)}.0" for number in rounds)
    assert re.findall(r'<polyline points="([^"]+)"', text) == [accuracies, losses]
    assert "<title>a toy (full, seeds 1, 2)</title>" in text
    assert ">A</text>" in text
    assert draw_curves(EXPERIMENT, "full", [replace(results[0], curves={"b": short})]) == ""


def test_every_experiment_is_on_the_page_of_its_paper() -> None:
    assert [page.stem for page in PAPER_PAGES] == sorted(PAPERS)
    listed = [(page.stem, name) for page in PAPER_PAGES for name in TABLE.findall(page.read_text())]
    expected = [(experiment.paper, experiment.name) for experiment in load_experiments()]
    assert sorted(listed) == sorted(expected)


@pytest.mark.parametrize("page", PAPER_PAGES, ids=lambda page: page.stem)
def test_pages_of_papers_have_the_same_sections(page: Path) -> None:
    assert re.findall(r"^## (.+)$", page.read_text(), re.MULTILINE) == SECTIONS


def test_table_has_rows_means_and_claims_at_each_planned_scale(tmp_path: Path) -> None:
    write_toy_result(tmp_path, "full", 1, {"A": 1.0, "B": 3.0})
    write_toy_result(tmp_path, "full", 2, {"A": 5.5})
    assert render_table(EXPERIMENT, tmp_path) == (
        "`edgefl reproduce aem --table toy --full --seeds 2`, seeds 1, 2, 0.50 core-hours.\n\n"
        f"|  | paper | here | by seed |\n{HEAD}"
        "| A | 50 | 3.25 | 1 / 5.50 |\n"
        "| B |  | 3 |  |\n\n"
        f"| claim | paper | here | verdict |\n{HEAD}"
        "| A is above B | +4 | -2.00 (1 seed, 5 needed) | undecided |\n\n"
        "`edgefl reproduce aem --table toy --reduced`: not run yet.\n"
    )


def test_table_of_another_size_names_the_difference_and_an_interval(tmp_path: Path) -> None:
    for seed in range(1, 6):
        write_toy_result(tmp_path, "reduced", seed, {"A": seed + 2.0, "B": float(seed)})
    text = render_table(EXPERIMENT, tmp_path)
    assert "seeds 1, 2, 3, 4, 5, 1.25 core-hours.\nIt differs from the paper: one round.\n\n" in text
    assert "| A | 50 | 5 | 3 / 4 / 5 / 6 / 7 |\n| B |  | 3 | 1 / 2 / 3 / 4 / 5 |\n\n" in text
    assert text.endswith("| A is above B | +4 | +2.00 (+2.00 to +2.00) | reproduced |\n")


def test_table_of_an_experiment_out_of_reach_has_its_cost(tmp_path: Path) -> None:
    claims = f"| claim | paper | here | verdict |\n{HEAD}| A is above B | +4 |  | out of reach (cost) |\n"
    assert render_table(replace(COSTLY, scales={}), tmp_path) == f"Not run: ten days.\n\n{claims}"
    full = replace(COSTLY, scales={"full": COSTLY.scales["full"]})
    assert render_table(full, tmp_path) == (
        f"Not run: ten days. `edgefl reproduce fedap --table big --full` runs it.\n\n{claims}"
    )


def test_overview_has_a_row_for_each_scale_and_a_list_of_those_out_of_reach(tmp_path: Path) -> None:
    write_toy_result(tmp_path, "full", 1, {"A": 9.0, "B": 3.0})
    costly = replace(COSTLY, scales={})
    title, line, *rows = render_overview([EXPERIMENT, costly], tmp_path).splitlines()
    assert title == "| table or figure | options | seeds | claim | paper | here | verdict | others |"
    assert line == "|---|---|---|---|---|---|---|---|"
    assert rows == [
        "| table 0 | `--table toy --full` | 1 of 2 | A is above B | +4 | +6.00 (1 seed, 5 needed)"
        " | undecided |  |",
        "| table 0 | `--table toy --reduced` | 0 of 5 | A is above B | +4 |  | not run |  |",
        "",
        "- table 0: out of reach (cost), ten days.",
    ]


def test_overview_counts_the_verdicts_on_further_claims(tmp_path: Path) -> None:
    claim = EXPERIMENT.claims[0]
    further = replace(EXPERIMENT, claims=(claim, claim, claim))
    (row, *_) = render_overview([further], tmp_path).splitlines()[2:]
    assert row.endswith("| not run | 2 not run |")


@pytest.mark.parametrize("page", RESULT_PAGES, ids=lambda page: page.stem)
def test_tables_of_figures_are_written_from_files(page: Path) -> None:
    assert not FIGURE_ROW.findall(BLOCK.sub("", page.read_text()))


def test_only_the_blocks_of_a_page_are_written(tmp_path: Path) -> None:
    page = "# Page\n\n<!-- table: aem.figure-4 -->\nold\n<!-- end -->\n\nText.\n"
    written = update_page(page, tmp_path)
    assert written.startswith("# Page\n\n<!-- table: aem.figure-4 -->\n\nNot run: ")
    assert written.endswith("\n\n<!-- end -->\n\nText.\n")
    assert "old" not in written
    assert update_page(written, tmp_path) == written
    with pytest.raises(KeyError, match=r"aem\.absent"):
        update_page(page.replace("figure-4", "absent"), tmp_path)


def test_block_without_an_end_is_refused_before_it_swallows_text(tmp_path: Path) -> None:
    page = "<!-- table: aem.figure-4 -->\n\nText.\n\n<!-- table: aem.figure-4 -->\n<!-- end -->\n"
    with pytest.raises(ValueError, match="<!-- end -->"):
        update_page(page, tmp_path)


def test_figure_that_is_not_finite_keeps_its_place(tmp_path: Path) -> None:
    write_toy_result(tmp_path, "full", 1, {"A": 1.0, "B": 3.0})
    write_toy_result(tmp_path, "full", 2, {"A": None})
    assert "| A | 50 | 1 | 1 / - |\n" in render_table(EXPERIMENT, tmp_path)


def test_page_has_a_command_and_what_it_printed(tmp_path: Path) -> None:
    record_output("sum", [sys.executable, "-c", "print('1 + 1 = ', 1 + 1)"], tmp_path)
    page = update_page("<!-- output: sum -->\n<!-- end -->\n", tmp_path)
    assert page == (
        f"<!-- output: sum -->\n\n```text\n$ {sys.executable} -c 'print('\"'\"'1 + 1 = '\"'\"', 1 + 1)'\n\n"
        "1 + 1 =  2\n```\n\n<!-- end -->\n"
    )
    with pytest.raises(OSError, match=r"absent\.txt"):
        update_page(page.replace("sum", "absent"), tmp_path)


def test_a_block_has_one_paragraph_of_an_output(tmp_path: Path) -> None:
    (tmp_path / "sum.txt").write_text("$ sum\n\npoints above local  mean\n1 + 1               2\n\npoints\n")
    block = "<!-- output: sum, points above local -->\n<!-- end -->\n"
    assert update_page(2 * block, tmp_path).count("1 + 1               2") == 2
    page = update_page(block, tmp_path)
    assert page == (
        "<!-- output: sum, points above local -->\n\n```text\npoints above local  mean\n"
        "1 + 1               2\n```\n\n<!-- end -->\n"
    )
    for words, count in {"points": 2, "absent": 0}.items():
        with pytest.raises(KeyError, match=f"{count} paragraphs of sum.txt begin with '{words}'"):
            update_page(page.replace("points above local -->", f"{words} -->"), tmp_path)


def test_command_that_is_printed_first_is_not_repeated(tmp_path: Path) -> None:
    script = tmp_path / "script.sh"
    script.write_text('echo "/bin/sh $0 bench fleet --repeats 3"\n')
    record_output("script", ["/bin/sh", str(script), "bench", "fleet"], tmp_path)
    assert (tmp_path / "script.txt").read_text() == f"/bin/sh {script} bench fleet --repeats 3\n"


def test_output_of_a_failed_command_is_not_stored(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        record_output("sum", [sys.executable, "-c", "raise SystemExit(3)"], tmp_path)
    assert not list(tmp_path.iterdir())

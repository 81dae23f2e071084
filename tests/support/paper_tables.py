"""Writes the tables of the papers' experiments into the pages of docs/, from docs/results/runs/.

Run it after a new result: `python -m tests.support.paper_tables`. A page has the lines

    <!-- table: pfl-moe.table-1-fashion-mnist-0.5 -->
    <!-- end -->

and everything between them is replaced by the rows and the claims of the experiment. A block
`overview: pfl-moe` is replaced by one row for each experiment of the paper.
"""

import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from edgefl.reproduce.claims import OUT_OF_REACH
from edgefl.reproduce.experiment import Experiment, load_experiments
from edgefl.reproduce.report import format_figure
from edgefl.reproduce.results import RESULTS_DIRECTORY, SeedResult, read_results
from edgefl.reproduce.run import judge_claims, list_experiments

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"(<!-- (?P<kind>table|overview): (?P<name>\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def _format(value: float | None) -> str:
    return "" if value is None else format_figure(value).removesuffix(".00")


def _format_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def render_table(experiment: Experiment, directory: Path) -> str:
    """Return the rows and claims of an experiment at each planned scale as Markdown.

    Args:
        experiment: the experiment.
        directory: the directory of the result files.
    """
    if experiment.out_of_reach:
        return f"Not run: {experiment.out_of_reach}.\n\n" + _render_claims(experiment, ())
    parts = []
    for scale in experiment.planned_scales:
        results = read_results(directory, experiment, scale)
        command = f"edgefl reproduce {experiment.paper} --table {experiment.table} --{scale}"
        if not results:
            parts.append(f"`{command}`: not run yet.\n")
            continue
        seeds = ", ".join(str(result.seed) for result in results)
        hours = sum(result.core_hours for result in results)
        plural = "s" if len(results) > 1 else ""
        lines = [f"`{command} --seeds {results[-1].seed}`, seed{plural} {seeds}, {hours:.1f} core-hours.\n"]
        if differs := experiment.scales[scale].differs:
            lines.append(f"It differs from the paper: {differs}.\n")
        parts.append(
            "".join(lines)
            + "\n"
            + _render_rows(experiment, results)
            + "\n"
            + _render_claims(experiment, results)
        )
    return "\n".join(parts)


def _render_rows(experiment: Experiment, results: Sequence[SeedResult]) -> str:
    lines = [_format_row(["", "paper", "here", "by seed"]), "|---|---|---|---|\n"]
    for row in experiment.rows:
        measured = (result.rows.get(row.name) for result in results)
        values = [value for value in measured if value is not None]
        if values:
            by_seed = " / ".join(map(_format, values)) if len(values) > 1 else ""
            lines.append(_format_row([row.name, _format(row.paper), _format(fmean(values)), by_seed]))
    return "".join(lines)


def _render_claims(experiment: Experiment, results: Sequence[SeedResult]) -> str:
    lines = [_format_row(["claim", "paper", "here", "verdict"]), "|---|---|---|---|\n"]
    for verdict in judge_claims(experiment, results):
        lines.append(_format_row([verdict.line, verdict.paper, verdict.measured, verdict.outcome]))
    return "".join(lines)


def render_overview(experiments: Sequence[Experiment], directory: Path) -> str:
    """Return one row for each experiment and planned scale as Markdown, and a list of those out of reach.

    A row has the first claim. The others are counted by their verdicts.

    Args:
        experiments: the experiments of one paper.
        directory: the directory of the result files.
    """
    lines = [
        _format_row(["table or figure", "options", "seeds", "claim", "paper", "here", "verdict", "others"]),
        "|---|---|---|---|---|---|---|---|\n",
    ]
    bullets = []
    for entry in list_experiments(experiments, directory):
        main, *others = entry["claims"]
        if main["verdict"] == OUT_OF_REACH:
            bullets.append(f"- {entry['item']}: {main['verdict']}, {entry['differs']}.\n")
            continue
        table = entry["experiment"].partition(".")[2]
        counts = Counter(claim["verdict"] for claim in others)
        lines.append(
            _format_row(
                [
                    entry["item"],
                    f"`--table {table} --{entry['scale']}`",
                    f"{entry['seeds']} of {entry['planned_seeds']}",
                    *(main[key] for key in ("claim", "paper", "ours", "verdict")),
                    ", ".join(f"{count} {verdict}" for verdict, count in counts.items()),
                ]
            )
        )
    return "".join([*lines, *(["\n"] if bullets else []), *bullets])


def update_page(text: str, directory: Path) -> str:
    """Return a page with all its tables written again.

    Args:
        text: the page.
        directory: the directory of the result files.

    Raises:
        KeyError: the page names an experiment that does not exist.
    """
    experiments = load_experiments()
    by_name = {experiment.name: experiment for experiment in experiments}

    def replace_block(match: re.Match[str]) -> str:
        name = match["name"]
        if match["kind"] == "table":
            content = render_table(by_name[name], directory)
        else:
            content = render_overview([e for e in experiments if e.paper == name], directory)
        return f"{match[1]}\n{content}\n{match[4]}"

    return BLOCK.sub(replace_block, text)


def list_pages() -> list[Path]:
    """Return the pages of docs/ that have tables."""
    return [path for path in sorted((ROOT / "docs").rglob("*.md")) if BLOCK.search(path.read_text())]


def main() -> None:
    """Write all pages again, and print the names of those that changed."""
    for path in list_pages():
        before = path.read_text()
        after = update_page(before, ROOT / RESULTS_DIRECTORY)
        if after != before:
            path.write_text(after)
            sys.stdout.write(f"{path.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()

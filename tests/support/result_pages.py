"""Writes measured figures into the pages of docs/, from the files in docs/results/runs/.

Run it after a new result: `python -m tests.support.result_pages`. A page has the lines

    <!-- table: pfl-moe.table-1-fashion-mnist-0.5 -->
    <!-- end -->

and everything between them is replaced by the rows and the claims of the experiment, and by a picture of its
curves if there are any. A block `overview: pfl-moe` is replaced by one row for each experiment of the paper.
A block `output: regression` is replaced by what a command printed, with the command. A block `output:
outcomes, int8 above local` has only the paragraph that begins with these words. This runs the command and
stores its output:

    python -m tests.support.result_pages record regression python -m tests.benchmarks regression --seeds 3
"""

import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from edgefl.base.system.files import write_atomic
from edgefl.base.system.format import NO_VALUE
from edgefl.lab.reproduce.claims import OUT_OF_REACH
from edgefl.lab.reproduce.experiment import Experiment, load_experiments
from edgefl.lab.reproduce.report import format_figure
from edgefl.lab.reproduce.results import RESULTS_DIRECTORY, SeedResult, read_results
from edgefl.lab.reproduce.run import judge_claims, list_experiments
from tests.support.result_pictures import draw_curves, name_picture

ROOT = Path(__file__).resolve().parents[2]
START = r"<!-- (?P<kind>table|overview|output): (?P<name>[^\s,]+)(?:, (?P<paragraph>[^\n]+))? -->\n"
END = "<!-- end -->"
CAPTION = "Accuracy and loss over the rounds: means over clients, each on its own test samples"
BLOCK = re.compile(rf"({START})(?:(?!<!-- ).)*?({END})", re.DOTALL)


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
        runs = "".join(
            f" `{experiment.format_command(scale)}` runs it." for scale in experiment.scale_names[:1]
        )
        return f"Not run: {experiment.out_of_reach}.{runs}\n\n" + _render_claims(experiment, ())
    parts = []
    for scale in experiment.planned_scales:
        results = read_results(directory, experiment, scale)
        command = experiment.format_command(scale)
        if not results:
            parts.append(f"`{command}`: not run yet.\n")
            continue
        seeds = ", ".join(str(result.seed) for result in results)
        hours = sum(result.core_hours for result in results)
        plural = "s" if len(results) > 1 else ""
        spent = f"{format_figure(hours)} core-hours"
        lines = [f"`{command} --seeds {results[-1].seed}`, seed{plural} {seeds}, {spent}.\n"]
        if differs := experiment.scales[scale].differs:
            lines.append(f"It differs from the paper: {differs}.\n")
        parts.append(
            "".join(lines)
            + "\n"
            + _render_rows(experiment, results)
            + "\n"
            + _render_claims(experiment, results)
            + _render_picture(experiment, scale, results)
        )
    return "\n".join(parts)


def _render_rows(experiment: Experiment, results: Sequence[SeedResult]) -> str:
    lines = [_format_row(["", "paper", "here", "by seed"]), "|---|---|---|---|\n"]
    for row in experiment.rows:
        values = [result.rows[row.name] for result in results if row.name in result.rows]
        if values:
            finite = [value for value in values if value is not None]
            mean = _format(fmean(finite)) if finite else NO_VALUE
            by_seed = " / ".join(NO_VALUE if value is None else _format(value) for value in values)
            lines.append(
                _format_row([row.name, _format(row.paper), mean, by_seed if len(values) > 1 else ""])
            )
    return "".join(lines)


def _render_claims(experiment: Experiment, results: Sequence[SeedResult]) -> str:
    lines = [_format_row(["claim", "paper", "here", "verdict"]), "|---|---|---|---|\n"]
    for verdict in judge_claims(experiment, results):
        lines.append(_format_row([verdict.line, verdict.paper, verdict.measured, verdict.outcome]))
    return "".join(lines)


def _render_picture(experiment: Experiment, scale: str, results: Sequence[SeedResult]) -> str:
    if not draw_curves(experiment, scale, results):
        return ""
    return f"\n![{CAPTION}](../{name_picture(experiment, scale)})\n\n*{CAPTION}.*\n"


def draw_pictures(directory: Path) -> dict[Path, str]:
    """Return the text of each picture by its path below docs/.

    Args:
        directory: the directory of the result files.
    """
    pictures = {
        Path(name_picture(experiment, scale)): draw_curves(experiment, scale, results)
        for experiment in load_experiments()
        for scale in experiment.planned_scales
        if (results := read_results(directory, experiment, scale))
    }
    return {path: text for path, text in pictures.items() if text}


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
            bullets.append(f"- {entry['item']}: {main['verdict']}, {entry['out_of_reach']}.\n")
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


def record_output(name: str, command: Sequence[str], directory: Path) -> None:
    """Run a command, and store what it prints to stdout, after the command.

    Benchmarks print their command first, with all options. It is then not repeated.

    Args:
        name: the name of the block on a page.
        command: the program and its arguments.
        directory: the directory of the result files.

    Raises:
        CalledProcessError: the command failed.
    """
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    prints_command = done.stdout.split()[:4] == list(command[:4])
    text = done.stdout if prints_command else f"$ {shlex.join(command)}\n\n{done.stdout}"
    write_atomic(directory / f"{name}.txt", text.encode())


def render_output(name: str, directory: Path, paragraph: str | None = None) -> str:
    """Return the stored output of a command as Markdown.

    Args:
        name: the name of the block.
        directory: the directory of the result files.
        paragraph: the first words of the only paragraph to return. None: the whole output.

    Raises:
        KeyError: no paragraph begins with these words, or several do.
        OSError: the output is not stored.
    """
    text = (directory / f"{name}.txt").read_text().rstrip("\n")
    if paragraph:
        found = [part for part in text.split("\n\n") if part.startswith(paragraph)]
        if len(found) != 1:
            raise KeyError(f"{len(found)} paragraphs of {name}.txt begin with {paragraph!r}, expected one")
        (text,) = found
    return "\n".join(["```text", *(line.rstrip() for line in text.splitlines()), "```\n"])


def update_page(text: str, directory: Path) -> str:
    """Return a page with all its blocks written again.

    Args:
        text: the page.
        directory: the directory of the result files.

    Raises:
        KeyError: the page names an experiment that does not exist.
        ValueError: a block has no end.
        OSError: the page names an output that is not stored.
    """
    experiments = load_experiments()
    by_name = {experiment.name: experiment for experiment in experiments}

    def replace_block(match: re.Match[str]) -> str:
        name = match["name"]
        if match["kind"] == "table":
            content = render_table(by_name[name], directory)
        elif match["kind"] == "output":
            content = render_output(name, directory, match["paragraph"])
        else:
            content = render_overview([e for e in experiments if e.paper == name], directory)
        return f"{match[1]}\n{content}\n{END}"

    if len(BLOCK.findall(text)) != len(re.findall(START, text)):
        raise ValueError(f"a block has no end, expected the line {END} after it")
    return BLOCK.sub(replace_block, text)


def list_pages() -> list[Path]:
    """Return the pages of docs/ that have blocks."""
    return [path for path in sorted((ROOT / "docs").rglob("*.md")) if re.search(START, path.read_text())]


def main(arguments: Sequence[str]) -> None:
    """Write all pages again, and print the names of those that changed.

    Args:
        arguments: nothing, or `record`, the name of an output, and a command to run first.
    """
    if arguments:
        if arguments[0] != "record" or len(arguments) < 3:
            sys.exit(f"arguments are {shlex.join(arguments)}, expected none, or: record NAME COMMAND...")
        record_output(arguments[1], arguments[2:], ROOT / RESULTS_DIRECTORY)
    pictures = draw_pictures(ROOT / RESULTS_DIRECTORY)
    for name, text in pictures.items():
        write_atomic(ROOT / "docs" / name, text.encode())
    for path in (ROOT / "docs" / "assets" / "papers").iterdir():
        if path.relative_to(ROOT / "docs") not in pictures:
            path.unlink()
    for path in list_pages():
        before = path.read_text()
        after = update_page(before, ROOT / RESULTS_DIRECTORY)
        if after != before:
            path.write_text(after)
            sys.stdout.write(f"{path.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])

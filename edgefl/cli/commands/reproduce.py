"""`edgefl reproduce`: runs the papers' experiments, and compares figures and claims with the papers."""

import json
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from edgefl.base.errors import ConfigError, DivergedError
from edgefl.base.system.files import to_json_value, write_atomic
from edgefl.base.system.host import describe_machine, format_command_line, read_versions
from edgefl.base.system.progress import Progress
from edgefl.base.system.signals import explain_interrupt
from edgefl.lab.reproduce import outcomes
from edgefl.lab.reproduce.claims import VERDICTS
from edgefl.lab.reproduce.experiment import (
    EXPERIMENT_SCALES,
    PAPERS,
    Experiment,
    ExperimentScale,
    find_experiment,
    select_experiments,
)
from edgefl.lab.reproduce.report import ExperimentReport, plot_curves, plot_report, to_csv, to_json, to_text
from edgefl.lab.reproduce.results import (
    RESULTS_DIRECTORY,
    SeedResult,
    create_results_directory,
    iterate_missing,
    read_results,
)
from edgefl.lab.reproduce.run import average_curves, list_experiments, make_report, play_seed, select_pictured
from edgefl.lab.reproduce.stage import LockedError, StageRunner
from edgefl.learning.algorithms.registry import REGISTRY

OUTCOMES = "outcomes"
RUNS = Path("runs") / "reproduce"
CONTINUE = "the same command continues"


@click.command(short_help="Run a paper's experiment and compare the figures.")
@click.argument("name", type=click.Choice([*PAPERS, OUTCOMES]), required=False)
@click.option(
    "--table", default="", help="Table or figure, see --list  [default: the paper's first in --list]"
)
@click.option(
    "--reduced",
    is_flag=True,
    help="Minutes on two cores, but hours for `outcomes`. This is the default.",
)
@click.option("--half", is_flag=True, help="The paper's set-up with fewer rounds or epochs.")
@click.option(
    "--full",
    is_flag=True,
    help="The sizes of the paper: hours. The report lists the differences from the paper.",
)
@click.option(
    "--smoke",
    is_flag=True,
    help="About a minute, to check that everything runs. The figures mean little.",
)
@click.option(
    "--seeds", type=click.IntRange(1, 20), default=1, show_default=True, help="Number of seeds: 1, 2, ..."
)
@click.option(
    "--list",
    "show_list",
    is_flag=True,
    help="List all tables and figures with their results, or those of NAME and --table, and exit.",
)
@click.option(
    "--next",
    "run_next",
    is_flag=True,
    help="Run the first planned seed that has no result and that no other process runs. "
    "NAME and --table limit the choice.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Output directory. Finished stages in it are reused. With --next, each experiment has a directory "
    "in it  [default: runs/reproduce/NAME-SCALE]",
)
@click.option(
    "--results",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory of result files, one per seed. --smoke and --model use OUT/results  "
    "[default: docs/results/runs if it exists, else runs/reproduce/results]",
)
@click.option(
    "--algorithm",
    "algorithms",
    multiple=True,
    type=click.Choice(sorted(REGISTRY)),
    metavar="NAME",
    help="With `outcomes`, run only this algorithm, without verdicts. May be repeated.",
)
@click.option(
    "--model",
    "model_file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A .keras file, such as a pretrained model. Its model and weights replace the federated model of "
    "every stage. Further experts are drawn as usual. The results go to OUT/results.",
)
@click.option("--processes", type=click.IntRange(1, 256), help="Client processes  [default: one per core]")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print JSON: the report, or with --list an array. Progress goes to stderr.",
)
def reproduce(
    name: str | None,
    table: str,
    reduced: bool,
    half: bool,
    full: bool,
    smoke: bool,
    seeds: int,
    show_list: bool,
    run_next: bool,
    out: Path | None,
    results: Path | None,
    algorithms: tuple[str, ...],
    model_file: Path | None,
    processes: int | None,
    as_json: bool,
) -> None:
    """Run an experiment of a paper. Print the paper's figures, the measured ones, and verdicts on the claims.

    An interrupted experiment continues with the same command. Finished parts are not run again. Each seed
    leaves a small result file, which can be copied to another machine.

    `outcomes` is not from a paper. It runs all algorithms except fedbn with default settings on nine
    federations of real data, and shows how good the final models of the devices are. With three seeds it
    takes two to three hours on two cores.

    \b
    Example:
      edgefl reproduce --list
      edgefl reproduce pfl-moe --reduced --seeds 3
      edgefl reproduce clustered --table figure-6-3-tasks --full
      edgefl reproduce --next
      edgefl reproduce outcomes --seeds 3
    """
    chosen = {"reduced": reduced, "half": half, "full": full, "smoke": smoke}
    scales = [scale for scale in EXPERIMENT_SCALES if chosen[scale]]
    if len(scales) > 1:
        raise ConfigError(f"--{' and --'.join(scales)} exclude each other; pass only one")
    if results and (model_file or smoke or name == OUTCOMES):
        option = f"--{'model' if model_file else 'smoke'}"
        reason = f"{OUTCOMES} has no result files" if name == OUTCOMES else f"{option} writes to OUT/results"
        raise ConfigError(f"--results is {results}, but {reason}; leave --results out")
    if results is None:
        results = RESULTS_DIRECTORY if RESULTS_DIRECTORY.is_dir() else RUNS / "results"
    processes = processes or os.cpu_count() or 1
    if name == OUTCOMES and (show_list or run_next or table):
        option = "--list" if show_list else "--next" if run_next else "--table"
        raise ConfigError(f"{option} is for the papers, received {OUTCOMES}; leave {option} out")
    if algorithms and (name != OUTCOMES or show_list or run_next):
        raise ConfigError(
            f"--algorithm is for {OUTCOMES}, received {name or '--list or --next'}; leave it out"
        )
    if model_file and (name in (None, OUTCOMES) or show_list or run_next):
        raise ConfigError(
            f"--model is for one experiment, received {name or 'no paper'}; leave it out, or name a paper"
        )
    if model_file and model_file.suffix != ".keras":
        raise ConfigError(f"--model is {model_file}, expected a .keras file; save the model with Keras")
    if show_list and run_next:
        raise ConfigError("--list and --next exclude each other; leave one out")
    if show_list or run_next:
        _refuse_size("--list" if show_list else "--next", scales)
    if show_list:
        _print_list(select_experiments(name, table), results, as_json)
        return
    if run_next:
        _run_next(select_experiments(name, table), out, results, processes, as_json)
        return
    scale = scales[0] if scales else "reduced"
    if name is None:
        raise ConfigError(f"no paper, expected one of {', '.join([*PAPERS, OUTCOMES])}, or --list or --next")
    if name == OUTCOMES:
        out = out or Path("runs") / f"{name}-{scale}"
        _run_outcomes(scale, seeds, algorithms, out, processes, as_json)
        return
    experiment = find_experiment(name, table)
    if model_file:
        experiment = replace(experiment, model_file=str(model_file))
    with_model = f"-{model_file.stem}" if model_file else ""
    out = out or RUNS / f"{experiment.name}-{scale}{with_model}"
    results = out / "results" if scale == "smoke" or model_file else results
    played = _play_seeds(experiment, scale, range(1, seeds + 1), out, results, processes)
    _report_seeds(experiment, scale, played, out, as_json)


def _refuse_size(option: str, scales: Sequence[str]) -> None:
    """Refuse a scale or a number of seeds beside an option that shows or chooses them itself."""
    has_seeds = click.get_current_context().get_parameter_source("seeds") is ParameterSource.COMMANDLINE
    if received := [*scales, *(["seeds"] if has_seeds else [])]:
        raise ConfigError(
            f"{option} is for all scales and planned seeds, received --{received[0]}; leave it out"
        )


def _print_list(experiments: Sequence[Experiment], results: Path, as_json: bool) -> None:
    entries = list_experiments(experiments, results)
    if as_json:
        click.echo(json.dumps(entries, indent=1))
        return
    click.echo("\n\n".join([*map(_format_entry, entries), _format_sum(entries)]))


def _format_sum(entries: Sequence[Mapping[str, Any]]) -> str:
    """Return the core-hours of all experiments, and how many claims have each verdict."""
    spent, planned = (sum(entry[key] for entry in entries) for key in ("core_hours", "planned_core_hours"))
    verdicts = Counter(row["verdict"] for entry in entries for row in entry["claims"])
    counts = ", ".join(f"{verdicts[verdict]} {verdict}" for verdict in VERDICTS if verdicts[verdict])
    return f"together: {_format_part(spent, planned, '.1f')} core-hours; claims: {counts}"


def _format_entry(entry: Mapping[str, Any]) -> str:
    """Return the lines of one experiment: its command, its state, and a verdict on each claim."""
    state = entry["out_of_reach"]
    if not state:
        seeds = _format_part(entry["seeds"], entry["planned_seeds"], "d")
        hours = _format_part(entry["core_hours"], entry["planned_core_hours"], ".1f")
        state = f"{seeds} seeds, {hours} core-hours"
    name = entry["command"] or entry["experiment"].replace(".", " --table ", 1)
    lines = [name, f"  {entry['item']}: {state}"]
    for row in entry["claims"]:
        measured = f"; here {row['ours']}" if row["ours"] else ""
        lines += [f"  {row['verdict']:20} {row['claim']}", f"{'':22} paper: {row['paper']}{measured}"]
    return "\n".join(lines)


def _format_part(value: float, planned: float, spec: str) -> str:
    return f"{value:{spec}} of {planned:{spec}}" if planned else f"{value:{spec}}"


def _run_next(
    experiments: Sequence[Experiment], out: Path | None, results: Path, processes: int, as_json: bool
) -> None:
    busy = diverged = 0
    for experiment, scale, seed in iterate_missing(results, experiments):
        click.echo(f"next: {experiment.name} --{scale}, seed {seed}", err=True)
        directory = (out or RUNS) / f"{experiment.name}-{scale}"
        try:
            _play_seeds(experiment, scale, [seed], directory, results, processes)
        except LockedError as error:
            click.echo(f"skipped: {error}", err=True)
            busy += 1
            continue
        except DivergedError as error:
            click.echo(f"skipped: {error}", err=True)
            diverged += 1
            continue
        _report_seeds(experiment, scale, read_results(results, experiment, scale), directory, as_json)
        return
    counts = {"that other processes run": busy, "that diverged": diverged}
    others = " and ".join(f"{count} {state}" for state, count in counts.items() if count)
    click.echo(
        f"all planned seeds have a result in {results}{', except ' if others else ''}{others}", err=as_json
    )
    if as_json:
        click.echo("{}")


def _play_seeds(
    experiment: Experiment, scale: str, seeds: Sequence[int], out: Path, results: Path, processes: int
) -> list[SeedResult]:
    """Play the seeds that have no result yet, and return the results of all."""
    experiment.find_scale(scale)
    create_results_directory(results)
    played = []
    with explain_interrupt(CONTINUE), Progress() as progress:
        for seed in seeds:
            with StageRunner(
                out=out, command=format_command_line(), processes=processes, progress=progress, seed=seed
            ) as runner:
                played.append(play_seed(experiment, scale, seed, runner, results))
    return played


def _report_seeds(
    experiment: Experiment, scale: str, results: Sequence[SeedResult], out: Path, as_json: bool
) -> None:
    report = make_report(experiment, scale, results, _describe_run())
    _print_report(report, out, as_json, pictured=select_pictured(experiment, report))
    if curves := average_curves(results):
        with suppress(ModuleNotFoundError):  # _print_report has named the missing extra
            plot_curves(f"{experiment.name} ({scale})", curves, out / "curves.png")


def _run_outcomes(
    scale: ExperimentScale,
    seeds: int,
    algorithms: Sequence[str],
    out: Path,
    processes: int,
    as_json: bool,
) -> None:
    if scale not in outcomes.OUTCOME_SCALES:
        raise ConfigError(f"{OUTCOMES} has no scale --{scale}, expected --reduced or --smoke")
    began = time.monotonic()
    results = []
    with (
        explain_interrupt(CONTINUE),
        Progress() as progress,
        StageRunner(out=out, command=format_command_line(), processes=processes, progress=progress) as runner,
    ):
        for seed in range(1, seeds + 1):
            stages = outcomes.select_stages(scale, seed, algorithms)
            results.append(runner.play_all(stages, f"seed {seed} of {seeds}"))
    note = _describe_run()
    report = ExperimentReport(
        experiment=OUTCOMES,
        scale=scale,
        seeds=tuple(range(1, seeds + 1)),
        figures=outcomes.figures(results),
        verdicts=() if algorithms else outcomes.verdicts(scale, results),
        seconds=round(time.monotonic() - began, 1),
        note=note,
    )
    pictured = replace(report, figures=outcomes.choose_plotted_figures(results))
    versions = ", ".join(f"{name} {version}" for name, version in note["versions"].items())
    table = f"{outcomes.format_results(results)}\n\n{note['machine']}; {versions}"
    _print_report(report, out, as_json, table, pictured)


def _describe_run() -> dict[str, Any]:
    return {"command": format_command_line(), "versions": read_versions(), "machine": describe_machine()}


def _print_report(
    report: ExperimentReport,
    out: Path,
    as_json: bool,
    table: str = "",
    pictured: ExperimentReport | None = None,
) -> None:
    """Write report.json, .csv and .png, and print the report.

    Args:
        out: the directory of the files.
        as_json: whether to print JSON.
        table: a table to print instead of the figures.
        pictured: the report with the figures of the picture. None shows all.
    """
    text = json.dumps(to_json_value(to_json(report)), indent=1, allow_nan=False)
    out.mkdir(parents=True, exist_ok=True)
    write_atomic(out / "report.json", (text + "\n").encode())
    write_atomic(out / "report.csv", to_csv(report).encode())
    try:
        plot_report(pictured or report, out / "report.png")
    except ModuleNotFoundError as error:
        click.echo(f"no picture: {error}; pip install -e '.[plots]'", err=True)
    parts = [table, to_text(replace(report, figures=())) if table else to_text(report)]
    parts.append(f"report   {out / 'report.json'}, .csv, .png")
    click.echo(text if as_json else "\n\n".join(filter(None, parts)))

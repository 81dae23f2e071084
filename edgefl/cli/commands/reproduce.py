"""`edgefl reproduce`: runs a paper's experiment, compares the figures, and checks the paper's claims."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import click

from edgefl.errors import ConfigError
from edgefl.reproduce import EXPERIMENTS, load_experiment
from edgefl.reproduce.report import ExperimentReport, plot_report, to_csv, to_json, to_text
from edgefl.reproduce.stage import ExperimentScale, StageRunner
from edgefl.system.files import to_json_value, write_atomic
from edgefl.system.host import describe_machine, format_command_line, read_versions
from edgefl.system.progress import Progress


@click.command(short_help="Run a paper's experiment and compare the figures.")
@click.argument("name", type=click.Choice(list(EXPERIMENTS)))
@click.option(
    "--reduced",
    "scale",
    flag_value="reduced",
    default="reduced",
    help="Minutes on two cores, but hours for `outcomes`. This is the default.",
)
@click.option(
    "--full",
    "scale",
    flag_value="full",
    help="The sizes of the paper: hours. The report lists the differences from the paper.",
)
@click.option(
    "--smoke",
    "scale",
    flag_value="smoke",
    help="About a minute, to check that everything runs. The figures mean little.",
)
@click.option(
    "--seeds", type=click.IntRange(1, 20), default=1, show_default=True, help="Number of seeds: 1, 2, ..."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Output directory. Finished stages in it are reused  [default: runs/NAME-SCALE]",
)
@click.option("--processes", type=click.IntRange(1, 256), help="Client processes  [default: one per core]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object. Progress goes to stderr.")
def reproduce(
    name: str, scale: ExperimentScale, seeds: int, out: Path | None, processes: int | None, as_json: bool
) -> None:
    """Run a paper's experiment. Print the figures of the paper, of a reference implementation and of this
    run.

    An interrupted experiment continues with the same command. Finished parts are not run again.

    `outcomes` is not from a paper. It runs every algorithm with default settings on nine federations of real
    data, and shows how good the final models of the devices are. With three seeds it takes two to three hours
    on two cores.

    \b
    Example:
      edgefl reproduce pfl-moe --reduced --seeds 3
      edgefl reproduce outcomes --seeds 3
    """
    out = out or Path("runs") / f"{name}-{scale}"
    module = load_experiment(name)
    began = time.monotonic()
    if refusal := getattr(module, "REFUSALS", {}).get(scale):
        raise ConfigError(f"{name} --{scale}: {refusal}")
    results = []
    with (
        Progress() as progress,
        StageRunner(out, format_command_line(), processes or os.cpu_count() or 1, progress) as stages,
    ):
        for seed in range(1, seeds + 1):
            seed_stages = module.stages(scale, seed)
            labels = [
                f"seed {seed} of {seeds}, {stage.name} ({i + 1} of {len(seed_stages)})"
                for i, stage in enumerate(seed_stages)
            ]
            results.append(
                {
                    stage.name: stages.play(stage, label)
                    for stage, label in zip(seed_stages, labels, strict=True)
                }
            )
    figures = module.figures(scale, results)
    note = {"command": format_command_line(), "versions": read_versions(), "machine": describe_machine()}
    numbers = tuple(range(1, seeds + 1))
    seconds = round(time.monotonic() - began, 1)
    verdicts = module.verdicts(scale, results)
    report = ExperimentReport(
        name, scale, numbers, figures, verdicts, seconds, note, module.SETUP_NOTES.get(scale, "")
    )
    text = json.dumps(to_json_value(to_json(report)), indent=1, allow_nan=False)
    write_atomic(out / "report.json", (text + "\n").encode())
    write_atomic(out / "report.csv", to_csv(report).encode())
    try:
        pictured = (
            module.choose_plotted_figures(scale, results)
            if hasattr(module, "choose_plotted_figures")
            else figures
        )
        plot_report(replace(report, figures=pictured), out / "report.png")
    except ModuleNotFoundError as error:
        click.echo(f"no picture: {error}; pip install -e '.[plots]'", err=True)
    table_text = module.format_results(results) + "\n\n" if hasattr(module, "format_results") else ""
    shown = table_text + to_text(replace(report, figures=()) if table_text else report)
    click.echo(text if as_json else f"{shown}\n\nreport   {out / 'report.json'}, .csv, .png")

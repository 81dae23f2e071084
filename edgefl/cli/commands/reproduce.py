"""`edgefl reproduce`: a paper's experiment, its figures beside ours, and the verdict of each line that must
hold.
"""

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import click

from edgefl.errors import ConfigError
from edgefl.reproduce import EXPERIMENTS, experiment
from edgefl.reproduce.report import Report, plot, to_csv, to_json, to_text
from edgefl.reproduce.stage import Scale, Stages
from edgefl.system.files import finite, write_atomic
from edgefl.system.host import command_line, machine, versions
from edgefl.system.progress import Telling


@click.command(short_help="A paper's experiment beside its figures.")
@click.argument("name", type=click.Choice(list(EXPERIMENTS)))
@click.option(
    "--reduced",
    "scale",
    flag_value="reduced",
    default="reduced",
    help="Minutes on two cores, for outcomes hours (the default).",
)
@click.option(
    "--full",
    "scale",
    flag_value="full",
    help="The paper's sizes: hours. The report says what differs from the paper.",
)
@click.option(
    "--smoke",
    "scale",
    flag_value="smoke",
    help="A minute, to see that all of it runs; its figures say little.",
)
@click.option("--seeds", type=click.IntRange(1, 20), default=1, show_default=True, help="Seeds 1, 2, ...")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Stages done here are read  [default: runs/NAME-SCALE]",
)
@click.option("--processes", type=click.IntRange(1, 256), help="Client processes  [default: one a core]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; progress goes to stderr.")
def reproduce(
    name: str, scale: Scale, seeds: int, out: Path | None, processes: int | None, as_json: bool
) -> None:
    """Run a paper's experiment and print its figures, those of a reference implementation, and what was
    measured here.

    An interrupted experiment continues with the same command. Finished parts are not run again.

    `outcomes` is not from a paper. It runs every algorithm with default settings on nine federations of real
    data and shows how good the models are that devices take away. With three seeds it takes two to three
    hours on two cores.

    \b
    Example:
      edgefl reproduce pfl-moe --reduced --seeds 3
      edgefl reproduce outcomes --seeds 3
    """
    out = out or Path("runs") / f"{name}-{scale}"
    module = experiment(name)
    began = time.monotonic()
    if refusal := getattr(module, "REFUSED", {}).get(scale):
        raise ConfigError(f"{name} --{scale}: {refusal}")
    results = []
    with Telling() as tell, Stages(out, command_line(), processes or os.cpu_count() or 1, tell) as stages:
        for seed in range(1, seeds + 1):
            wanted = module.stages(scale, seed)
            labels = [
                f"seed {seed} of {seeds}, {stage.name} ({i + 1} of {len(wanted)})"
                for i, stage in enumerate(wanted)
            ]
            results.append(
                {stage.name: stages.play(stage, label) for stage, label in zip(wanted, labels, strict=True)}
            )
    found = module.figures(scale, results)
    note = {"command": command_line(), "versions": versions(), "machine": machine()}
    numbers = tuple(range(1, seeds + 1))
    seconds = round(time.monotonic() - began, 1)
    verdicts = module.verdicts(scale, results)
    report = Report(name, scale, numbers, found, verdicts, seconds, note, module.ABOUT.get(scale, ""))
    text = json.dumps(finite(to_json(report)), indent=1, allow_nan=False)
    write_atomic(out / "report.json", (text + "\n").encode())
    write_atomic(out / "report.csv", to_csv(report).encode())
    try:
        pictured = module.in_picture(scale, results) if hasattr(module, "in_picture") else found
        plot(replace(report, figures=pictured), out / "report.png")
    except ModuleNotFoundError as error:
        click.echo(f"no picture: {error}; pip install -e '.[plots]'", err=True)
    own = module.table(results) + "\n\n" if hasattr(module, "table") else ""
    shown = own + to_text(replace(report, figures=()) if own else report)
    click.echo(text if as_json else f"{shown}\n\nreport   {out / 'report.json'}, .csv, .png")

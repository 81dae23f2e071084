"""`edgefl tune`."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from edgefl.base.config import load_config
from edgefl.base.system.format import align_columns, format_percent
from edgefl.base.system.progress import Progress
from edgefl.base.system.signals import explain_interrupt


def format_trials(result: Any, steps: int) -> str:
    """Return one line per trial of a stage: options, score in per cent, steps, seconds and status.

    A star marks the best trial.

    Args:
        result: the result of a stage, see `edgefl.lab.tune`.
        steps: number of steps of a full trial.
    """
    names = list(dict.fromkeys(name for trial in result.trials for name in trial["options"]))
    rows: list[tuple[str, ...]] = [("trial", *names, "score", "steps", "s", "ended")]
    has_best = False
    for trial in result.trials:
        options = [f"{trial['options'][name]}" if name in trial["options"] else "as given" for name in names]
        is_best = not has_best and trial["ended"] == "full" and trial["score"] == result.score
        has_best |= is_best
        rows.append(
            (
                f"{trial['trial']}{' *' if is_best else ''}",
                *options,
                format_percent(trial["score"], 2, ""),
                f"{trial['step']}/{steps}",
                f"{trial['seconds']:.1f}",
                trial["ended"],
            )
        )
    return align_columns(rows)


@click.command(short_help="Search for the best options of Adaptive Expert Models.")
@click.argument("config_file", metavar="CONFIG", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--stages",
    default="all",
    show_default=True,
    help="Stages to run, such as 1,2. 1: cluster, 2: local, 3: gate, 4: exploration.",
)
@click.option(
    "--samples",
    type=click.IntRange(1),
    default=16,
    show_default=True,
    help="Trials per stage. The first trial uses CONFIG unchanged.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    help="Output directory. An existing search is resumed.",
)
@click.option(
    "--processes", type=click.IntRange(1, 256), default=1, show_default=True, help="Parallel trials."
)
@click.option(
    "--search",
    "kind",
    type=click.Choice(["asha", "random"]),
    default="asha",
    show_default=True,
    help="asha stops poor trials early.",
)
@click.option("--seed", type=click.IntRange(0), help="Random seed  [default: the configuration's]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object. Progress goes to stderr.")
def tune(
    config_file: Path,
    stages: str,
    samples: int,
    out: Path,
    processes: int,
    kind: str,
    seed: int | None,
    as_json: bool,
) -> None:
    """Search for the best options of Adaptive Expert Models in four stages. Each stage uses the results of
    the stages before it.

    Trials partition the data evenly (IID) and are measured on held-out training samples. No test sample is
    read. Trials run in Ray Tune, on this machine or on the cluster at RAY_ADDRESS.

    The file federation.toml in --out contains the best options and the partition of CONFIG. Run it with
    `edgefl simulate`.

    \b
    Example:
      edgefl tune federation.toml --samples 16 --processes 2 --out tuned
    """
    from edgefl.lab.tune.stages import parse_stages

    chosen_stages = parse_stages(stages)
    config = load_config(config_file)
    if seed is not None:
        config = replace(config, seed=seed)
    from edgefl.lab.tune.stagewise import tune_federation

    with explain_interrupt("the same command continues"), Progress() as progress:
        results, path = tune_federation(
            config, out, chosen_stages, samples, processes=processes, asha=kind == "asha", report=progress
        )
    if as_json:
        click.echo(json.dumps({"stages": [asdict(result) for result in results], "federation": str(path)}))
        return
    for stage, result in zip(chosen_stages, results, strict=True):
        best = ", ".join(f"{name} = {value}" for name, value in result.best.items()) or "as given"
        click.echo(
            f"\nstage {stage.number}, {stage.description}: "
            f"{best}\n\n{format_trials(result, stage.count_steps(config))}"
        )
    click.echo(f"\nbest  {path}")

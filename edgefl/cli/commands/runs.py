"""`edgefl simulate` and `edgefl compare`."""

import json
import time
import tomllib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from edgefl.base.config import FederationConfig, load_config, with_simulated_clients
from edgefl.base.errors import ConfigError
from edgefl.base.round_scalars import extract_figure_scalars
from edgefl.base.system.host import format_command_line
from edgefl.base.system.progress import Progress
from edgefl.base.system.signals import explain_interrupt
from edgefl.learning.privacy.accountant import limit_to_budget
from edgefl.protocol.server.config_check import check_config
from edgefl.simulation.clients import drop_mixture
from edgefl.simulation.engines.base import OpenEngine
from edgefl.simulation.engines.processes import choose_local_engine
from edgefl.simulation.runs import layer_similarity
from edgefl.simulation.runs.client_directories import make_state_writer
from edgefl.simulation.runs.directory import RunDirectory
from edgefl.simulation.runs.pipeline import (
    PartitionedDataset,
    open_dataset_with_progress,
    play_run,
)
from edgefl.simulation.runs.progress import RoundProgress
from edgefl.simulation.runs.summary import read_summary, summarize_run, write_results
from edgefl.simulation.runs.table import format_comparison, format_result
from edgefl.simulation.simulate import check_simulated
from edgefl.watch.loggers import LOG_HELP, check_log, describe_run, open_logs


def _choose_engine(engine: str, processes: int) -> OpenEngine:
    if engine == "local":
        return choose_local_engine(processes)
    from edgefl.simulation.engines.ray import RayEngine

    return partial(RayEngine, count=processes)


def _save_layers(
    run: RunDirectory, config: FederationConfig, shared: PartitionedDataset, epochs: int
) -> None:
    from edgefl.program.learner.litert import LiteRTLearner

    plan_and_weights = run.read_plan()
    assert plan_and_weights is not None
    truth = {client: client_partition.truth for client, client_partition in shared.client_partitions.items()}
    similarities = layer_similarity.compare_layers(
        LiteRTLearner(plan_and_weights[0]), plan_and_weights[1], shared.shards, epochs, truth, config.seed
    )
    run.write(run.files.layers, json.dumps(similarities, allow_nan=False) + "\n")


def _draw(function: Callable[..., None], *arguments: Any) -> bool:
    try:
        function(*arguments)
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        click.echo("no pictures: matplotlib is not installed; pip install -e '.[plots]'", err=True)
        return False
    return True


@click.command(short_help="Simulate a federation of many clients.")
@click.argument("config_file", metavar="CONFIG", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--out", type=click.Path(path_type=Path), help="Output directory  [default: runs/NAME-DATE-TIME]"
)
@click.option(
    "--processes",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    help="Client processes. The result does not depend on their number.",
)
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Where clients run. ray uses the Ray cluster at RAY_ADDRESS.",
)
@click.option("--seed", type=click.IntRange(0), help="Random seed  [default: the configuration's]")
@click.option("--resume", is_flag=True, help="Continue an interrupted run.")
@click.option(
    "--mixtures",
    is_flag=True,
    help="Write each client's mixture and samples to mixtures/CLIENT/, for `edgefl export --state`.",
)
@click.option(
    "--evaluate-every",
    type=click.IntRange(0),
    default=0,
    metavar="ROUNDS",
    help="Measure every client and the server's models every ROUNDS rounds, for accuracy curves  "
    "[default: only at the end]",
)
@click.option(
    "--layers-over",
    type=click.IntRange(0, 100),
    default=0,
    metavar="EPOCHS",
    help="Also train each client alone for EPOCHS epochs, and record the similarity of their layers after "
    "each epoch.",
)
@click.option("--log", "logs", multiple=True, help=LOG_HELP)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON. Progress goes to stderr.")
def simulate(
    config_file: Path,
    out: Path | None,
    processes: int,
    engine: str,
    seed: int | None,
    resume: bool,
    mixtures: bool,
    evaluate_every: int,
    layers_over: int,
    logs: tuple[str, ...],
    as_json: bool,
) -> None:
    """Simulate the federation of a TOML file on this machine, with any algorithm, model, data set and
    partition.

    With a table [fleet] the run uses virtual time: devices have different speeds, come, go and fail. Such a
    run supports asynchronous rounds, over-selection and late updates.

    \b
    Example:
      edgefl simulate federation.toml --out runs/x --processes 2
    """
    config = load_config(config_file)
    if seed is not None:
        config = replace(config, seed=seed)
    if resume and out is None:
        raise ConfigError("--resume without --out; give the directory of the run to continue")
    for log_option in logs:
        check_log(log_option)
    for warning in check_config(with_simulated_clients(config), config.partition.num_clients):
        click.echo(f"warning: {warning}", err=True)
    check_simulated(config)
    if config.fleet and evaluate_every:
        raise ConfigError(
            "--evaluate-every cannot be used in virtual time; leave it out, or remove the table [fleet]"
        )
    out = out or Path("runs") / time.strftime(f"{config.name}-%Y%m%d-%H%M%S")
    if layers_over:
        layer_similarity.check_layers(config.algorithm, config.partition.num_clients)
    if "data" not in tomllib.loads(config_file.read_text()):
        click.echo(
            f"no [data] in {config_file}: using {config.data.name}, images that come with scikit-learn; "
            "name your data set in [data]",
            err=True,
        )
    with (
        explain_interrupt("start again" if config.fleet else f"continue with --resume --out {out}"),
        Progress() as progress,
        open_dataset_with_progress(config, progress) as shared,
    ):
        config = limit_to_budget(config)
        run = RunDirectory(out, config, format_command_line(), resume=resume)
        if run.state is not None:
            progress(f"{out}: {run.state.round - 1} of {config.rounds} rounds are done")
        key = f"{out.resolve()} {run.read_note()['started']}"
        resumed = run.state is not None
        with open_logs(logs, config.name, key=key, resumed=resumed, about=describe_run(config)) as log:
            simulation = play_run(
                run,
                config,
                shared,
                open_engine=_choose_engine(engine, processes),
                progress=RoundProgress(config.rounds, progress),
                keep_result=make_state_writer(run, config, shared) if mixtures else drop_mixture,
                evaluate_every=evaluate_every,
                log=log,
            )
            if layers_over:
                _save_layers(run, config, shared, layers_over)
            records = run.read_records()
            summary = summarize_run(config, simulation, records, shared, run.read_measured_values())
            log(len(records), extract_figure_scalars(summary["figures"]))
            log.write_verdict(len(records), summary["verdict"])
    summary = {**summary, **run.read_origin()}
    write_results(run, simulation, summary)
    from edgefl.watch.report.plots import plot_run

    has_picture = _draw(plot_run, summary, records, run.files.picture)
    if as_json:
        click.echo(json.dumps(summary, allow_nan=False))
        return
    if mixtures:
        first = run.files.mixture(client=min(simulation.results))
        click.echo(
            f"\n{len(simulation.results)} states in {run.files.mixtures}: edgefl export --state {first} -o "
            "model/"
        )
    click.echo(
        "\n"
        + format_result(summary)
        + f"\n\nsummary  {run.files.summary}"
        + (f"\npicture  {run.files.picture}" if has_picture else "")
    )


@click.command(short_help="Compare runs.")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Draw the distributions over clients into this PNG file.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def compare(runs: tuple[Path, ...], out: Path | None, as_json: bool) -> None:
    """Compare runs: mean, standard deviation and 10th percentile over clients, bytes and seconds.

    A run is the directory of a simulation or of an aggregator.

    \b
    Example:
      edgefl compare runs/a runs/b --out compared.png
    """
    summaries = [read_summary(run) for run in runs]
    names = (
        [run.name for run in runs]
        if len({run.name for run in runs}) == len(runs)
        else [str(run) for run in runs]
    )
    if as_json:
        click.echo(json.dumps(dict(zip(names, summaries, strict=True))))
    else:
        click.echo(format_comparison(names, summaries))
    if out is not None:
        from edgefl.watch.report.plots import plot_comparison

        if _draw(plot_comparison, names, summaries, out):
            click.echo(f"picture  {out}", err=True)

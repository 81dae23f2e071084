"""`edgefl bench ...`: what training and uploads take, measured on this machine."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from edgefl.bench.device import BENCH_MODELS, run_device_bench
from edgefl.bench.device import render_device_bench as render_device
from edgefl.bench.wire import BENCH_CODECS, run_wire_bench
from edgefl.bench.wire import render_wire_bench as render_wire
from edgefl.system.files import write_atomic
from edgefl.system.progress import Progress
from edgefl.wire.codecs import check_codec


@click.group()
def bench() -> None:
    """Measure training steps and update codecs on this machine.

    Example: edgefl bench device --repeats 3
    """


def print_result(
    result: dict[str, Any], render: Callable[[dict[str, Any]], str], out: Path | None, as_json: bool
) -> None:
    """Print a result as text or JSON, and write the JSON to `out`."""
    text = json.dumps(result, indent=1)
    if out:
        write_atomic(out, text.encode())
    click.echo(text if as_json else render(result))


@bench.command()
@click.option(
    "--repeats",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Pairs of processes a model, of which the medians.",
)
@click.option(
    "--model",
    "models",
    multiple=True,
    type=click.Choice(list(BENCH_MODELS)),
    help="Measure this only (may be given again).",
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Write the JSON there too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def device(repeats: int, models: tuple[str, ...], out: Path | None, as_json: bool) -> None:
    """Peak memory of a training device process and milliseconds a step: LiteRT beside Keras, one thread each.

    \b
    Example:
      edgefl bench device --repeats 3
    """
    with Progress() as progress:
        result = run_device_bench(models or tuple(BENCH_MODELS), repeats, progress)
    print_result(result, render_device, out, as_json)


@bench.command()
@click.option(
    "--codec",
    "codecs",
    multiple=True,
    help=f"Measure this beside fp32 (may be given again)  [default: {', '.join(BENCH_CODECS[1:])}]",
)
@click.option("--rounds", type=click.IntRange(1), default=60, show_default=True, help="Rounds of each run.")
@click.option(
    "--seeds", type=click.IntRange(1, 20), default=3, show_default=True, help="Seeds 1, 2, ... of each codec."
)
@click.option(
    "--data",
    type=click.Choice(["fashion-mnist", "digits"]),
    default="fashion-mnist",
    show_default=True,
    help="The data set.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("runs/wire"),
    show_default=True,
    help="Keeps the runs.",
)
@click.option("--processes", type=click.IntRange(1, 256), help="Client processes  [default: one a core]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def wire(
    codecs: tuple[str, ...],
    rounds: int,
    seeds: int,
    data: str,
    out: Path,
    processes: int | None,
    as_json: bool,
) -> None:
    """Bytes of an update and accuracy after the rounds for each codec of updates, beside fp32.

    \b
    Example:
      edgefl bench wire --codec int8 --rounds 60 --seeds 3
    """
    checked_codecs = tuple(check_codec(codec) for codec in codecs) or BENCH_CODECS
    with Progress() as progress:
        result = run_wire_bench(
            checked_codecs, rounds, seeds, out, processes or os.cpu_count() or 1, data, progress
        )
    print_result(result, render_wire, out / "wire.json", as_json)

"""`edgefl bench`: measures training steps and update codecs on this machine."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from edgefl.base.codecs import CODEC_EXAMPLES, check_codec
from edgefl.base.errors import ConfigError
from edgefl.base.system.files import write_atomic
from edgefl.base.system.progress import Progress
from edgefl.cli.bench.device import BENCH_MODELS, render_plan_bench, run_device_bench, run_plan_bench
from edgefl.cli.bench.device import render_device_bench as render_device

BENCH_CODECS = (*CODEC_EXAMPLES, "fp32+deflate", "int8+deflate", "top-10+deflate")
"""The codecs that `edgefl bench wire` compares by default."""


@click.group()
def bench() -> None:
    """Measure training steps and update codecs on this machine.

    Example: edgefl bench device --repeats 3
    """


def print_result(
    result: dict[str, Any], render: Callable[[dict[str, Any]], str], out: Path | None, as_json: bool
) -> None:
    """Print the result of a benchmark, and write it to a file.

    Args:
        result: the result, a JSON tree.
        render: returns the result as text for a terminal.
        out: the file for the JSON. None writes no file.
        as_json: print the JSON instead of the text.
    """
    text = json.dumps(result, indent=1)
    if out:
        write_atomic(out, text.encode())
    click.echo(text if as_json else render(result))


@bench.command(short_help="Measure training steps and inferences, also on a board.")
@click.option(
    "--repeats",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Runs per model, each with LiteRT and with Keras. The medians are reported.",
)
@click.option(
    "--model",
    "models",
    multiple=True,
    type=click.Choice(list(BENCH_MODELS)),
    metavar="NAME",
    help=f"Measure only this model: {', '.join(BENCH_MODELS)}. Can be repeated.",
)
@click.option(
    "--plan",
    type=click.Path(path_type=Path, file_okay=False),
    help="Measure this plan without Keras, such as STATE/plan of a device that took part in a federation. "
    "TensorFlow is not needed.",
)
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="Also write the JSON to this file."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def device(repeats: int, models: tuple[str, ...], plan: Path | None, out: Path | None, as_json: bool) -> None:
    """Measure peak memory and milliseconds of a training step and of an inference, with one thread.

    Without --plan it compares LiteRT with Keras on built-in models, and with PyTorch if it is installed.
    With --plan it runs on a board, without TensorFlow. The file of --out has the machine, versions and
    figures, and no data, names or addresses of yours. Send it to the project if your board is not on its
    results page.

    \b
    Example:
      edgefl bench device --plan pi-1/plan --out board.json
    """
    if plan is not None and models:
        raise ConfigError("--plan and --model are both given, expected one of them; leave one out")
    with Progress() as progress:
        if plan is not None:
            measured = run_plan_bench(plan, repeats, progress)
            print_result(measured, render_plan_bench, out, as_json)
            return
        result = run_device_bench(models or tuple(BENCH_MODELS), repeats, progress)
    print_result(result, render_device, out, as_json)


@bench.command(short_help="Compare the codecs of updates.")
@click.option(
    "--codec",
    "codecs",
    multiple=True,
    help=f"Compare this codec with fp32. Can be repeated  [default: {', '.join(BENCH_CODECS[1:])}]",
)
@click.option("--rounds", type=click.IntRange(1), default=60, show_default=True, help="Rounds per run.")
@click.option(
    "--seeds",
    type=click.IntRange(1, 20),
    default=3,
    show_default=True,
    help="Number of seeds per codec: 1, 2, ...",
)
@click.option(
    "--data",
    type=click.Choice(["fashion-mnist", "digits"]),
    default="fashion-mnist",
    show_default=True,
    help="Data set.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("runs/wire"),
    show_default=True,
    help="Output directory. Finished runs in it are reused.",
)
@click.option("--processes", type=click.IntRange(1, 256), help="Client processes  [default: one per core]")
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
    """Compare the codecs of updates with fp32: bytes per update, and accuracy after the last round.

    \b
    Example:
      edgefl bench wire --codec int8 --rounds 60 --seeds 3
    """
    from edgefl.lab.wire_bench import render_wire_bench, run_wire_bench

    checked_codecs = tuple(check_codec(codec) for codec in codecs) or BENCH_CODECS
    with Progress() as progress:
        result = run_wire_bench(
            checked_codecs, rounds, seeds, out, processes or os.cpu_count() or 1, data, progress
        )
    print_result(result, render_wire_bench, out / "wire.json", as_json)

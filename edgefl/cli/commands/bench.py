"""`edgefl bench ...`: each figure beside a named peer, measured in the same run."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from edgefl.bench.device import MODELS, run_device_bench
from edgefl.bench.device import render as render_device
from edgefl.bench.firmware import render as render_firmware
from edgefl.bench.firmware import run_firmware_bench
from edgefl.bench.fleet import Sizes, run_fleet_bench
from edgefl.bench.fleet import render as render_fleet
from edgefl.bench.simulate import render, run_simulate_bench
from edgefl.bench.wire import CODECS, run_wire_bench
from edgefl.bench.wire import render as render_wire
from edgefl.system.files import write_atomic
from edgefl.system.progress import Telling
from edgefl.wire.codecs import check_codec

F = TypeVar("F", bound=Callable[..., Any])


@click.group()
def bench() -> None:
    """Measure edgefl beside a named peer, in one run.

    Example: edgefl bench device --repeats 3
    """


def _give(
    result: dict[str, Any], render: Callable[[dict[str, Any]], str], out: Path | None, as_json: bool
) -> None:
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
    type=click.Choice(list(MODELS)),
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
    with Telling() as tell:
        result = run_device_bench(models or tuple(MODELS), repeats, tell)
    _give(result, render_device, out, as_json)


@bench.command()
@click.option(
    "--repeats",
    type=click.IntRange(1),
    default=5,
    show_default=True,
    help="Processes of each peer; the medians are printed.",
)
@click.option(
    "--torch-python",
    help="A Python that has torch, if this one has not.  [default: this one if it has torch]",
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Write the JSON there too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def simulate(repeats: int, torch_python: str | None, out: Path | None, as_json: bool) -> None:
    """Client steps a second beside PyTorch, Keras fit and tf.function, one core each; then one process
    against two, and memory.

    \b
    Example:
      edgefl bench simulate --repeats 5 --torch-python ~/torch/bin/python
    """
    with Telling() as tell:
        result = run_simulate_bench(repeats, torch_python, tell)
    _give(result, render, out, as_json)


@bench.command()
@click.option("--quick", is_flag=True, help="Only the ten clients beside their peers.")
@click.option(
    "--repeats",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Runs of each beside the others; the medians are printed.",
)
@click.option(
    "--workers",
    type=click.IntRange(0),
    default=0,
    help="Run each larger fleet with so many workers too.  [default: not]",
)
@click.option(
    "--flwr-python",
    help="A Python that has flwr, in a virtual environment of its own  [default: Flower is left out]",
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Write the JSON there too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def fleet(
    quick: bool, repeats: int, workers: int, flwr_python: str | None, out: Path | None, as_json: bool
) -> None:
    """Seconds a round, the aggregator's memory and lost messages with 10, 100 and 500 light clients; beside
    bare paho, and Flower.

    A light client has a connection, a certificate and keys of its own and speaks the device's protocol; its
    update is noise.

    \b
    Example:
      edgefl bench fleet --repeats 3 --flwr-python ~/flwr/bin/python
    """
    if quick and workers:
        raise click.UsageError(
            "workers are for the larger fleets, which --quick does not run; leave out --quick or --workers"
        )
    asked = [
        f" --workers {workers}" if workers else "",
        f" --flwr-python {flwr_python}" if flwr_python else "",
    ]
    given = "".join([" --quick" * quick, f" --repeats {repeats}", *asked])
    sizes = Sizes(loads=()) if quick else Sizes(workers=workers)
    with Telling() as tell:
        result = run_fleet_bench(sizes, repeats, flwr_python, f"edgefl bench fleet{given}", tell)
    _give(result, render_fleet, out, as_json)


@bench.command()
@click.option(
    "--codec",
    "codecs",
    multiple=True,
    help=f"Measure this beside fp32 (may be given again)  [default: {', '.join(CODECS[1:])}]",
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
    wanted = tuple(check_codec(codec) for codec in codecs) or CODECS
    with Telling() as tell:
        result = run_wire_bench(wanted, rounds, seeds, out, processes or os.cpu_count() or 1, data, tell)
    _give(result, render_wire, out / "wire.json", as_json)


@bench.command()
@click.option(
    "--samples",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="Held-out samples that all places must agree on.",
)
@click.option(
    "--data",
    type=click.Choice(["fashion-mnist", "digits"]),
    default="fashion-mnist",
    show_default=True,
    help="The data set.",
)
@click.option(
    "--cmsis-nn",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Arm's CMSIS-NN, with the CMSIS core's headers in it.",
)
@click.option(
    "--keep", type=click.Path(path_type=Path, file_okay=False), help="Keep states and exports there."
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Write the JSON there too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def firmware(
    samples: int, data: str, cmsis_nn: Path | None, keep: Path | None, out: Path | None, as_json: bool
) -> None:
    """Flash, RAM and instructions of two mixtures' C on Cortex-M3, M4 and M7, beside TensorFlow Lite Micro's
    arena and CMSIS-NN's kernels.

    \b
    Example:
      edgefl bench firmware --cmsis-nn CMSIS_5
    """
    given = f"--samples {samples} --data {data}" + (" --cmsis-nn PATH" if cmsis_nn else "")
    with Telling() as tell:
        result = run_firmware_bench(samples, data, cmsis_nn, keep, f"edgefl bench firmware {given}", tell)
    _give(result, render_firmware, out, as_json)


def _watching(command: F) -> F:
    """The options of what watches a made-up fleet."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
        click.option(
            "--out", type=click.Path(path_type=Path, dir_okay=False), help="Write the JSON there too."
        ),
        click.option(
            "--seconds",
            type=click.FloatRange(1.0),
            default=60.0,
            show_default=True,
            help="How long to measure.",
        ),
        click.option(
            "--period",
            type=click.FloatRange(0.1),
            default=5.0,
            show_default=True,
            help="Seconds between a device's statuses.",
        ),
        click.option(
            "--devices",
            type=click.IntRange(1, 2000),
            default=500,
            show_default=True,
            help="Simulated devices.",
        ),
    ):
        command = option(command)
    return command


@bench.command()
@_watching
def monitor(devices: int, period: float, seconds: float, out: Path | None, as_json: bool) -> None:
    """Processor time and memory of `edgefl monitor` while hundreds of devices speak.

    \b
    Example:
      edgefl bench monitor --devices 500 --seconds 60
    """
    from edgefl.bench.monitor import render, run_monitor_bench
    from edgefl.bench.monitor_fleet import Fleet

    given = f"edgefl bench monitor --devices {devices} --period {period:g} --seconds {seconds:g}"
    with Telling() as tell:
        result = run_monitor_bench(Fleet(devices=devices, period_s=period), seconds, given, tell)
    _give(result, render, out, as_json)


@bench.command()
@_watching
def dashboard(devices: int, period: float, seconds: float, out: Path | None, as_json: bool) -> None:
    """Processor time and memory of `edgefl dashboard` while hundreds of devices speak and one browser's
    stream is read.

    \b
    Example:
      edgefl bench dashboard --devices 500 --seconds 60
    """
    from edgefl.bench.dashboard import render, run_dashboard_bench
    from edgefl.bench.monitor_fleet import Fleet

    given = f"edgefl bench dashboard --devices {devices} --period {period:g} --seconds {seconds:g}"
    with Telling() as tell:
        result = run_dashboard_bench(Fleet(devices=devices, period_s=period), seconds, given, tell)
    _give(result, render, out, as_json)

"""`python -m tests.benchmarks ...`: edgefl compared with named peers, each pair in one run."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from edgefl.base.errors import EdgeflError
from edgefl.base.system.progress import Progress
from edgefl.cli.bench.device import BENCH_MODELS
from edgefl.cli.commands.bench import print_result
from tests.benchmarks.accuracy.comparison import render as render_accuracy
from tests.benchmarks.accuracy.comparison import run_accuracy_bench
from tests.benchmarks.anomaly.comparison import FEDERATIONS, run_anomaly_bench
from tests.benchmarks.anomaly.comparison import render as render_anomaly
from tests.benchmarks.anomaly.over_mqtt import compare_with_mqtt
from tests.benchmarks.firmware.comparison import render as render_firmware
from tests.benchmarks.firmware.comparison import run_firmware_bench
from tests.benchmarks.firmware.int8 import KINDS, MODELS, run_int8_bench
from tests.benchmarks.firmware.int8 import render as render_int8
from tests.benchmarks.firmware.tuning import render as render_tuning
from tests.benchmarks.firmware.tuning import run_tuning_bench
from tests.benchmarks.fleet.comparison import Sizes, run_fleet_bench
from tests.benchmarks.fleet.comparison import render as render_fleet
from tests.benchmarks.fleet.training import TrainingSizes, run_training_bench
from tests.benchmarks.fleet.training import render as render_training
from tests.benchmarks.regression.comparison import render as render_regression
from tests.benchmarks.regression.comparison import run_regression_bench
from tests.benchmarks.simulate import selection as selection_bench
from tests.benchmarks.simulate.comparison import render as render_simulate
from tests.benchmarks.simulate.comparison import run_simulate_bench
from tests.benchmarks.simulate.evaluation import render as render_evaluation
from tests.benchmarks.simulate.evaluation import run_evaluation_bench
from tests.benchmarks.steps.instructions import render as render_steps
from tests.benchmarks.steps.instructions import run_steps_bench
from tests.benchmarks.structure.observed import render as render_calls
from tests.benchmarks.structure.observed import run_calls_bench
from tests.benchmarks.structure.room_sizes import render_rooms, run_rooms_bench
from tests.benchmarks.watching.dashboard import render as render_dashboard
from tests.benchmarks.watching.dashboard import run_dashboard_bench
from tests.benchmarks.watching.monitor import render as render_monitor
from tests.benchmarks.watching.monitor import run_monitor_bench
from tests.benchmarks.watching.simulated_devices import Fleet

COMMAND = "python -m tests.benchmarks"
F = TypeVar("F", bound=Callable[..., Any])


def _outputs(command: F) -> F:
    """Add the options --out and --json."""
    as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
    path = click.Path(path_type=Path, dir_okay=False)
    return click.option("--out", type=path, help="Write the JSON there too.")(as_json(command))


@click.group()
def benchmarks() -> None:
    """Measure edgefl and compare it with a named peer. Run this in the root of a clone.

    Example: python -m tests.benchmarks fleet --quick
    """


@benchmarks.command()
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
@_outputs
def simulate(repeats: int, torch_python: str | None, out: Path | None, as_json: bool) -> None:
    """Client steps a second, compared with PyTorch, Keras fit and tf.function on one core each. Then one
    process compared with two, and memory.

    \b
    Example:
      python -m tests.benchmarks simulate --repeats 5 --torch-python ~/torch/bin/python
    """
    with Progress() as progress:
        result = run_simulate_bench(repeats, torch_python, progress)
    print_result(result, render_simulate, out, as_json)


@benchmarks.command()
@click.option("--quick", is_flag=True, help="Only the ten clients beside their peers.")
@click.option(
    "--repeats",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Runs of each beside the others; the medians are printed.",
)
@click.option(
    "--flwr-python",
    help="A Python that has flwr, in a virtual environment of its own  [default: Flower is left out]",
)
@_outputs
def fleet(quick: bool, repeats: int, flwr_python: str | None, out: Path | None, as_json: bool) -> None:
    """Seconds a round, the aggregator's memory and lost messages with 10, 100 and 500 stub clients, compared
    with bare paho and Flower.

    Each stub client has a separate connection, certificate and keys. It speaks the device's protocol and
    sends noise as its update.

    \b
    Example:
      python -m tests.benchmarks fleet --repeats 3 --flwr-python ~/flwr/bin/python
    """
    flower = f" --flwr-python {flwr_python}" if flwr_python else ""
    options = f"{' --quick' * quick} --repeats {repeats}{flower}"
    sizes = Sizes(loads=()) if quick else Sizes()
    with Progress() as progress:
        result = run_fleet_bench(sizes, repeats, flwr_python, f"{COMMAND} fleet{options}", progress)
    print_result(result, render_fleet, out, as_json)


@benchmarks.command("fleet-training")
@click.option(
    "--epochs",
    type=click.IntRange(1),
    multiple=True,
    default=(1, 5),
    show_default=True,
    help="Epochs of a client in a round (may be repeated).",
)
@click.option(
    "--repeats",
    type=click.IntRange(1),
    default=5,
    show_default=True,
    help="Runs of each part in turn. The medians are printed.",
)
@_outputs
def fleet_training(epochs: tuple[int, ...], repeats: int, out: Path | None, as_json: bool) -> None:
    """Seconds of a round in which ten devices train LeNet-5 on 600 samples of Fashion-MNIST each, compared
    with the same training without MQTT and with a round of bare paho.

    \b
    Example:
      python -m tests.benchmarks fleet-training --repeats 5
    """
    options = "".join(f" --epochs {count}" for count in epochs)
    command = f"{COMMAND} fleet-training{options} --repeats {repeats}"
    with Progress() as progress:
        result = run_training_bench(TrainingSizes(), epochs, repeats, command, progress)
    print_result(result, render_training, out, as_json)


@benchmarks.command()
@click.option(
    "--flwr-python",
    required=True,
    help="A Python that has flwr and tensorflow, in a virtual environment of its own.",
)
@click.option(
    "--seeds",
    type=click.IntRange(2),
    default=3,
    show_default=True,
    help="Number of seeds. Each has its own partition and first weights, which both share.",
)
@_outputs
def accuracy(flwr_python: str, seeds: int, out: Path | None, as_json: bool) -> None:
    """Accuracy of FedAvg and FedProx, compared with Flower on the same partition of Fashion-MNIST over eight
    clients.

    An algorithm has the same accuracy within seeds if the mean difference between edgefl and Flower, paired
    by seed, is at most two standard errors of that mean.

    \b
    Example:
      python -m tests.benchmarks accuracy --flwr-python ~/flwr/bin/python --seeds 3
    """
    command = f"{COMMAND} accuracy --flwr-python {flwr_python} --seeds {seeds}"
    with Progress() as progress:
        result = run_accuracy_bench(flwr_python, seeds, command, progress)
    print_result(result, render_accuracy, out, as_json)


@benchmarks.command()
@click.option(
    "--seeds",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Number of seeds. Each draws other machines, or other people.",
)
@click.option(
    "--federation",
    "federations",
    multiple=True,
    type=click.Choice(list(FEDERATIONS)),
    help="Only this federation (may be repeated).",
)
@_outputs
def anomaly(seeds: int, federations: tuple[str, ...], out: Path | None, as_json: bool) -> None:
    """AUC of autoencoders of eight synthetic machines and of eight people of UCI HAR: the personal model
    compared with the common one, with local training and with the mean sample.

    \b
    Example:
      python -m tests.benchmarks anomaly --seeds 3
    """
    options = f" --seeds {seeds}" + "".join(f" --federation {name}" for name in federations)
    with Progress() as progress:
        result = run_anomaly_bench(
            federations or tuple(FEDERATIONS), range(1, seeds + 1), f"{COMMAND} anomaly{options}", progress
        )
    print_result(result, render_anomaly, out, as_json)


@benchmarks.command()
@click.option(
    "--seeds",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Number of seeds. Each draws other people.",
)
@_outputs
def regression(seeds: int, out: Path | None, as_json: bool) -> None:
    """R2 of a GRU that predicts the strength of a gyroscope from an accelerometer, for eight people of UCI
    HAR, compared with local training and with a centrally trained Keras model.

    \b
    Example:
      python -m tests.benchmarks regression --seeds 3
    """
    command = f"{COMMAND} regression --seeds {seeds}"
    with Progress() as progress:
        result = run_regression_bench(range(1, seeds + 1), command, progress)
    print_result(result, render_regression, out, as_json)


@benchmarks.command("anomaly-mqtt")
@click.option("--seed", type=click.IntRange(1), default=1, show_default=True, help="Seed of the machines.")
def anomaly_mqtt(seed: int) -> None:
    """Personal models of eight synthetic machines as processes over MQTT, compared with the simulator, as
    JSON.

    \b
    Example:
      python -m tests.benchmarks anomaly-mqtt --seed 1
    """
    with Progress() as progress:
        result = compare_with_mqtt(seed, progress)
    click.echo(json.dumps(result, indent=1))


@benchmarks.command()
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
    "--models",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Directory of int8 .tflite files to measure as well.",
)
@click.option(
    "--keep", type=click.Path(path_type=Path, file_okay=False), help="Keep states and exports there."
)
@_outputs
def firmware(
    samples: int,
    data: str,
    cmsis_nn: Path | None,
    models: Path | None,
    keep: Path | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Flash, RAM and instructions of two mixtures' C on Cortex-M3, M4 and M7, compared with TensorFlow Lite
    Micro's arena and CMSIS-NN's kernels.

    \b
    Example:
      python -m tests.benchmarks firmware --cmsis-nn CMSIS_5
    """
    options = f"--samples {samples} --data {data}" + (" --cmsis-nn PATH" if cmsis_nn else "")
    options += " --models PATH" if models else ""
    with Progress() as progress:
        result = run_firmware_bench(
            samples, data, cmsis_nn, models, keep, f"{COMMAND} firmware {options}", progress
        )
    print_result(result, render_firmware, out, as_json)


@benchmarks.command(
    epilog="Example: python -m tests.benchmarks int8 --clients 6 --rounds 4 --out runs/int8",
)
@click.option(
    "--data",
    "data",
    multiple=True,
    type=click.Choice(list(MODELS)),
    help="Only on this (may be given again).",
)
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice(list(KINDS)),
    help="Only mixtures of this kind (may be given again).",
)
@click.option("--clients", type=click.IntRange(2), default=6, show_default=True, help="Of each federation.")
@click.option("--rounds", type=click.IntRange(1), default=4, show_default=True)
@click.option(
    "--weights",
    type=click.Choice(["8", "4", "3"]),
    default="8",
    show_default=True,
    help="Bits of dense weights, device route.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Keeps the mixtures, and int8.json.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def int8(
    data: tuple[str, ...],
    kinds: tuple[str, ...],
    clients: int,
    rounds: int,
    weights: str,
    out: Path,
    as_json: bool,
) -> None:
    """Accuracy of every client's mixture in float and in int8, by the device route and by TensorFlow's
    converter.

    An interrupted run continues. Federations that are already in --out are not run again.
    """
    with Progress() as progress:
        result = run_int8_bench(
            kinds or KINDS, data or tuple(MODELS), clients, rounds, int(weights), out, progress
        )
    print_result(result, render_int8, out / "int8.json", as_json)


@benchmarks.command(
    epilog="Example: python -m tests.benchmarks tuning --clients 8 --seeds 2 --out runs/tuning",
)
@click.option(
    "--data",
    "data",
    multiple=True,
    type=click.Choice(list(MODELS)),
    help="Only on this (may be given again).  [default: fashion-mnist and uci-har]",
)
@click.option("--clients", type=click.IntRange(2), default=8, show_default=True, help="Of each federation.")
@click.option("--rounds", type=click.IntRange(1), default=4, show_default=True)
@click.option(
    "--seeds", type=click.IntRange(1), default=2, show_default=True, help="Federations on each data set."
)
@click.option(
    "--epochs",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Epochs of each tuning and of its control.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Keeps the models, and tuning.json.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def tuning(
    data: tuple[str, ...], clients: int, rounds: int, seeds: int, epochs: int, out: Path, as_json: bool
) -> None:
    """Accuracy of every client's model after pruning, clustering or quantization-aware training, compared
    with as many epochs in float.

    An interrupted run continues. Clients that are already in --out are not tuned again.
    """
    with Progress() as progress:
        result = run_tuning_bench(
            data or ("fashion-mnist", "uci-har"), clients, rounds, seeds, epochs, out, progress
        )
    print_result(result, render_tuning, out / "tuning.json", as_json)


@benchmarks.command()
@click.option("--samples", type=click.IntRange(10), default=600, show_default=True, help="Of the client.")
@click.option("--repeats", type=click.IntRange(1), default=5, show_default=True, help="Turns of each.")
@_outputs
def evaluation(samples: int, repeats: int, out: Path | None, as_json: bool) -> None:
    """Processor time that the accuracy of each round adds to the update of a LeNet-5 client.

    \b
    Example:
      python -m tests.benchmarks evaluation --repeats 41
    """
    print_result(run_evaluation_bench(samples, repeats), render_evaluation, out, as_json)


@benchmarks.command()
@click.option("--samples", type=click.IntRange(10), default=250, show_default=True, help="Of the client.")
@click.option("--rounds", type=click.IntRange(1), default=20, show_default=True)
def selection(samples: int, rounds: int) -> None:
    """Processor time of a LeNet-5 client's personalization, and the share of the choice of a model in it, as
    JSON.

    \b
    Example:
      python -m tests.benchmarks selection --samples 250
    """
    figures = {name: selection_bench.measure(name, samples, rounds) for name in selection_bench.ALGORITHMS}
    click.echo(json.dumps(figures, indent=1))


def _simulated_devices(command: F) -> F:
    """Add the options of a benchmark over simulated devices."""
    for option in (
        _outputs,
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


@benchmarks.command()
@_simulated_devices
def monitor(devices: int, period: float, seconds: float, out: Path | None, as_json: bool) -> None:
    """Processor time and memory of `edgefl monitor` while hundreds of devices publish.

    \b
    Example:
      python -m tests.benchmarks monitor --devices 500 --seconds 60
    """
    command = f"{COMMAND} monitor --devices {devices} --period {period:g} --seconds {seconds:g}"
    with Progress() as progress:
        result = run_monitor_bench(Fleet(devices=devices, period_s=period), seconds, command, progress)
    print_result(result, render_monitor, out, as_json)


@benchmarks.command()
@_simulated_devices
def dashboard(devices: int, period: float, seconds: float, out: Path | None, as_json: bool) -> None:
    """Processor time and memory of `edgefl dashboard` while hundreds of devices publish and one browser reads
    its stream.

    \b
    Example:
      python -m tests.benchmarks dashboard --devices 500 --seconds 60
    """
    command = f"{COMMAND} dashboard --devices {devices} --period {period:g} --seconds {seconds:g}"
    with Progress() as progress:
        result = run_dashboard_bench(Fleet(devices=devices, period_s=period), seconds, command, progress)
    print_result(result, render_dashboard, out, as_json)


@benchmarks.command()
@click.option(
    "--isa", type=click.Choice(["arm64"]), default="arm64", show_default=True, help="Instruction set."
)
@click.option(
    "--root",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("/root/arm64"),
    show_default=True,
    help="Directory with Debian for arm64, see docs/contributing/emulate-an-arm-board.md.",
)
@click.option(
    "--model",
    "models",
    multiple=True,
    type=click.Choice(list(BENCH_MODELS)),
    help="Count only this model. Can be repeated.",
)
@_outputs
def steps(isa: str, root: Path, models: tuple[str, ...], out: Path | None, as_json: bool) -> None:
    """Instructions of a training step on an emulated board, and the peak memory of the process that trains.

    The peak memory is measured with the same plan on this machine. Ten models take about 20 minutes.

    \b
    Example:
      python -m tests.benchmarks steps --isa arm64 --model lenet5-b10
    """
    options = (f"--isa {isa}", f"--root {root}", *(f"--model {name}" for name in models))
    command = " ".join((f"{COMMAND} steps", *options))
    with Progress() as progress:
        result = run_steps_bench(root, models or tuple(BENCH_MODELS), command, progress)
    print_result(result, render_steps, out, as_json)


@benchmarks.command()
@click.option("--since", metavar="COMMIT", help="Also count the statements of this commit.")
@_outputs
def calls(since: str | None, out: Path | None, as_json: bool) -> None:
    """Files that a reader enters and returns to while following the calls of a device's task, a round of the
    round server and a simulated update. Then the number of statements of the packages.

    \b
    Example:
      python -m tests.benchmarks calls --since db51383
    """
    command = f"{COMMAND} calls" + (f" --since {since}" if since else "")
    with Progress() as progress:
        result = run_calls_bench(since, command, progress)
    print_result(result, render_calls, out, as_json)


@benchmarks.command()
@click.option("--since", metavar="COMMIT", help="Also measure this commit.")
@_outputs
def rooms(since: str | None, out: Path | None, as_json: bool) -> None:
    """Size of each room of the code: files, lines, statements, and the share of lines that are docstrings.

    \b
    Example:
      python -m tests.benchmarks rooms --since 4f0076f0
    """
    result = run_rooms_bench(since, f"{COMMAND} rooms" + (f" --since {since}" if since else ""))
    print_result(result, render_rooms, out, as_json)


if __name__ == "__main__":
    try:
        benchmarks()
    except EdgeflError as error:
        sys.exit(f"benchmarks: {error}")

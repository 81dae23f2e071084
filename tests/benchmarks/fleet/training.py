"""A round in which real devices train, compared with the same training without MQTT and a round of bare paho.

The target: a round takes at most 1.1 times the sum of these two.

A round is the time between the summaries of two successive rounds, so it contains all work of the aggregator
between them. Reports of accuracy, validation samples and the training of a local model are switched off. Only
the algorithm trains, on all training samples.

Other programs on the machine disturb processor time less than they disturb seconds. So the benchmark also
divides the processor time of devices, aggregator and broker by the processor time of the training alone. The
processor time of bare paho is not part of this ratio.
"""

import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from edgefl.base.errors import EdgeflError
from edgefl.base.system.host import describe_machine
from edgefl.base.types import Shard
from edgefl.data import load_dataset
from edgefl.data.npz import save_shard
from edgefl.learning.algorithms import PHASE_PERSONALIZE
from edgefl.program.plan.spec import load_plan
from edgefl.protocol.wire.messages import Summary
from mqtt_broker.aggregator.plan_source import build_plan_in_child
from tests.benchmarks.fleet.broker import make_keys, read_mosquitto_version, start_secured_broker
from tests.benchmarks.fleet.floor_run import run_floor
from tests.benchmarks.fleet.local_training import THREADS
from tests.benchmarks.fleet.run import Watcher, read_last_line
from tests.benchmarks.process import read_cpu_s, start_program

TARGET = 1.1
NAME = "fleet"
SEED = 1
FLOAT_BYTES = 4
TEST_SAMPLES = 10
TIMEOUT_S = 900.0
END_S = 60.0
GROUPS = ("clients", "aggregator", "broker")
PACKAGES = ("paho-mqtt", "ai-edge-litert", "numpy")
CONFIG = """[federation]
name = "{name}"
seed = {seed}
rounds = {rounds}
min_clients = {clients}
quorum = 1.0
deadline_s = {timeout_s}
evaluate = false
[model]
name = "lenet5"
[algorithm]
name = "fedavg"
epochs = {epochs}
[personalization]
select = false
validation_share = 0.0
baseline = false
"""
Progress = Callable[[str], None]
Figures = dict[str, Any]


@dataclass(frozen=True)
class TrainingSizes:
    """The size of the federation.

    Attributes:
        data: the data set.
        clients: number of clients.
        samples: number of training samples of each client.
        rounds: number of measured rounds. One more round before them is not measured.
    """

    data: str = "fashion-mnist"
    clients: int = 10
    samples: int = 600
    rounds: int = 10


def run_training_bench(
    sizes: TrainingSizes, epochs: Sequence[int], repeats: int, command: str, progress: Progress
) -> Figures:
    """Return all measurements, with machine, versions, command and the machine's load before and after.

    Raises:
        EdgeflError: mosquitto is missing, a process fails, or a federation does not finish.
    """
    versions = {"mosquitto": read_mosquitto_version(), **{package: version(package) for package in PACKAGES}}
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="edgefl-bench-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        save_samples(sizes, directory)
        rows = [_compare(sizes, count, repeats, directory, progress) for count in epochs]
    return {
        "machine": describe_machine(),
        "versions": versions,
        "command": command,
        "load": [before, os.getloadavg()[0]],
        "clients": sizes.clients,
        "samples": sizes.samples,
        "rows": rows,
    }


def list_client_ids(count: int) -> list[str]:
    """Return the clients' ids."""
    return [f"device-{i:02d}" for i in range(count)]


def save_samples(sizes: TrainingSizes, directory: Path) -> None:
    """Write the samples of each client. All clients have the same number of samples."""
    data = load_dataset(sizes.data)
    for i, client_id in enumerate(list_client_ids(sizes.clients)):
        train = slice(i * sizes.samples, (i + 1) * sizes.samples)
        test = slice(i * TEST_SAMPLES, (i + 1) * TEST_SAMPLES)
        shard = Shard(
            x_train=data.x_train[train],
            y_train=data.y_train[train],
            x_test=data.x_test[test],
            y_test=data.y_test[test],
            num_classes=data.num_classes,
        )
        save_shard(directory / f"{client_id}.npz", shard)


def write_federation(sizes: TrainingSizes, epochs: int, directory: Path) -> tuple[Path, Path]:
    """Write a configuration and build its plan; return the paths of both."""
    config = directory / f"federation-{epochs}.toml"
    plan = directory / f"plan-{epochs}"
    config.write_text(
        CONFIG.format(
            name=NAME,
            seed=SEED,
            rounds=sizes.rounds + 1,
            clients=sizes.clients,
            timeout_s=TIMEOUT_S,
            epochs=epochs,
        )
    )
    build_plan_in_child(config, plan)
    return config, plan


def _compare(sizes: TrainingSizes, epochs: int, repeats: int, directory: Path, progress: Progress) -> Figures:
    """Measure training, bare paho and edgefl, and return their figures.

    The three take turns. Every second repeat runs them in reverse order. A ratio compares the runs of one
    repeat.
    """
    progress(f"compiling the plan of {epochs} epochs")
    config, plan = write_federation(sizes, epochs, directory)
    size = sum(FLOAT_BYTES * math.prod(weight.shape) for weight in load_plan(plan).spec.weights)
    parts: dict[str, Callable[[Path], Figures]] = {
        "training": lambda empty: run_local_training(sizes, plan, directory, empty),
        "paho": lambda empty: run_floor(empty, None, size, sizes.clients, sizes.rounds + 1),
        "edgefl": lambda empty: run_devices(sizes, config, plan, directory, empty),
    }
    runs: dict[str, list[Figures]] = {name: [] for name in parts}
    for repeat in range(repeats):
        for name in list(parts) if repeat % 2 == 0 else reversed(parts):
            with tempfile.TemporaryDirectory(dir=directory, ignore_cleanup_errors=True) as empty:
                runs[name].append(parts[name](Path(empty)))
            progress(
                f"{repeat + 1}/{repeats} {epochs} epochs, {name}: {runs[name][-1]['round_s']:.4f} s a round"
            )
    sums = [a["round_s"] + b["round_s"] for a, b in zip(runs["training"], runs["paho"], strict=True)]
    ratios = [run["round_s"] / total for run, total in zip(runs["edgefl"], sums, strict=True)]
    cpu_ratios = [
        sum(run["cpu_s"].values()) / training["cpu_s"]["clients"]
        for run, training in zip(runs["edgefl"], runs["training"], strict=True)
    ]
    return {
        "epochs": epochs,
        "model_bytes": size,
        "round_s": {name: median(run["round_s"] for run in part) for name, part in runs.items()},
        "ratio": median(ratios),
        "ratio_range": [min(ratios), max(ratios)],
        "cpu_ratio": median(cpu_ratios),
        "cpu_ratio_range": [min(cpu_ratios), max(cpu_ratios)],
        "runs": runs,
    }


@contextmanager
def start_trainers(
    sizes: TrainingSizes, plan: Path, data: Path, log: Path
) -> Iterator[list["subprocess.Popen[str]"]]:
    """Run the training processes of all clients, and yield them once they are ready."""
    with ExitStack() as stack:
        processes = []
        for client_id in list_client_ids(sizes.clients):
            module = [sys.executable, "-m", "tests.benchmarks.fleet.local_training"]
            command = [*module, str(plan), str(data / f"{client_id}.npz"), client_id, str(SEED)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            processes.append(stack.enter_context(start_program(command, log, **pipes)))
        _await_lines(processes, log)
        yield processes
        for process in processes:
            assert process.stdin
            process.stdin.close()


def _await_lines(processes: Sequence["subprocess.Popen[str]"], log: Path) -> None:
    for process in processes:
        assert process.stdout
        if not process.stdout.readline():
            raise EdgeflError(f"a training process ended: {read_last_line(log)}")


def run_local_training(sizes: TrainingSizes, plan: Path, data: Path, directory: Path) -> Figures:
    """Train all clients in each round, each in its own process, and wait for the last one."""
    log = directory / "training.log"
    with start_trainers(sizes, plan, data, log) as processes:
        seconds = []
        used = _cpu_s(processes)
        for _ in range(sizes.rounds):
            began = time.perf_counter()
            for process in processes:
                assert process.stdin
                process.stdin.write("train\n")
                process.stdin.flush()
            _await_lines(processes, log)
            seconds.append(time.perf_counter() - began)
        used = _cpu_s(processes) - used
    return {**_summarize_seconds(seconds), "cpu_s": {"clients": used / sizes.rounds}}


def _cpu_s(processes: Sequence["subprocess.Popen[str]"]) -> float:
    return sum(read_cpu_s(process.pid) for process in processes)


def _summarize_seconds(seconds: Sequence[float]) -> Figures:
    return {"round_s": median(seconds), "round_s_range": [min(seconds), max(seconds)]}


def run_devices(sizes: TrainingSizes, config: Path, plan: Path, data: Path, directory: Path) -> Figures:
    """Run a federation of `edgefl device start` and `edgefl aggregator start` with certificates."""
    ids = list_client_ids(sizes.clients)
    broker = make_keys(directory, ids)
    edgefl = [sys.executable, "-m", "edgefl"]
    aggregator_command = [*edgefl, "aggregator", "start", "--security", str(broker), "--config", str(config)]
    aggregator_command += ["--plan", str(plan), "--out", str(directory / "out")]
    with ExitStack() as stack:
        mosquitto = stack.enter_context(start_secured_broker(directory, broker))
        watcher = Watcher(directory, NAME)
        stack.callback(watcher.link.close)
        aggregator = stack.enter_context(start_program(aggregator_command, directory / "aggregator.log"))
        devices = []
        for client_id in ids:
            command = [*edgefl, "device", "start", "--enrol", str(directory / f"{client_id}.enrol")]
            command += ["--data", str(data / f"{client_id}.npz"), "--state", str(directory / client_id)]
            command += ["--threads", str(THREADS), "--no-export"]
            devices.append(stack.enter_context(start_program(command, directory / f"{client_id}.log")))
        groups = dict(zip(GROUPS, (devices, [aggregator], [mosquitto]), strict=True))
        summaries, used = _follow(watcher, groups, directory)
        for process in (aggregator, *devices):
            if process.wait(END_S):
                raise EdgeflError(f"a process ended with {process.returncode}: {_last_lines(directory)}")
    if missing := [summary.round for summary in summaries if summary.updates != sizes.clients]:
        raise EdgeflError(f"updates are missing in the rounds {missing}; {_last_lines(directory)}")
    seconds = [later.ts - earlier.ts for earlier, later in pairwise(summaries)]
    cpu = {name: (until[-1] - until[0]) / len(seconds) for name, until in used.items()}
    return {**_summarize_seconds(seconds), "cpu_s": cpu}


def _follow(
    watcher: Watcher, groups: dict[str, list["subprocess.Popen[str]"]], directory: Path
) -> tuple[list[Summary], dict[str, list[float]]]:
    """Return the summaries of the rounds in which devices train, and the processor time until each one."""
    summaries = list[Summary]()
    used: dict[str, list[float]] = {name: [] for name in groups}
    until = time.monotonic() + TIMEOUT_S
    while time.monotonic() < until:
        summary = watcher.read_summary(0.5)
        if summary and summary.phase == PHASE_PERSONALIZE:
            return summaries, used
        if summary:
            summaries.append(summary)
            for name, processes in groups.items():
                used[name].append(_cpu_s(processes))
        if any(process.poll() for processes in groups.values() for process in processes):
            break
    raise EdgeflError(f"the federation stopped after {len(summaries)} rounds: {_last_lines(directory)}")


def _last_lines(directory: Path) -> str:
    return "; ".join(f"{path.stem}: {read_last_line(path)}" for path in sorted(directory.glob("*.log")))


def render(result: Figures) -> str:
    """Return the result as text for a terminal."""
    lines = [
        f"{result['command']}\n{result['machine']}; "
        f"{', '.join(f'{k} {v}' for k, v in result['versions'].items())}",
        f"load of the machine before and after: {result['load'][0]:.1f}, {result['load'][1]:.1f}",
        f"{result['clients']} clients, LeNet-5, {result['samples']} samples each, seconds a round:",
        "",
        f"{'epochs':>6} {'training':>9} {'paho':>8} {'edgefl':>8}  edgefl over the sum (target: {TARGET})",
    ]
    for row in result["rows"]:
        seconds = row["round_s"]
        low, high = row["ratio_range"]
        lines.append(
            f"{row['epochs']:6d} {seconds['training']:9.4f} {seconds['paho']:8.4f} {seconds['edgefl']:8.4f}  "
            f"{row['ratio']:.3f} ({low:.3f}-{high:.3f}), {'met' if row['ratio'] <= TARGET else 'missed'}"
        )
    columns = "".join(f"{name:>11}" for name in GROUPS)
    lines += ["", "processor seconds a round:", f"{'epochs':>6} {'training':>9}{columns}  all over training"]
    for row in result["rows"]:
        training = median(run["cpu_s"]["clients"] for run in row["runs"]["training"])
        used = [median(run["cpu_s"][name] for run in row["runs"]["edgefl"]) for name in GROUPS]
        low, high = row["cpu_ratio_range"]
        listed = "".join(f"{figure:11.4f}" for figure in used)
        lines.append(
            f"{row['epochs']:6d} {training:9.4f}{listed}  {row['cpu_ratio']:.3f} ({low:.3f}-{high:.3f})"
        )
    return "\n".join(lines)

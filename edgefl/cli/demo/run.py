"""Runs a broker, an aggregator and devices as processes on this machine, and collects their result."""

import contextlib
import json
import math
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefl.base.errors import ConfigError, EdgeflError, StateError
from edgefl.base.storage.aggregator_directory import AggregatorFiles
from edgefl.base.storage.demo_directory import DemoFiles
from edgefl.base.storage.device_directory import DeviceFiles
from edgefl.cli.demo.processes import Child, Children

if TYPE_CHECKING:
    from edgefl.data.dataset import Dataset

DEMO_ALGORITHM = "pfl-mfe"
DEMO_FEDERATION = "demo"
FEDERATION_TIMEOUT_S = 900.0
MIN_FREE_BYTES = 64_000_000
DEFAULT_ROUNDS = 20
DIRICHLET_ALPHA = 5.0
"""Concentration of the Dirichlet distribution that partitions each class over the clients."""


@dataclass(frozen=True)
class ClientSamples:
    """Number of samples that the demo takes from a data set.

    Clients have few training samples, so that a federation can help them.

    Attributes:
        train: average number of training samples per client.
        test: average number of test samples per client. Fewer if the data set has fewer.
    """

    train: int
    test: int


CLIENT_SAMPLES = {"digits": ClientSamples(60, 400), "fashion-mnist": ClientSamples(150, 1000)}
CLIENT_KEYS = (
    "id",
    "n_train",
    "accuracy_local",
    "accuracy_federated",
    "accuracy_shipped",
    "accuracy_shipped_int8",
    "tflite_bytes",
    "peak_rss_mb",
    "bytes_up",
    "bytes_down",
)
COUNT_KEYS = {"n_train", "tflite_bytes", "bytes_up", "bytes_down"}
ACCURACY_COLUMNS = tuple(key for key in CLIENT_KEYS if key.startswith("accuracy"))
TABLE_HEADS = (
    "client",
    "samples",
    "local",
    "federated",
    "shipped",
    "int8",
    "model KB",
    "RSS MB",
    "up KB",
    "down KB",
)


@dataclass(frozen=True)
class DemoSettings:
    """The options of the demo.

    Attributes:
        dataset: a key of `CLIENT_SAMPLES`.
        clients: number of device processes.
        rounds: number of rounds of the federation.
        seed: random seed of the federation.
        broker: `auto`, `mosquitto` or `amqtt`.
        port: port of the broker. 0 uses a free port.
        out: output directory.
    """

    dataset: str
    clients: int
    rounds: int
    seed: int
    broker: str
    port: int
    out: Path

    @property
    def ids(self) -> list[str]:
        """Client ids, in order."""
        return [f"pi-{i + 1}" for i in range(self.clients)]


def render_federation_toml(settings: DemoSettings, url: str) -> str:
    """Return the content of the federation's configuration file.

    Args:
        url: address of the broker.
    """
    return f"""# Written by `edgefl demo`. Use it with `edgefl aggregator start --config`.
[federation]
name = "{DEMO_FEDERATION}"
seed = {settings.seed}
rounds = {settings.rounds}
min_clients = {settings.clients}

[model]
name = "lenet5"
input_shape = [28, 28, 1]
num_classes = 10

[algorithm]
name = "{DEMO_ALGORITHM}"

[broker]
url = "{url}"
"""


def write_shards(settings: DemoSettings) -> None:
    """Partition the data set over the clients and write one `.npz` file per client."""
    from edgefl.base.config import PartitionConfig
    from edgefl.data import load_dataset, make_shards
    from edgefl.data.npz import save_shard

    client_samples = CLIENT_SAMPLES[settings.dataset]
    counts = client_samples.train * settings.clients, client_samples.test * settings.clients
    dataset = draw_samples(load_dataset(settings.dataset), *counts, settings.seed)
    partition = PartitionConfig(
        name="dirichlet", num_clients=settings.clients, options={"alpha": DIRICHLET_ALPHA, "min_samples": 20}
    )
    shards = make_shards(dataset, partition, settings.seed)
    for name, shard in zip(settings.ids, shards.values(), strict=True):
        save_shard(DemoFiles(settings.out).shard(client=name), shard)


def draw_samples(dataset: "Dataset", num_train: int, num_test: int, seed: int) -> "Dataset":
    """Draw different training and test samples from both parts of a data set.

    Args:
        dataset: a data set whose samples have no groups.
        num_test: number of test samples. Fewer if the data set has fewer.
    """
    import numpy as np

    from edgefl.base.rng import derive_rng

    x = np.concatenate([dataset.x_train, dataset.x_test])
    y = np.concatenate([dataset.y_train, dataset.y_test])
    order = derive_rng(seed, 0, "subsample").permutation(len(y))
    train, test = np.split(order[: num_train + num_test], [num_train])
    return replace(dataset, x_train=x[train], y_train=y[train], x_test=x[test], y_test=y[test])


def prepare_directory(out: Path) -> None:
    """Create the output directory.

    Raises:
        ConfigError: the directory is not empty, or is a file.
        StateError: the disk has less than `MIN_FREE_BYTES` free.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(
            f"{out} is in use, expected a new or empty directory; give another --out, or remove it"
        )
    out.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(out).free
    if free < MIN_FREE_BYTES:
        raise StateError(
            f"{free / 1e6:.0f} MB free at {out}, expected {MIN_FREE_BYTES / 1e6:.0f}; give an --out on "
            "another disk"
        )


def filter_until_done(echo: Callable[[str], None]) -> Callable[[str], None]:
    """Return a function that passes lines to `echo` until the federation is done.

    The demo prints the verdict itself, below its table.
    """
    is_done = False

    def show_progress(line: str) -> None:
        nonlocal is_done
        if not is_done:
            echo(line)
        is_done = is_done or line.startswith("done in ")

    return show_progress


def federate(settings: DemoSettings, children: Children) -> dict[str, Any]:
    """Start broker, aggregator and devices, and wait until they end.

    Args:
        children: starts the processes.

    Returns:
        The result of the aggregator, and the kind of the broker as `broker`.

    Raises:
        EdgeflError: a process failed, or the federation did not end in time.
        LinkError: the broker did not start.
    """
    files = DemoFiles(settings.out)
    broker, lines = children.start(
        "broker", "broker", "start", "--port", str(settings.port), "--kind", settings.broker, "--json"
    )
    broker_info = json.loads(children.wait_for_line(broker, lines, "mqtt://", 30))
    url: str = broker_info["url"]
    files.config.write_text(render_federation_toml(settings, url))
    aggregator, _ = children.start(
        "aggregator",
        "aggregator",
        "start",
        "--config",
        str(files.config),
        "--out",
        str(files.aggregator),
        show=True,
    )
    devices = []
    for name in settings.ids:
        data = str(files.shard(client=name))
        state = str(files.device(client=name))
        child, _ = children.start(
            name,
            "device",
            "start",
            "--broker",
            url,
            "--federation",
            DEMO_FEDERATION,
            "--id",
            name,
            "--data",
            data,
            "--state",
            state,
        )
        devices.append(child)
    wait_for_end(children, aggregator, devices)
    result: dict[str, Any] = json.loads(AggregatorFiles(files.aggregator).result.read_text())
    return result | {"broker": broker_info["kind"]}


def wait_for_end(children: Children, aggregator: Child, devices: list[Child]) -> None:
    """Wait until the aggregator and the devices have ended.

    Args:
        children: all processes of the demo, including the broker.
        aggregator: the process of the aggregator.
        devices: the processes of the devices.

    Raises:
        EdgeflError: a process failed, or the federation did not end within `FEDERATION_TIMEOUT_S` seconds.
    """
    until = time.monotonic() + FEDERATION_TIMEOUT_S
    ended = (aggregator, *devices)
    while running := [child for child in ended if child.process.poll() is None]:
        children.check(ended=ended)
        if time.monotonic() > until:
            raise EdgeflError(
                f"the federation did not end within {FEDERATION_TIMEOUT_S:.0f} s; the logs are in "
                f"{children.logs}"
            )
        with contextlib.suppress(subprocess.TimeoutExpired):
            running[0].process.wait(0.2)
    children.check(ended=ended)


def collect_models(settings: DemoSettings, result: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Copy each client's model to clients/ID/, write summary.json and return the summary.

    Args:
        result: the result of `federate`.
        seconds: duration of the demo.

    Raises:
        EdgeflError: a client has no model.
    """
    files = DemoFiles(settings.out)
    by_id = {client["id"]: client for client in result["clients"]}
    for name in settings.ids:
        target = files.client(client=name)
        target.mkdir(parents=True, exist_ok=True)
        device = DeviceFiles(files.device(client=name))
        if name not in by_id or not device.model.exists():
            raise EdgeflError(f"{name} ended without a model; its log is {files.logs / name}.log")
        for file in sorted(device.export.iterdir()):
            shutil.copy2(file, target / file.name)
    summary = {
        "dataset": settings.dataset,
        "algorithm": DEMO_ALGORITHM,
        "rounds": settings.rounds,
        "seconds": round(seconds, 1),
        "broker": result["broker"],
        "seed": settings.seed,
        "verdict": result["verdict"],
        "clients": [select_client_fields(by_id[name]) for name in settings.ids],
    }
    files.summary.write_text(json.dumps(summary, indent=1) + "\n")
    return summary


def select_client_fields(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of one client in the order of `CLIENT_KEYS`, None for a missing measurement."""
    row: dict[str, Any] = {}
    for key in CLIENT_KEYS:
        value = raw.get(key)
        if isinstance(value, float) and not math.isfinite(value):
            value = None
        row[key] = int(value) if key in COUNT_KEYS and value is not None else value
    return row


def average_accuracies(clients: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return the unweighted mean over clients of each accuracy. It is None if a client lacks the accuracy."""
    result: dict[str, float | None] = {}
    for key in ACCURACY_COLUMNS:
        values = [client[key] for client in clients]
        result[key] = None if not values or None in values else sum(values) / len(values)
    return result


def _format_cell(key: str, value: Any) -> str:
    if value is None:
        return "-"
    if key.startswith("accuracy"):
        return f"{100 * value:.1f}%"
    if key in ("tflite_bytes", "bytes_up", "bytes_down"):
        return f"{value / 1000:,.0f}"
    return f"{value:.0f}" if key == "peak_rss_mb" else str(value)


def format_client_table(clients: Sequence[Mapping[str, Any]]) -> str:
    """Return a table with one line per client and a line of means. 1 KB is 1000 bytes."""
    rows = [
        TABLE_HEADS,
        *(tuple(_format_cell(key, client[key]) for key in CLIENT_KEYS) for client in clients),
    ]
    mean = average_accuracies(clients)
    rows.append(
        tuple(
            "mean" if key == "id" else _format_cell(key, mean[key]) if key in mean else ""
            for key in CLIENT_KEYS
        )
    )
    widths = [max(len(row[i]) for row in rows) for i in range(len(TABLE_HEADS))]
    lines = [
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    rule = "-" * len(lines[0])
    return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1]])

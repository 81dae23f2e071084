"""The machines of one seed as processes over MQTT, compared with the simulator.

A broker, an aggregator and eight devices run by the public command line. Each device reads the samples of its
machine from a file. The aggregator compiles the plan from the configuration.
"""

import json
import math
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgefl.base.config import FederationConfig
from edgefl.base.config.toml import to_toml
from edgefl.base.storage.aggregator_directory import AggregatorFiles
from edgefl.base.storage.device_directory import DeviceFiles
from edgefl.base.types import Shard, Weights
from edgefl.cli.demo.processes import Child, Children
from edgefl.cli.demo.run import wait_for_end
from edgefl.data.npz import save_shard
from edgefl.learning.checkpoint import decode_stored_mixture
from edgefl.simulation.runs.pipeline import build_plan_in_subprocess, open_partitioned_dataset
from edgefl.simulation.simulate import Simulation, simulate
from tests.benchmarks.anomaly.comparison import COLUMNS, MANY, make_benchmark_config

BROKER_TIMEOUT_S = 30.0
INT8 = "shipped_int8"

Progress = Callable[[str], None]


def compare_with_mqtt(seed: int, progress: Progress) -> dict[str, Any]:
    """Run a federation in the simulator and over MQTT, and return how they agree.

    Args:
        seed: random seed of the federation.
        progress: receives progress.

    Returns:
        `seed`, `same_weights`: the number of devices whose personal model has the same bits, `same_figures`:
            the number of devices with the same AUC of all models, `devices`: the number of devices, and
            `auc`: the mean over the devices over MQTT of each column, and of the int8 model if the devices
            report it.

    Raises:
        EdgeflError: a process failed, or the federation did not end in time.
    """
    config = make_benchmark_config(MANY, seed)
    with (
        open_partitioned_dataset(config) as partitioned,
        tempfile.TemporaryDirectory(prefix="edgefl-bench-", ignore_cleanup_errors=True) as name,
    ):
        progress(f"seed {seed}: over MQTT")
        rows, mixtures = run_over_mqtt(config, partitioned.shards, Path(name), progress)
        progress(f"seed {seed}: in the simulator")
        plan, initial = build_plan_in_subprocess(config)
        simulation = simulate(plan, initial, partitioned.shards, config)
    return {"seed": seed, **count_equal_devices(simulation, rows, mixtures)}


def run_over_mqtt(
    config: FederationConfig, shards: Mapping[str, Shard], directory: Path, progress: Progress
) -> tuple[dict[str, Mapping[str, Any]], dict[str, Weights]]:
    """Run a federation as processes, and return the figures and the personal model of each device.

    Args:
        config: the configuration of the federation.
        shards: the samples of each device as they are stored.
        directory: an empty directory.
        progress: receives the lines of the aggregator.

    Raises:
        EdgeflError: a process failed, or the federation did not end in time.
    """
    files = AggregatorFiles(directory / "aggregator")
    with Children(logs=directory / "logs", echo=progress) as children:
        broker, lines = children.start("broker", "broker", "start", "--port", "0", "--json")
        url = json.loads(children.wait_for_line(broker, lines, "mqtt://", BROKER_TIMEOUT_S))["url"]
        (directory / "federation.toml").write_text(to_toml(replace(config, broker=url)))
        arguments = ("--config", str(directory / "federation.toml"), "--out", str(files.root))
        aggregator, _ = children.start("aggregator", "aggregator", "start", *arguments, show=True)
        devices = [
            _start_device(children, config, url, client, shards[client], directory) for client in shards
        ]
        wait_for_end(children, aggregator, devices)
    result = json.loads(files.result.read_text())
    mixtures = {
        client: decode_stored_mixture(DeviceFiles(directory / client).mixture.read_bytes()).mixture.weights
        for client in shards
    }
    return {row["id"]: row for row in result["clients"]}, mixtures


def _start_device(
    children: Children, config: FederationConfig, url: str, client: str, shard: Shard, directory: Path
) -> Child:
    path = directory / f"{client}.npz"
    save_shard(path, shard)
    arguments = ("--broker", url, "--federation", config.name, "--id", client, "--data", str(path))
    child, _ = children.start(client, "device", "start", *arguments, "--state", str(directory / client))
    return child


def count_equal_devices(
    simulation: Simulation, rows: Mapping[str, Mapping[str, Any]], mixtures: Mapping[str, Weights]
) -> dict[str, Any]:
    """Return how many devices have the model and the figures of the simulator.

    Args:
        simulation: the simulated federation, with its mixtures.
        rows: the figures of each device over MQTT.
        mixtures: the weights of each device's personal model over MQTT.
    """
    same_weights = sum(
        mixtures[client].keys() == mixture.weights.keys()
        and all(
            mixtures[client][name].tobytes() == array.tobytes() for name, array in mixture.weights.items()
        )
        for client, mixture in simulation.mixtures.items()
    )
    same_figures = sum(
        all(rows[client].get(key) == value for key, value in metrics.items() if key.startswith("auc_"))
        for client, metrics in simulation.metrics.items()
    )
    return {
        "devices": len(rows),
        "same_weights": same_weights,
        "same_figures": same_figures,
        "auc": {
            column: math.fsum(row[f"auc_{column}"] for row in rows.values()) / len(rows)
            for column in (*COLUMNS, INT8)
            if all(f"auc_{column}" in row for row in rows.values())
        },
    }

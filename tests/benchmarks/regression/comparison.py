"""A regression by a GRU in a federation, compared with a centrally trained model and with local models.

The protocol was fixed before seeds 1 to 3 were run. The learning rates were chosen on the people of seed 11,
where SGD at .1 diverged.

Eight people of UCI HAR are the clients, drawn by the seed. The model receives the total acceleration of a
window, every fourth reading, and predicts the strength of another sensor: the natural logarithm of the RMS of
the gyroscope's x axis over the window. The figure is R2 on each person's own test windows, at least 0, the
mean over people.

The central model is the same Keras model, trained by `fit` with Adam on the windows of all eight people.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from statistics import fmean
from typing import Any

import numpy as np

from edgefl.base.config import (
    DataConfig,
    FederationConfig,
    ModelConfig,
    PartitionConfig,
    PersonalizationConfig,
)
from edgefl.base.system.format import align_columns
from edgefl.base.system.host import describe_machine
from edgefl.base.tasks.config import TaskConfig
from edgefl.base.tasks.scores import measure_r2
from edgefl.base.types import Array, Shard
from edgefl.data.task_form import to_task_form
from edgefl.simulation.clients import drop_mixture
from edgefl.simulation.runs.pipeline import build_plan_in_subprocess, open_partitioned_dataset
from edgefl.simulation.simulate import simulate
from tests.benchmarks.anomaly.comparison import compute_standard_error

PACKAGES = ("ai-edge-litert", "tensorflow", "keras", "numpy")
NUM_CLIENTS = 8
WINDOW_SHAPE = (32, 3)
READING_STEP = 4
ACCELERATION_CHANNELS = slice(6, 9)
GYROSCOPE_CHANNEL = 3
MIN_RMS = 0.01
CENTRAL = "central"
COLUMNS = ("local", CENTRAL, "federated", "fine_tuned", "shipped")
HEADINGS = {"federated": "common", "fine_tuned": "fine-tuned", "shipped": "personal"}
CENTRAL_EPOCHS = 50
CENTRAL_RATE = 0.003

Progress = Callable[[str], None]


def make_benchmark_config(seed: int) -> FederationConfig:
    """Return the configuration of the federation.

    Args:
        seed: random seed of the federation. It draws the people.
    """
    return FederationConfig(
        name="regression",
        seed=seed,
        rounds=10,
        min_clients=NUM_CLIENTS,
        algorithm="fedavg",
        options={"learning_rate": 0.01, "momentum": 0.9},
        model=ModelConfig(
            name="tests.benchmarks.regression.models:make_gru", input_shape=WINDOW_SHAPE, num_classes=1
        ),
        data=DataConfig(name="uci-har"),
        partition=PartitionConfig(name="group", num_clients=NUM_CLIENTS),
        personalization=PersonalizationConfig(learning_rate=0.003),
        task=TaskConfig(kind="regression"),
    )


def make_regression_shard(shard: Shard) -> Shard:
    """Return a shard whose samples are acceleration windows, and whose targets are gyroscope strengths.

    Args:
        shard: windows of UCI HAR, shape (n, 128, 9).
    """
    return replace(
        shard,
        x_train=_select_acceleration(shard.x_train),
        x_test=_select_acceleration(shard.x_test),
        target_train=measure_gyroscope(shard.x_train),
        target_test=measure_gyroscope(shard.x_test),
    )


def _select_acceleration(windows: Array) -> Array:
    return np.ascontiguousarray(windows[:, ::READING_STEP, ACCELERATION_CHANNELS])


def measure_gyroscope(windows: Array) -> Array:
    """Return the natural logarithm of the RMS of the gyroscope's x axis, shape (n, 1), float32.

    Args:
        windows: windows of UCI HAR, shape (n, 128, 9).
    """
    power = (windows[:, :, GYROSCOPE_CHANNEL].astype(np.float64) ** 2).mean(axis=1, keepdims=True)
    return np.asarray(np.log(np.sqrt(power) + MIN_RMS), np.float32)


def run_regression_bench(seeds: Sequence[int], command: str, progress: Progress) -> dict[str, Any]:
    """Run the federation and the central training with all seeds, and return their R2.

    Args:
        seeds: the seeds.
        command: the command that was typed.
        progress: receives progress.
    """
    rows = []
    for seed in seeds:
        clients = run_federation(make_benchmark_config(seed))
        r2 = {column: fmean(client[column] for client in clients.values()) for column in COLUMNS}
        rows.append({"seed": seed, "r2": r2, "clients": clients})
        progress(f"seed {seed}: " + ", ".join(f"{name} {value:.3f}" for name, value in r2.items()))
    return {
        "machine": describe_machine(),
        "versions": {package: version(package) for package in PACKAGES},
        "command": command,
        "rows": rows,
    }


def run_federation(config: FederationConfig) -> dict[str, dict[str, float]]:
    """Return R2 of the models of each client by column.

    Args:
        config: the configuration of the federation.
    """
    with open_partitioned_dataset(config) as partitioned:
        shards = {client: make_regression_shard(partitioned.shards[client]) for client in partitioned.shards}
    plan, initial = build_plan_in_subprocess(config)
    simulation = simulate(plan, initial, shards, config, keep_result=drop_mixture)
    central = train_centrally(config, shards)
    return {
        client: {
            CENTRAL: central[client],
            **{column: metrics[f"r2_{column}"] for column in COLUMNS if column != CENTRAL},
        }
        for client, metrics in simulation.metrics.items()
    }


def train_centrally(config: FederationConfig, shards: Mapping[str, Shard]) -> dict[str, float]:
    """Train the Keras model on the samples of all clients, and return R2 on each client's test samples.

    Args:
        config: the configuration of the federation.
        shards: the samples of each client as they are stored.
    """
    import keras

    from edgefl.program.models import build_model

    keras.utils.set_random_seed(config.seed)
    formed = {client: to_task_form(shard, config.task) for client, shard in shards.items()}
    model = build_model(config.model, config.task)
    model.compile(keras.optimizers.Adam(CENTRAL_RATE), "mse")
    model.fit(
        np.concatenate([shard.x_train for shard in formed.values()]),
        np.concatenate([shard.y_train for shard in formed.values()]),
        batch_size=config.personalization.batch_size,
        epochs=CENTRAL_EPOCHS,
        verbose=0,
    )
    return {
        client: max(0.0, measure_r2(model.predict(shard.x_test, verbose=0), shard.y_test))
        for client, shard in formed.items()
    }


def render(result: dict[str, Any]) -> str:
    """Return the result as text for a terminal."""
    rows = result["rows"]
    table: list[tuple[str, ...]] = [("seed", *(HEADINGS.get(column, column) for column in COLUMNS))]
    table += [(str(row["seed"]), *(f"{row['r2'][column]:.3f}" for column in COLUMNS)) for row in rows]
    values = {column: [row["r2"][column] for row in rows] for column in COLUMNS}
    table.append(("mean", *(f"{fmean(values[column]):.3f}" for column in COLUMNS)))
    errors = [compute_standard_error(values[column]) for column in COLUMNS]
    table.append(("s.e.", *("-" if math.isnan(error) else f"{error:.3f}" for error in errors)))
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    return "\n".join(
        [
            result["command"],
            f"{result['machine']}; {versions}",
            "R2, mean over clients on their own test samples",
            "",
            align_columns(table),
        ]
    )

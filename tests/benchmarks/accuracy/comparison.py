"""FedAvg and FedProx compared with Flower: the same partition, initial weights, training and test samples.

Each seed has its own partition, which edgefl and Flower share. The accuracy is the mean over clients of the
federated model's accuracy on each client's test samples. Both run the same algorithm. They shuffle the
samples differently, so their models differ as the models of two seeds do.

The rule: an algorithm has the same accuracy within seeds if the mean over seeds of the difference between
edgefl and Flower is at most two standard errors of that mean, in either direction. The differences are paired
by seed. With three seeds, chance alone breaks the rule in about one of five measurements of equal programs.
More seeds then decide.
"""

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from edgefl.base.config import MIXTURE_ONLY, FederationConfig
from edgefl.base.system.format import align_columns
from edgefl.base.system.host import describe_machine
from edgefl.base.system.stderr import suppress_stderr
from edgefl.base.types import Shard, Weights
from edgefl.data.partitions.client_partition import make_client_ids
from edgefl.lab.reproduce.outcomes import make_stage_config
from edgefl.program.learner.base import evaluate
from edgefl.program.learner.litert import LiteRTLearner
from edgefl.program.plan.spec import PREDICT_SINGLE, Plan
from edgefl.simulation.clients import drop_mixture
from edgefl.simulation.runs.pipeline import open_partitioned_dataset
from edgefl.simulation.simulate import Simulation, simulate
from tests.benchmarks.accuracy import keras_trainer
from tests.benchmarks.accuracy.flower_app import Run, play, start_flower_clients
from tests.benchmarks.flower import FLOWER, Deployment, read_package_versions

FEDERATION = "fashion-dirichlet"
ALGORITHMS = ("fedavg", "fedprox")
PACKAGES = ("ai-edge-litert", "tensorflow", "keras", "numpy")
FLOWER_PACKAGES = (FLOWER, "tensorflow", "keras", "numpy")
ACCURACY = "accuracy_federated"
STANDARD_ERRORS = 2
HEADINGS = ("algorithm", "seed", "edgefl %", "Flower %", "difference")

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Agreement:
    """The accuracies of edgefl and Flower over seeds, in per cent.

    Attributes:
        edgefl: mean over seeds.
        flower: mean over seeds.
        difference: mean over seeds of edgefl minus Flower, in points.
        standard_error: standard error of the difference.
        is_same: whether the difference is at most `STANDARD_ERRORS` standard errors, in either direction.
    """

    edgefl: float
    flower: float
    difference: float
    standard_error: float
    is_same: bool


def compute_agreement(edgefl: Sequence[float], flower: Sequence[float]) -> Agreement:
    """Return how the accuracies agree.

    Args:
        edgefl: accuracy of each seed, in per cent. At least two seeds.
        flower: accuracy of the same seeds, in per cent.
    """
    differences = [a - b for a, b in zip(edgefl, flower, strict=True)]
    difference = fmean(differences)
    error = stdev(differences) / math.sqrt(len(differences))
    return Agreement(
        edgefl=fmean(edgefl),
        flower=fmean(flower),
        difference=difference,
        standard_error=error,
        is_same=abs(difference) <= STANDARD_ERRORS * error,
    )


def make_benchmark_config(algorithm: str, seed: int) -> FederationConfig:
    """Return a federation of the benchmark. Clients train on all of their samples and choose no model."""
    return replace(make_stage_config(FEDERATION, algorithm, "reduced", seed), personalization=MIXTURE_ONLY)


def run_accuracy_bench(flwr_python: str, seeds: int, command: str, progress: Progress) -> dict[str, Any]:
    """Run the federations of all seeds with edgefl and with Flower, and return their accuracies.

    Args:
        flwr_python: a Python that has flwr and TensorFlow.
        seeds: number of seeds, from 1. At least two.
        command: the command that was typed.
        say: receives progress.

    Raises:
        ConfigError: a package is missing in that Python.
        EdgeflError: a federation fails.
    """
    versions = {package: version(package) for package in PACKAGES}
    flower_versions = read_package_versions(flwr_python, FLOWER_PACKAGES)
    clients = make_client_ids(make_benchmark_config(ALGORITHMS[0], 1).partition.num_clients)
    rows: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory(prefix="edgefl-bench-", ignore_cleanup_errors=True) as name,
        start_flower_clients(Path(name), flwr_python, clients) as flower,
    ):
        for seed in range(1, seeds + 1):
            rows += _play_seed(Path(name) / f"seed-{seed}", flower, seed, progress)
    return {
        "machine": describe_machine(),
        "versions": versions,
        "flower_versions": flower_versions,
        "command": command,
        "federation": FEDERATION,
        "rows": rows,
        "agreement": {
            algorithm: asdict(
                compute_agreement(
                    [row["edgefl"] for row in rows if row["algorithm"] == algorithm],
                    [row["flower"] for row in rows if row["algorithm"] == algorithm],
                )
            )
            for algorithm in ALGORITHMS
        },
    }


def _play_seed(directory: Path, flower: Deployment, seed: int, progress: Progress) -> list[dict[str, Any]]:
    """Return a row for each algorithm. edgefl and Flower share the partition and the initial weights."""
    configs = {algorithm: make_benchmark_config(algorithm, seed) for algorithm in ALGORITHMS}
    with open_partitioned_dataset(configs[ALGORITHMS[0]]) as shared:
        return _play_both(directory, flower, shared.shards, configs, seed, progress)


def _play_both(
    directory: Path,
    flower: Deployment,
    shards: Mapping[str, Shard],
    configs: Mapping[str, FederationConfig],
    seed: int,
    progress: Progress,
) -> list[dict[str, Any]]:
    directory.mkdir()
    for client, shard in shards.items():
        np.savez(directory / f"{client}.npz", x_train=shard.x_train, y_train=shard.y_train)
    plans: dict[str, Plan] = {}
    runs: list[Run] = []
    accuracies: dict[str, float] = {}
    for algorithm, config in configs.items():
        progress(f"seed {seed}, {algorithm}: edgefl")
        plan, initial = build(config)
        simulation = simulate(plan, initial, shards, config, keep_result=drop_mixture)
        accuracies[algorithm] = compute_mean_accuracy(simulation)
        plans[algorithm] = plan
        model = directory / f"{algorithm}.keras"
        save_model(config, initial, model)
        runs.append(
            Run(
                algorithm=algorithm,
                initial=initial,
                model=model,
                samples=directory,
                rounds=config.rounds,
                seed=seed,
                options=plan.spec.options,
            )
        )
    progress(f"seed {seed}: Flower")
    rows: list[dict[str, Any]] = []
    for run, weights in zip(runs, play(directory, flower, runs), strict=True):
        edgefl = 100 * accuracies[run.algorithm]
        flower_accuracy = 100 * measure_accuracy(plans[run.algorithm], weights, shards)
        rows.append({"algorithm": run.algorithm, "seed": seed, "edgefl": edgefl, "flower": flower_accuracy})
        progress(f"seed {seed}, {run.algorithm}: edgefl {edgefl:.2f}%, Flower {flower_accuracy:.2f}%")
    return rows


def build(config: FederationConfig) -> tuple[Plan, Weights]:
    """Return the plan of a federation and its initial weights."""
    with suppress_stderr():
        from edgefl.learning.algorithms.plans import build_plan

        return build_plan(config)


def save_model(config: FederationConfig, weights: Weights, path: Path) -> None:
    """Write the Keras model of a federation with these weights."""
    from edgefl.program.models import build_model

    model = build_model(config.model)
    for name, variable in keras_trainer.get_named_variables(model).items():
        variable.assign(weights[name])
    model.save(path)


def compute_mean_accuracy(simulation: Simulation) -> float:
    """Return the mean accuracy of the federated model over the clients that have test samples."""
    values = [metrics[ACCURACY] for metrics in simulation.metrics.values() if metrics["n_test"]]
    return fmean(values)


def measure_accuracy(plan: Plan, weights: Weights, shards: Mapping[str, Shard]) -> float:
    """Return the mean accuracy of a model over the clients that have test samples."""
    learner = LiteRTLearner(plan)
    measured = [
        evaluate(learner, PREDICT_SINGLE, weights, shard.x_test, shard.y_test)
        for shard in (shards[client] for client in sorted(shards))
    ]
    return fmean(metrics.accuracy for metrics in measured if metrics.num_samples)


def render(result: dict[str, Any]) -> str:
    """Return the result as text for a terminal."""
    table: list[tuple[str, ...]] = [HEADINGS]
    sentences: list[str] = []
    for algorithm, summary in result["agreement"].items():
        for row in result["rows"]:
            if row["algorithm"] == algorithm:
                table.append(_format_row(algorithm, str(row["seed"]), row["edgefl"], row["flower"]))
        table.append(_format_row(algorithm, "mean", summary["edgefl"], summary["flower"]))
        relation = "the same accuracy within seeds" if summary["is_same"] else "not the same accuracy"
        bound = "at most" if summary["is_same"] else "more than"
        sentences.append(
            f"{algorithm}: {relation}. The mean difference is {summary['difference']:+.2f} points with a "
            f"standard error of {summary['standard_error']:.2f}: {bound} two standard errors."
        )
    return "\n".join(
        [
            result["command"],
            f"{result['machine']}; {_format_versions(result['versions'])}",
            f"Flower: {_format_versions(result['flower_versions'])}",
            f"federation {result['federation']}; accuracy of the federated model on each client's own test "
            "samples, mean over clients",
            "",
            align_columns(table),
            "",
            *sentences,
        ]
    )


def _format_row(algorithm: str, seed: str, edgefl: float, flower: float) -> tuple[str, ...]:
    return (algorithm, seed, f"{edgefl:.2f}", f"{flower:.2f}", f"{edgefl - flower:+.2f}")


def _format_versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in versions.items())

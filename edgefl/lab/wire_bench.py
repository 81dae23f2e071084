"""`edgefl bench wire`: compares the codecs of updates with fp32 in bytes per update and in accuracy."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgefl.base.config import MIXTURE_ONLY, DataConfig, FederationConfig, ModelConfig, PartitionConfig
from edgefl.base.system.host import describe_machine, read_versions
from edgefl.base.system.progress import Progress
from edgefl.lab.reproduce.stage import ExperimentStage, StageRunner

BENCH_CLIENTS = 50
BENCH_COHORT_SIZE = 10
BENCH_TRAIN_SAMPLES = 15_000


def run_wire_bench(
    codecs: Sequence[str], rounds: int, seeds: int, out: Path, processes: int, data: str, progress: Progress
) -> dict[str, Any]:
    """Simulate a federation of LeNet-5 with each codec.

    The clients share the data by a Dirichlet partition with alpha 0.5.

    Args:
        codecs: the codecs to compare. fp32 always runs first.
        rounds: number of rounds of each run, at least 1.
        seeds: number of seeds of each codec: 1, 2, ...
        out: directory of the runs. Finished runs in it are reused, interrupted runs continue.
        processes: number of client processes.
        data: name of the data set.
        progress: receives a line per codec.

    Returns:
        The result as a JSON tree, with one row per codec. A row has the bytes per update and the accuracy in
        per cent.
    """
    base = FederationConfig(
        name="wire",
        rounds=rounds,
        clients_per_round=BENCH_COHORT_SIZE,
        algorithm="fedavg",
        options={"epochs": 2, "learning_rate": 0.01, "momentum": 0.5, "batch_size": 10},
        model=ModelConfig(name="lenet5", input_shape=(28, 28, 1), num_classes=10),
        data=DataConfig(name=data, num_train=BENCH_TRAIN_SAMPLES if data == "fashion-mnist" else 0),
        partition=PartitionConfig(name="dirichlet", num_clients=BENCH_CLIENTS, options={"alpha": 0.5}),
        personalization=MIXTURE_ONLY,
    )
    rows = []
    with StageRunner(out=out, command="edgefl bench wire", processes=processes, progress=progress) as stages:
        for codec in ("fp32", *(codec for codec in codecs if codec != "fp32")):
            results = []
            for seed in range(1, seeds + 1):
                config = replace(base, seed=seed, codec=codec)
                results.append(
                    stages.play(
                        ExperimentStage(name=f"wire-{codec}", config=config, measure_test=True),
                        f"{codec}, seed {seed} of {seeds}",
                    )
                )
            accuracies = [100 * float(result["figures"]["global_federated"]["mean"]) for result in results]
            sent = [
                result["bytes_up"] / sum(len(record["updates"]) for record in result["records"])
                for result in results
            ]
            rows.append(
                {
                    "codec": codec,
                    "bytes_an_update": sum(sent) / seeds,
                    "accuracies": accuracies,
                    "accuracy": sum(accuracies) / seeds,
                }
            )
            progress(
                f"{codec}: {rows[-1]['bytes_an_update'] / 1e3:.1f} kB an update, {rows[-1]['accuracy']:.2f} %"
            )
    for row in rows:
        row["bytes_of_fp32"] = row["bytes_an_update"] / rows[0]["bytes_an_update"]
        row["points_from_fp32"] = row["accuracy"] - rows[0]["accuracy"]
    set_up = (
        f"LeNet-5, {data}, {BENCH_CLIENTS} clients by Dirichlet(.5), {BENCH_COHORT_SIZE} a round, {rounds} "
        f"rounds, {seeds} seeds"
    )
    return {"set_up": set_up, "machine": describe_machine(), "versions": read_versions(), "rows": rows}


def render_wire_bench(result: dict[str, Any]) -> str:
    """Return the result of `run_wire_bench` as text for a terminal."""
    lines = [result["set_up"], result["machine"], ""]
    lines.append(f"{'codec':14} {'kB an update':>12} {'of fp32':>8} {'accuracy':>9} {'points from fp32':>17}")
    for row in result["rows"]:
        lines.append(
            f"{row['codec']:14} {row['bytes_an_update'] / 1e3:12.1f} {row['bytes_of_fp32']:8.3f} "
            f"{row['accuracy']:9.2f} {row['points_from_fp32']:+17.2f}"
        )
    return "\n".join(lines)

"""One simulation of the simulate benchmark: `run PLAN SAMPLES CLIENTS COHORT SAMPLES_EACH ROUNDS PROCESSES`.

It prints client steps a second without the first round, in which processes start and open the plan.
"""

import json
import math
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from edgefl.base.config import FederationConfig
from edgefl.base.types import ServerState
from edgefl.data.dataset import Dataset
from edgefl.data.mapped_shards import MappedShards
from edgefl.data.partitions.client_partition import ClientPartition, make_client_ids
from edgefl.program.plan.spec import PlanSpec, load_plan
from edgefl.simulation.clients import drop_mixture
from edgefl.simulation.engines.processes import choose_local_engine
from edgefl.simulation.simulate import Record, simulate

TEST_SHARE = 5
"""Number of training samples for each test sample."""


def make_random_shards(spec: PlanSpec, directory: Path, clients: int, samples: int) -> MappedShards:
    """Write and return shards of random pictures. They are uint8 and memory-mapped, as in `edgefl simulate`.

    They are written client by client, so that drawing the data does not add to the measured memory.
    """
    rng = np.random.default_rng(1)
    tests = max(1, samples // TEST_SHARE)
    labels = []
    for name, count in (("x_train", samples), ("x_test", tests)):
        labels.append(rng.integers(0, spec.num_classes, clients * count))
        with (directory / f"{name}.npy").open("wb") as file:
            header = {"descr": "|u1", "fortran_order": False, "shape": (clients * count, *spec.input_shape)}
            np.lib.format.write_array_header_1_0(file, header)
            for _ in range(clients):
                file.write(rng.bytes(count * math.prod(spec.input_shape)))
    empty = np.zeros(0, np.float32)
    client_partitions = {
        client_id: ClientPartition(train=np.arange(samples) + i * samples, test=np.arange(tests) + i * tests)
        for i, client_id in enumerate(make_client_ids(clients))
    }
    return MappedShards(
        directory,
        Dataset(
            x_train=empty, y_train=labels[0], x_test=empty, y_test=labels[1], num_classes=spec.num_classes
        ),
        client_partitions,
    )


def main(
    plan_directory: Path,
    samples_file: Path,
    clients: int,
    cohort: int,
    samples: int,
    rounds: int,
    processes: int,
) -> None:
    """Run the simulation, and print steps a second as one JSON line."""
    plan = load_plan(plan_directory)
    with np.load(samples_file) as file:
        initial = {spec.name: file[spec.name] for spec in plan.spec.weights}
    config = replace(FederationConfig(), rounds=rounds, clients_per_round=cohort)
    size = plan.spec.find_signature("train").batch_size
    steps = 0
    seconds = 0.0
    epochs = int(plan.spec.options["epochs"])

    def count(state: ServerState, record: Record) -> None:
        nonlocal steps, seconds
        if record.round > 1:
            steps += sum(
                -(-int(metrics["num_samples"]) // size) * epochs for metrics in record.updates.values()
            )
            seconds += record.seconds

    with tempfile.TemporaryDirectory(prefix="edgefl-bench-") as directory:
        shards = make_random_shards(plan.spec, Path(directory), clients, samples)
        simulate(
            plan,
            initial,
            shards,
            config,
            open_engine=choose_local_engine(processes),
            progress=count,
            keep_result=drop_mixture,
        )
    print(json.dumps({"steps_per_second": steps / seconds, "steps": steps}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))

"""The training of a fleet without MQTT: `local_training PLAN DATA CLIENT SEED` trains once for each line on
standard input.

It runs the client runner as a device does, with the same plan, samples and learner. It prints a line when it
is ready, and a line after each training. The first training opens the plan and precedes the first line.
"""

import sys
from collections.abc import Callable
from pathlib import Path

from devices.local_dataset import LocalDataset
from devices.training import open_runner
from edgefl.base.rng import derive_rng
from edgefl.base.types import ClientState
from edgefl.data.sources import DataSource
from edgefl.learning.algorithms import make_algorithm
from edgefl.learning.client.runner import WorkItem
from edgefl.program.plan.spec import INITIAL_FILE, load_plan
from edgefl.protocol.server.initial_weights import decode_initial_weights

THREADS = 1


def make_trainer(plan_directory: Path, data: str, client_id: str, seed: int) -> Callable[[], None]:
    """Return a function that trains the initial model once."""
    plan = load_plan(plan_directory)
    initial = plan_directory / INITIAL_FILE
    weights = decode_initial_weights(initial.read_bytes(), plan.spec, str(initial))
    runner = open_runner(plan, LocalDataset(DataSource(data=data)), seed, client_id, "litert", THREADS)
    server = make_algorithm(plan.spec.algorithm, None, plan.spec.options)
    broadcast = server.broadcast(server.init(weights, derive_rng(seed, 0, "init")), client_id)

    def train() -> None:
        runner.update(WorkItem(broadcast=broadcast, state=ClientState(), client_id=client_id))

    return train


def main(plan_directory: Path, data: str, client_id: str, seed: int) -> None:
    """Train once for each line of standard input."""
    train = make_trainer(plan_directory, data, client_id, seed)
    train()
    print("ready", flush=True)
    for _ in sys.stdin:
        train()
        print("trained", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))

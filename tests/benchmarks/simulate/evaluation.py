"""The cost of each round's accuracy for a client: processor time of an update with and without it.

    python -m tests.benchmarks evaluation --repeats 41

The two take turns. Each figure is the median over the turns.
"""

import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from edgefl.base.config import FederationConfig, ModelConfig
from edgefl.base.rng import derive_rng
from edgefl.base.system.format import align_columns
from edgefl.base.system.host import describe_machine, read_versions
from edgefl.base.types import ClientState, Shard
from edgefl.learning.algorithms import make_algorithm
from edgefl.learning.algorithms.plans import build_plan
from edgefl.learning.client.runner import ClientRunner, WorkItem
from edgefl.program.learner.litert import LiteRTLearner

ALGORITHMS = ("fedavg", "clustered", "ifca", "aem", "fedmix")
CLIENT = "client"


def make_samples(count: int) -> Shard:
    """Return noise in the shape of digits. The time does not depend on the values."""
    rng = np.random.default_rng(1)
    x = rng.random((count, 28, 28, 1)).astype(np.float32)
    return Shard(
        x_train=x,
        y_train=rng.integers(0, 10, count),
        x_test=x[:0],
        y_test=np.zeros(0, np.int64),
        num_classes=10,
    )


def measure(name: str, samples: int, repeats: int) -> dict[str, float]:
    """Return processor time of a LeNet-5 client's update and of the evaluation, in milliseconds.

    Args:
        name: the algorithm, with its default options.
        samples: number of the client's training samples. One in five validates.
        repeats: number of turns.
    """
    plan, initial = build_plan(FederationConfig(algorithm=name, model=ModelConfig(name="lenet5")))
    learner = LiteRTLearner(plan)
    runner = ClientRunner(plan, learner, {CLIENT: make_samples(samples)}, 1)
    server = make_algorithm(name, None, plan.spec.options)
    broadcast = server.broadcast(server.init(initial, derive_rng(1, 0, "init")), CLIENT)
    items = [
        WorkItem(broadcast=broadcast, state=ClientState(), client_id=CLIENT, evaluate=evaluate)
        for evaluate in (False, True)
    ]
    times: tuple[list[float], list[float]] = ([], [])
    runner.update(items[0])
    for _ in range(repeats):
        for item, durations_ms in zip(items, times, strict=True):
            begin = time.process_time()
            runner.update(item)
            durations_ms.append(1000 * (time.process_time() - begin))
    without = statistics.median(times[0])
    added = statistics.median([b - a for a, b in zip(*times, strict=True)])
    return {"update_ms": round(without, 1), "added_ms": round(added, 1), "share": round(added / without, 4)}


def run_evaluation_bench(
    samples: int, repeats: int, algorithms: Sequence[str] = ALGORITHMS
) -> dict[str, Any]:
    """Measure some algorithms.

    Args:
        samples: number of the client's training samples.
        repeats: number of turns.
        algorithms: their names.

    Returns:
        Machine, versions and the figures by algorithm, see `measure`.
    """
    return {
        "machine": describe_machine(),
        "versions": read_versions(),
        "algorithms": {name: measure(name, samples, repeats) for name in algorithms},
    }


def render(result: dict[str, Any]) -> str:
    """Return the result as text for a terminal."""
    rows = [("", "update, ms", "accuracy, ms", "share")]
    rows += [
        (name, f"{row['update_ms']:.0f}", f"{row['added_ms']:.0f}", f"{row['share']:.0%}")
        for name, row in result["algorithms"].items()
    ]
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    return f"{result['machine']}; {versions}\n\n{align_columns(rows)}"

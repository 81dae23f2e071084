"""The cost of choosing a model for a client: processor time of the parts of its personalization.

    python -m tests.benchmarks selection

A client makes all models without its validation samples, scores them on these samples, and then makes all
models again on all samples. Without a choice, only the last part would remain.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from edgefl.base.config import FederationConfig, ModelConfig
from edgefl.base.rng import derive_rng
from edgefl.base.types import ClientState, Peer, Shard
from edgefl.learning.algorithms import make_algorithm
from edgefl.learning.algorithms.base import PHASE_PERSONALIZE
from edgefl.learning.algorithms.plans import build_plan
from edgefl.learning.client.measures import score_samples
from edgefl.learning.client.personalization import make_candidates
from edgefl.learning.client.runner import ClientRunner, WorkItem
from edgefl.program.learner.litert import LiteRTLearner
from edgefl.protocol.server.server_algorithm import build_server_algorithm
from edgefl.simulation.simulate import Checkpoint, simulate
from tests.benchmarks.simulate.evaluation import CLIENT, make_samples

ALGORITHMS = ("fedavg", "clustered", "fedap", "aem", "fedmix", "pfl-mfe")
T = TypeVar("T")


def measure(name: str, samples: int, rounds: int) -> dict[str, float]:
    """Return seconds of processor time of the parts of a LeNet-5 client's personalization.

    Args:
        name: the algorithm, with its default options.
        samples: number of the client's training samples. One in five validates.
        rounds: number of rounds, which decides how long the local model trains.

    Returns:
        first_s: time to make the models to compare. comparison_s: time to score them. finishing_s: time to
        make them again. first_share, comparison_share: the share of each in the sum of the three.
    """
    config = FederationConfig(algorithm=name, model=ModelConfig(name="lenet5"), rounds=rounds)
    plan, initial = build_plan(config)
    learner = LiteRTLearner(plan)
    shards = {client: make_samples(samples) for client in (CLIENT, "other")}
    states: dict[str, ClientState] = {}
    final_state = simulate(plan, initial, shards, config, checkpoint=Checkpoint(clients=states)).state
    state = replace(final_state, phase=PHASE_PERSONALIZE)
    server = build_server_algorithm(
        make_algorithm(name, None, plan.spec.options), config, plan.spec, key=bytes(32)
    )
    item = WorkItem(broadcast=server.broadcast(state, CLIENT), state=states[CLIENT], client_id=CLIENT)
    runner = ClientRunner(plan, learner, shards, config.seed)
    split = runner.split(CLIENT)

    def make(shard: Shard) -> Mapping[str, Peer]:
        return make_candidates(
            runner.configure_algorithm(item),
            learner,
            item.broadcast,
            item.state,
            shard,
            config.personalization,
            lambda purpose: derive_rng(config.seed, state.round, f"{CLIENT}:{purpose}"),
        ).models

    compared, first = _measure_time(lambda: make(split.train))
    _, comparison = _measure_time(
        lambda: [score_samples(learner, peer, split.x, split.y) for peer in compared.values()]
    )
    _, finishing = _measure_time(lambda: make(runner.shards[CLIENT]))
    total = first + comparison + finishing
    return {
        "first_s": round(first, 2),
        "comparison_s": round(comparison, 4),
        "finishing_s": round(finishing, 2),
        "first_share": round(first / total, 3),
        "comparison_share": round(comparison / total, 5),
    }


def _measure_time(function: Callable[[], T]) -> tuple[T, float]:
    begin = time.process_time()
    result = function()
    return result, time.process_time() - begin

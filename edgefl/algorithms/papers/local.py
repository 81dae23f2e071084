"""Local training, the baseline without a federation.

Each client trains alone from the same initial weights. It trains as many epochs as it would have trained in
the rounds. This is the baseline `Local` of all five papers.

Rounds still run, and cost one message for each client. The client trains when it personalizes, so the choice
of cohorts makes no difference.

Communication cost: down nothing in the rounds and the initial weights at their end, up one message without a
delta.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from edgefl.algorithms.base import PHASE_FEDERATE, Algorithm
from edgefl.algorithms.entry import Entry
from edgefl.algorithms.names import INITIAL
from edgefl.algorithms.options import TrainingOptions, as_sgd_hyper
from edgefl.algorithms.papers.fedavg import build_fedavg_objectives
from edgefl.learner.base import Learner
from edgefl.types import Broadcast, ClientState, Mixture, ServerState, Shard, Update, Weights

if TYPE_CHECKING:
    pass

EPOCHS_SCALAR = "epochs"


@dataclass(frozen=True)
class LocalOptions(TrainingOptions):
    """Options of training by SGD, and a limit.

    Attributes:
        max_epochs: maximum number of epochs in total. 0: no limit.
    """

    max_epochs: int = 0


def local(learner: Learner | None, options: LocalOptions) -> Algorithm:
    """Return the baseline without a federation.

    A client trains `epochs` epochs for each round, but at most `max_epochs` in total. An update has no delta.
    Its loss is NaN because nothing was trained.

    Args:
        learner: runs the plan. The aggregator passes None.
        options: the options of the algorithm.
    """

    def init(weights: Weights, rng: np.random.Generator) -> ServerState:
        return ServerState(1, PHASE_FEDERATE, {INITIAL: weights})

    def broadcast(state: ServerState, client_id: str) -> Broadcast:
        if state.phase == PHASE_FEDERATE:
            return Broadcast(state.round, state.phase, {})
        count = (state.round - 1) * options.epochs
        return Broadcast(
            state.round,
            state.phase,
            state.models,
            {EPOCHS_SCALAR: float(min(count, options.max_epochs) if options.max_epochs else count)},
        )

    def local_update(
        broadcast: Broadcast, state: ClientState, shard: Shard, client_id: str, rng: np.random.Generator
    ) -> tuple[Update, ClientState]:
        return Update(client_id, broadcast.round, len(shard.y_train), {}, {"loss": math.nan}), state

    def aggregate(state: ServerState, updates: Iterable[Update]) -> ServerState:
        for _ in updates:
            pass  # an iterator may compute the updates only when they are read
        return replace(state, round=state.round + 1)

    def personalize(
        broadcast: Broadcast, state: ClientState, shard: Shard, rng: np.random.Generator
    ) -> tuple[Mixture, ClientState]:
        assert learner is not None
        first = broadcast.models[INITIAL]
        count = int(broadcast.scalars[EPOCHS_SCALAR])
        trained, _ = learner.fit(
            "train",
            first,
            {"x": shard.x_train},
            shard.y_train,
            epochs=count,
            rng=rng,
            hyper=as_sgd_hyper(options),
        )
        return Mixture({**first, **trained}), state

    return Algorithm(
        "local", init, broadcast, local_update, aggregate, personalize, current=lambda *received: None
    )


ENTRIES = {"local": Entry(LocalOptions, local, build_fedavg_objectives, "the baseline without a federation")}

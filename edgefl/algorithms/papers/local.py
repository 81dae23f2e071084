"""No federation: each client trains alone, from the same first weights, for as many epochs as the rounds
would have given it.

The baseline `Local` of all five papers. Rounds pass and cost a message each; the work is done when a client
personalizes, so that who was drawn into which cohort makes no difference.

Traffic: down nothing in the rounds and the first weights at their end; up nothing but that a client is there.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from edgefl.algorithms.base import FEDERATE, Algorithm
from edgefl.algorithms.entry import entry
from edgefl.algorithms.names import INITIAL
from edgefl.algorithms.papers.fedavg import fedavg_objectives
from edgefl.learner.base import Learner
from edgefl.types import Broadcast, ClientState, Mixture, ServerState, Shard, Update, Weights

if TYPE_CHECKING:
    from edgefl.compiler.network import Network
    from edgefl.compiler.objective import Objective

EPOCHS = "epochs"


def local(
    learner: Learner | None,
    *,
    epochs: int = 5,
    learning_rate: float = 0.01,
    momentum: float = 0.5,
    weight_decay: float = 0.0,
    batch_size: int = 10,
    max_epochs: int = 0,
) -> Algorithm:
    """Return the baseline without a federation: `epochs` for each round, `max_epochs` at most (0: no bound).

    The options are those of fedavg. An update has no delta, and its loss is NaN: nothing was trained.
    """
    del batch_size
    hyper = {"learning_rate": learning_rate, "momentum": momentum, "weight_decay": weight_decay}

    def init(weights: Weights, rng: np.random.Generator) -> ServerState:
        return ServerState(1, FEDERATE, {INITIAL: weights})

    def broadcast(state: ServerState, client_id: str) -> Broadcast:
        if state.phase == FEDERATE:
            return Broadcast(state.round, state.phase, {})
        count = (state.round - 1) * epochs
        return Broadcast(
            state.round,
            state.phase,
            state.models,
            {EPOCHS: float(min(count, max_epochs) if max_epochs else count)},
        )

    def local_update(
        broadcast: Broadcast, state: ClientState, shard: Shard, client_id: str, rng: np.random.Generator
    ) -> tuple[Update, ClientState]:
        return Update(client_id, broadcast.round, len(shard.y_train), {}, {"loss": math.nan}), state

    def aggregate(state: ServerState, updates: Iterable[Update]) -> ServerState:
        for _ in updates:
            pass  # they may be computed as they are read
        return replace(state, round=state.round + 1)

    def personalize(
        broadcast: Broadcast, state: ClientState, shard: Shard, rng: np.random.Generator
    ) -> tuple[Mixture, ClientState]:
        assert learner is not None
        first = broadcast.models[INITIAL]
        count = int(broadcast.scalars[EPOCHS])
        trained, _ = learner.fit(
            "train", first, {"x": shard.x_train}, shard.y_train, epochs=count, rng=rng, hyper=hyper
        )
        return Mixture({**first, **trained}), state

    return Algorithm("local", init, broadcast, local_update, aggregate, personalize)


def local_objectives(network: "Network", options: Mapping[str, Any]) -> tuple["Objective", ...]:
    """Return FedAvg's."""
    return fedavg_objectives(network, options)


ENTRIES = {"local": entry(local, local_objectives, "the baseline without a federation")}

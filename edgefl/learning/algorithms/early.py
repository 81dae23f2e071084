"""The common parts of the algorithms that run before round 1, each for one round."""

from collections.abc import Callable, Iterable

import numpy as np

from edgefl.base.errors import ConfigError
from edgefl.base.types import Broadcast, ClientState, Mixture, ServerState, Shard, Update, Weights
from edgefl.learning.algorithms.base import Algorithm, TrainedModels


def make_early_algorithm(
    name: str,
    answer: str,
    init: Callable[[Weights, np.random.Generator], ServerState],
    local_update: Callable[
        [Broadcast, ClientState, Shard, str, np.random.Generator], tuple[Update, ClientState]
    ],
    aggregate: Callable[[ServerState, Iterable[Update]], ServerState],
) -> Algorithm:
    """Return an algorithm whose clients receive all models of the server, and which makes no personal model.

    Args:
        answer: name of the model whose delta an update holds.
        aggregate: returns the server state after the round.
    """

    def broadcast(state: ServerState, client_id: str) -> Broadcast:
        return Broadcast(round=state.round, phase=state.phase, models=state.models)

    def personalize(
        broadcast: Broadcast, state: ClientState, shard: Shard, rng: np.random.Generator
    ) -> tuple[Mixture, ClientState]:
        raise ConfigError(f"the algorithm {name!r} makes no personal model; choose another algorithm")

    return Algorithm(
        name=name,
        init=init,
        broadcast=broadcast,
        local_update=local_update,
        aggregate=aggregate,
        personalize=personalize,
        current=lambda broadcast, state, shard: None,
        trained=TrainedModels(required=(answer,)),
    )

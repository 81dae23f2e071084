"""Adds the start of a local model to the last broadcast, so that each client can compare against it."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from edgefl.base.config import FederationConfig
from edgefl.base.types import Broadcast, ServerState, Update, Weights
from edgefl.learning.algorithms.base import PHASE_PERSONALIZE, Algorithm
from edgefl.learning.algorithms.names import LOCAL_EPOCHS, LOCAL_START
from edgefl.program.plan.spec import PREDICT_SINGLE, PlanSpec


def count_local_epochs(config: FederationConfig, spec: PlanSpec, round: int) -> int:
    """Return the number of epochs that a client trains when it takes part in every round.

    A client trains its local model for at most these epochs plus the epochs of its personalization.

    Args:
        spec: the plan's specification, which holds the option `epochs`.
        round: number of the round that would follow. If the rounds ended early, it is below `rounds` of the
            configuration. In the last round clients make their local models already, for all rounds.

    Returns:
        Rounds times epochs of a round.
    """
    rounds = config.rounds if round >= config.rounds else round - 1
    return rounds * int(spec.options.get("epochs", 1))


def with_baseline(algorithm: Algorithm, config: FederationConfig, spec: PlanSpec) -> Algorithm:
    """Return the algorithm with the start of the local models in its last broadcast.

    The last broadcast also holds the number of epochs of a local model. The server state holds the start from
    the first round on, under `LOCAL_START`. The algorithm itself never sees it.

    The algorithm is returned unchanged when the plan has no `[personalization]` settings or `baseline =
    false`.

    Args:
        algorithm: the algorithm, without a learner.
    """
    signatures = {item.name for item in spec.signatures}
    if not spec.personalization.get("baseline") or PREDICT_SINGLE not in signatures:
        return algorithm
    names = [item.name for item in spec.find_signature(PREDICT_SINGLE).frozen]

    def remove_start(state: ServerState) -> ServerState:
        return replace(state, models={name: w for name, w in state.models.items() if name != LOCAL_START})

    def with_start(state: ServerState, start: Weights) -> ServerState:
        return replace(state, models={**state.models, LOCAL_START: start})

    def init(weights: Weights, rng: np.random.Generator) -> ServerState:
        return with_start(algorithm.init(weights, rng), {name: weights[name] for name in names})

    def broadcast(state: ServerState, client_id: str) -> Broadcast:
        sent = algorithm.broadcast(remove_start(state), client_id)
        if state.phase != PHASE_PERSONALIZE:
            return sent
        return replace(
            sent,
            models={**sent.models, LOCAL_START: state.models[LOCAL_START]},
            scalars={**sent.scalars, LOCAL_EPOCHS: float(count_local_epochs(config, spec, state.round))},
        )

    def aggregate(state: ServerState, updates: Iterable[Update]) -> ServerState:
        return with_start(algorithm.aggregate(remove_start(state), updates), state.models[LOCAL_START])

    return replace(algorithm, init=init, broadcast=broadcast, aggregate=aggregate)

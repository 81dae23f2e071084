"""What the server does so that devices choose their models by the scores of all devices.

In the last round the broadcast also holds what a device needs to make its models, and asks it to compare
them. The updates of that round report the mean score of each model, and the last broadcast tells all devices
the means over the devices. See `edgefl.client.comparison`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from edgefl.algorithms.base import PERSONALIZE, Algorithm
from edgefl.algorithms.names import COMPARE, SCORE
from edgefl.config import FederationConfig
from edgefl.plan.spec import PlanSpec
from edgefl.types import Broadcast, ServerState, Update


def compares_models(config: FederationConfig, spec: PlanSpec) -> bool:
    """Return whether devices compare their models in the last round.

    Scores travel where accuracies may, see `FederationConfig.reports_accuracy`.
    """
    return config.share_scores and config.reports_accuracy and bool(spec.personalization.get("select"))


def with_comparison(algorithm: Algorithm, config: FederationConfig, spec: PlanSpec) -> Algorithm:
    """Return the algorithm with the comparison of models in its last round.

    The server's state holds the scores after the last round; the algorithm itself never sees them. The
    algorithm is returned unchanged where devices do not compare their models.

    Args:
        algorithm: the algorithm, without a learner.
        config: the federation.
        spec: the plan's specification.
    """
    if not compares_models(config, spec):
        return algorithm

    def scores(state: ServerState) -> dict[str, float]:
        return {name: value for name, value in state.scalars.items() if name.startswith(SCORE)}

    def without_scores(state: ServerState) -> ServerState:
        others = {name: value for name, value in state.scalars.items() if not name.startswith(SCORE)}
        return replace(state, scalars=others)

    def broadcast(state: ServerState, client_id: str) -> Broadcast:
        bare = without_scores(state)
        sent = algorithm.broadcast(bare, client_id)
        if state.phase == PERSONALIZE:
            return replace(sent, scalars={**sent.scalars, **scores(state)})
        if state.round != config.rounds:
            return sent
        last = algorithm.broadcast(replace(bare, phase=PERSONALIZE), client_id)
        return replace(
            sent,
            models={**last.models, **sent.models},
            scalars={**last.scalars, **sent.scalars, COMPARE: 1.0},
        )

    def aggregate(state: ServerState, updates: Iterable[Update]) -> ServerState:
        reported: dict[str, list[float]] = {}

        def watched() -> Iterator[Update]:
            for update in updates:
                for name, value in update.metrics.items():
                    if name.startswith(SCORE) and np.isfinite(value):
                        reported.setdefault(name, []).append(min(max(float(value), 0.0), 1.0))
                yield update

        after = algorithm.aggregate(without_scores(state), watched())
        if state.round != config.rounds:
            return after
        means = {name: float(np.mean(values)) for name, values in reported.items()}
        return replace(after, scalars={**after.scalars, **means})

    return replace(algorithm, broadcast=broadcast, aggregate=aggregate)

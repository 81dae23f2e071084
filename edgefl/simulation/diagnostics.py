"""What a simulated round can be measured by, beside what it needs: a look from above that no aggregator has.

It changes no bit of a run.

divergence: of each model's deltas (Reisser et al., arXiv:2107.06724, appendix D); clusters: of all clients
when they were placed; q: FedMix's q(expert given the label); models, clients: where they were evaluated. All
of it goes into rounds.jsonl but for the likeness of clients that a clustering has compared, which is
clusters.json.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from edgefl.algorithms import CLUSTER, PERSONALIZE, assignments, full_options
from edgefl.algorithms.base import Algorithm
from edgefl.algorithms.clustering.cluster_report import likeness
from edgefl.algorithms.mixtures.responsibility import by_condition
from edgefl.algorithms.names import EXPERT, GLOBAL, INITIAL, LOCAL_START, PHI
from edgefl.learner import evaluate
from edgefl.learner.base import Learner
from edgefl.plan.spec import Plan
from edgefl.simulation.clients import evaluate_now, work_items
from edgefl.simulation.engines.base import Engine
from edgefl.simulation.gradient_divergence import Divergence
from edgefl.types import Array, ClientState, Labels, ServerState, Update


class Watch:
    """Watches one round's updates on their way to the aggregation."""

    def __init__(self, plan: Plan, state: ServerState) -> None:
        self._state = state
        self._algorithm = plan.spec.algorithm
        self._options = full_options(plan.spec.algorithm, plan.spec.options) if state.phase == CLUSTER else {}
        self._divergence = Divergence()

    def take(self, update: Update) -> None:
        """Look at an update; it is not kept."""
        for model, delta in update.deltas.items():
            if model == GLOBAL or model.startswith(EXPERT):
                share = update.metrics.get(f"q/{model.removeprefix(EXPERT)}", 1.0)
                self._divergence.add(model, delta, update.num_samples * share)

    def measured(self, after: ServerState) -> dict[str, Any]:
        """Return what the round can be measured by, of what it has."""
        found: dict[str, Any] = {}
        if divergence := self._divergence.result():
            found["divergence"] = {name: round(value, 6) for name, value in divergence.items()}
        placed = assignments(after)
        if placed and placed != assignments(self._state):
            found["clusters"] = placed
        if PHI in after.models:
            found["q"] = np.round(by_condition(after.models[PHI][PHI]), 4).tolist()
        return found

    def likeness(self, after: ServerState) -> dict[str, Any] | None:
        """Return how alike the clients were that this round has clustered; None in any other round."""
        return likeness(self._algorithm, self._options, after) if self._state.phase == CLUSTER else None


def evaluated(
    engine: Engine,
    algorithm: Algorithm,
    state: ServerState,
    states: Mapping[str, ClientState],
    clients: Iterable[str],
    codec: str,
) -> dict[str, dict[str, float]]:
    """Return accuracy and loss of each client's own model on its held-out samples, as if the federation ended
    with this state.

    The states of the clients do not change. Clients train no baseline.
    """
    ids = sorted(clients)
    items = work_items(algorithm, replace(state, phase=PERSONALIZE), ids, states, codec)
    return {
        client_id: {name: round(value, 6) for name, value in metrics.items() if np.isfinite(value)}
        for client_id, metrics in zip(ids, engine.run(evaluate_now, items), strict=True)
    }


def models_on_test(
    plan: Plan, learner: Learner, state: ServerState, x: Array, y: Labels
) -> dict[str, dict[str, float]]:
    """Return accuracy and loss of each whole model that the server holds, on common samples: `global`,
    `expert0`, ...
    """
    names = {spec.name for spec in plan.spec.signature("predict").frozen}
    found = {}
    for name, weights in state.models.items():
        if names <= set(weights) and name not in (INITIAL, LOCAL_START):
            told = evaluate(learner, "predict", weights, x, y)
            found[name] = {"accuracy": round(told.accuracy, 6), "loss": round(told.loss, 6)}
    return found

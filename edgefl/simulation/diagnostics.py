"""Round diagnostics: measurements of a simulated round that an aggregator could not make.

They do not change the results of a run. These keys are written to rounds.jsonl:

- `divergence`: divergence of the clients' deltas, by model.
- `clusters`: cluster of each client, in the round that clusters the clients.
- `q`: FedMix's q(expert given label).
- `models`: accuracy and loss of the server's models, see `evaluate_models`.
- `clients`: accuracy and loss of the clients' models, see `evaluate_clients`.

The similarity of clients is written to clusters.json.

Source: Reisser et al., arXiv:2107.06724, appendix D, for the divergence.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from edgefl.base.types import Array, ClientState, Labels, ServerState, Update
from edgefl.learning.algorithms import PHASE_PERSONALIZE, complete_algorithm_options, read_assignments
from edgefl.learning.algorithms.base import Algorithm
from edgefl.learning.algorithms.clustering.cluster_models import is_newly_clustered
from edgefl.learning.algorithms.clustering.cluster_report import make_cluster_report
from edgefl.learning.algorithms.mixtures.responsibility import normalize_logits
from edgefl.learning.algorithms.names import EXPERT_PREFIX, GLOBAL, INITIAL, LOCAL_START, PHI_MODEL
from edgefl.program.learner import evaluate
from edgefl.program.learner.base import Learner
from edgefl.program.plan.spec import Plan
from edgefl.simulation.clients import evaluate_client, make_work_items
from edgefl.simulation.engines.base import Engine
from edgefl.simulation.gradient_divergence import GradientDivergence


class RoundDiagnostics:
    """Measures the updates of one round before they are aggregated.

    Args:
        state: the server state before the round.
    """

    def __init__(self, plan: Plan, state: ServerState) -> None:
        self._state = state
        self._algorithm = plan.spec.algorithm
        self._options = plan.spec.options
        self._divergence = GradientDivergence()

    def add(self, update: Update) -> None:
        """Measure an update without storing it.

        Args:
            update: the update of a client.
        """
        for model, delta in update.deltas.items():
            if model == GLOBAL or model.startswith(EXPERT_PREFIX):
                share = update.metrics.get(f"q/{model.removeprefix(EXPERT_PREFIX)}", 1.0)
                self._divergence.add(model, delta, update.num_samples * share)

    def summarize(self, after: ServerState) -> dict[str, Any]:
        """Return the diagnostics of the round, ready for JSON.

        Args:
            after: the server state after the round.

        Returns:
            `divergence`, `clusters` and `q`, each only if the round has it.
        """
        measurements: dict[str, Any] = {}
        if divergence := self._divergence.compute():
            measurements["divergence"] = {name: round(value, 6) for name, value in divergence.items()}
        clusters = read_assignments(after)
        if clusters and clusters != read_assignments(self._state):
            measurements["clusters"] = clusters
        if PHI_MODEL in after.models:
            measurements["q"] = np.round(normalize_logits(after.models[PHI_MODEL][PHI_MODEL]), 4).tolist()
        return measurements

    def measure_similarity(self, after: ServerState) -> dict[str, Any] | None:
        """Return the similarity of the clients in a round that clusters them, or None in any other round.

        Args:
            after: the server state after the round.
        """
        if not is_newly_clustered(after):
            return None
        return make_cluster_report(complete_algorithm_options(self._algorithm, self._options), after)


def evaluate_clients(
    engine: Engine,
    algorithm: Algorithm,
    state: ServerState,
    states: Mapping[str, ClientState],
    clients: Iterable[str],
    codec: str,
) -> dict[str, dict[str, float]]:
    """Return accuracy and loss of each client's models, as if the federation ended with this state.

    The states of the clients do not change. No local or fine-tuned model is trained for comparison.

    Args:
        engine: runs the clients.
        algorithm: makes the broadcasts.
        states: client states by client id.
        clients: client ids.
        codec: codec of the updates, see `edgefl.base.codecs`.

    Returns:
        The metrics of `evaluate_client` that are finite, by client id.

    Raises:
        DataError: a client cannot be personalized. The error names client and round.
        EdgeflError: a process of the engine was killed.
    """
    ids = sorted(clients)
    items = make_work_items(algorithm, replace(state, phase=PHASE_PERSONALIZE), ids, states, codec)
    return {
        client_id: {name: round(value, 6) for name, value in metrics.items() if np.isfinite(value)}
        for client_id, metrics in zip(ids, engine.run(evaluate_client, items), strict=True)
    }


def evaluate_models(
    plan: Plan, learner: Learner, state: ServerState, x: Array, y: Labels
) -> dict[str, dict[str, float]]:
    """Return accuracy and loss of each complete model of the server on common test samples.

    A model is complete if it has all weights of the signature `predict`.

    Args:
        x: samples, shape (n, *input_shape), float32.
        y: labels, shape (n,), int64.

    Returns:
        `accuracy` and `loss` by the model's name. Models that only store a start are left out. Empty for
            another task than classification, whose clients have no common test samples.
    """
    if not plan.spec.is_classification:
        return {}
    names = {spec.name for spec in plan.spec.find_signature("predict").frozen}
    metrics = {}
    for name, weights in state.models.items():
        if names <= set(weights) and name not in (INITIAL, LOCAL_START):
            result = evaluate(learner, "predict", weights, x, y)
            metrics[name] = {"accuracy": round(result.accuracy, 6), "loss": round(result.loss, 6)}
    return metrics

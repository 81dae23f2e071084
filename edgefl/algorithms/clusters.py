"""One model a cluster: what the algorithms with clusters share at the aggregator.

A client receives the model of its cluster by the name `global`, and never learns of the others. One that came after the
clustering, or missed it, belongs to the largest cluster. Before the clustering all share the one model.

The clustering round alone holds one delta a client, float32[weights] each, since which means are wanted is not known before
the last has come; each other round folds its updates in one at a time.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from edgefl.algorithms.arithmetic import add, weighted_means
from edgefl.algorithms.base import FEDERATE, assignments, largest_cluster, with_assignments
from edgefl.algorithms.clustering import Cut, explain
from edgefl.algorithms.fedavg import GLOBAL, INITIAL
from edgefl.types import ServerState, Update, Weights

_CUT = "cut/"
MOST_COMPARED = 100
SIMILARITY, MATRIX, LINKAGE = "similarity", "matrix", "linkage"


def model_name(cluster: int) -> str:
    """Return the name of a cluster's model in the server state."""
    return f"cluster{cluster}"


def name_of(state: ServerState) -> Callable[[str], str]:
    """Return the function from a client's id to the name of its model in the server state."""
    placed = assignments(state)
    if not placed:
        return lambda client_id: GLOBAL
    largest = largest_cluster(placed.values())
    return lambda client_id: model_name(placed.get(client_id, largest))


def model_of(state: ServerState, client_id: str) -> Weights:
    """Return the model that a client receives."""
    return state.models[name_of(state)(client_id)]


def moved(state: ServerState, updates: Iterable[Update], rate: float = 1.0) -> dict[str, Weights]:
    """Return the models, each a step of `rate` along the weighted mean of its own clients' deltas; read once, one at a time."""
    name = name_of(state)
    means = weighted_means((name(update.client_id), update.deltas[GLOBAL], update.num_samples) for update in updates)
    return {**state.models, **{model: add(state.models[model], _scaled(mean, rate)) for model, mean in means.items()}}


def divided(state: ServerState, updates: Sequence[Update], cut: Cut) -> ServerState:
    """Return the state after the clustering round: each cluster starts from the weighted mean of its clients' models.

    cut.labels are those of the updates, in their order.
    """
    placed = {update.client_id: int(label) for update, label in zip(updates, cut.labels, strict=True)}
    start = state.models[GLOBAL]
    means = weighted_means((model_name(placed[u.client_id]), u.deltas[GLOBAL], u.num_samples) for u in updates)
    models = {name: add(start, means[name]) if name in means else start for name in map(model_name, range(cut.count))}
    told = {f"{_CUT}at": cut.at, f"{_CUT}below": cut.below} | ({} if cut.above is None else {f"{_CUT}above": cut.above})
    told[f"{_CUT}round"] = float(state.round)
    slots = {**state.slots, **_kept(cut)}
    after = replace(state, round=state.round + 1, phase=FEDERATE, models={INITIAL: state.models[INITIAL], **models}, slots=slots)
    return with_assignments(replace(after, scalars={**state.scalars, **told}), placed)


def _kept(cut: Cut) -> dict[str, Weights]:
    """Return what is kept of the comparison, of at most 100 clients: their order is that of their ids."""
    if cut.similarity is None or len(cut.labels) > MOST_COMPARED:
        return {}
    return {SIMILARITY: {MATRIX: np.asarray(np.round(cut.similarity, 3), np.float32), LINKAGE: np.asarray(cut.merges, np.float32)}}


def compared_in(state: ServerState) -> tuple[int, Weights, float] | None:
    """Return the round of the clustering, `matrix` float32[n, n] and `linkage` float32[n - 1, 4] (`clustering.linkage`), and the cut.

    Clients are those of `assignments`, sorted. None before the clustering, without one, and above 100 clients.
    """
    if SIMILARITY not in state.slots:
        return None
    return int(state.scalars.get(f"{_CUT}round", 0)), state.slots[SIMILARITY], float(state.scalars[f"{_CUT}at"])


def explain_clusters(state: ServerState) -> tuple[str, str]:
    """Return what the clustering did, in words, and a warning when its margin is thin; both empty before it and without one."""
    placed = assignments(state)
    if f"{_CUT}at" not in state.scalars:
        return "", ""
    at, below, above = (state.scalars.get(f"{_CUT}{key}") for key in ("at", "below", "above"))
    assert at is not None and below is not None
    return explain(len(placed), len(set(placed.values())), at, below, above)


def _scaled(weights: Weights, rate: float) -> Weights:
    return {name: np.asarray(array * np.float32(rate), np.float32) for name, array in weights.items()}

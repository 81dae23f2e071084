"""One model a cluster: what the algorithms with clusters share at the aggregator.

A client receives the model of its cluster by the name `global`, and never learns of the others. Before the
clustering all share the one model. A client that arrives after the clustering, or missed it, is clustered by
its first update: it receives what all received in the clustering round, and the cluster that its update is
most like becomes its own. That update moves no model, since it starts from another one than the cluster's. At
the end such a client without an update uses the largest cluster's model.

The clustering round alone holds one delta a client, float32[weights] each, since which means are wanted is
not known before the last has come; each other round folds its updates in one at a time.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from edgefl.algorithms.arithmetic import add, weighted_means
from edgefl.algorithms.base import (
    CLUSTER,
    FEDERATE,
    assignments,
    is_arriving,
    largest_cluster,
    with_assignments,
)
from edgefl.algorithms.clustering.clustering import Cut, Matrix, explain
from edgefl.algorithms.names import GLOBAL, INITIAL
from edgefl.types import ServerState, Update, Weights

_CUT = "cut/"
_ARRIVED = "arrived/"
START = "clustering/start"
CENTERS = "clustering/centers"
"""Slots: the model that the clustering round began with; by cluster what `Place` compares an arriving client
with.
"""
Place = Callable[[Update, Matrix], int]
"""Returns the cluster for a client's first update, by the centers float64[clusters, d]."""
MOST_COMPARED = 100
SIMILARITY = "similarity"
MATRIX = "matrix"
LINKAGE = "linkage"


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
    """Return the model of a client's cluster; before the clustering the one model of all."""
    return state.models[name_of(state)(client_id)]


def sent_to(state: ServerState, client_id: str) -> tuple[str, Weights]:
    """Return phase and model of a client's broadcast: an arriving client is in the phase `cluster` while the
    others federate.
    """
    if state.phase == FEDERATE and is_arriving(state, client_id):
        return CLUSTER, state.slots.get(START, state.models[INITIAL])
    return state.phase, model_of(state, client_id)


def moved(state: ServerState, updates: Iterable[Update], place: Place, rate: float = 1.0) -> ServerState:
    """Return the state after a round: each model a step of `rate` along the weighted mean of its own clients'
    deltas.

    Updates are read once, one at a time. That of an arriving client only places it.
    """
    name = name_of(state)
    arrived = dict[str, int]()
    centers = (
        np.stack([array for _, array in sorted(state.slots[CENTERS].items())])
        if CENTERS in state.slots
        else None
    )

    def terms() -> Iterator[tuple[str, Weights, float]]:
        for update in updates:
            if not is_arriving(state, update.client_id):
                yield name(update.client_id), update.deltas[GLOBAL], update.num_samples
            elif centers is None:  # a state of an older version
                arrived[update.client_id] = largest_cluster(assignments(state).values())
            else:
                arrived[update.client_id] = place(update, centers.astype(np.float64))

    means = weighted_means(terms())
    models = {
        **state.models,
        **{model: add(state.models[model], _scaled(mean, rate)) for model, mean in means.items()},
    }
    after = replace(state, models=models)
    if not arrived:
        return after
    told = {f"{_ARRIVED}{client_id}": float(state.round) for client_id in arrived}
    return with_assignments(
        replace(after, scalars={**state.scalars, **told}), {**assignments(state), **arrived}
    )


def divided(state: ServerState, updates: Sequence[Update], cut: Cut) -> ServerState:
    """Return the state after the clustering round: each cluster starts from the weighted mean of its clients'
    models.

    cut.labels are those of the updates, in their order.
    """
    placed = {update.client_id: int(label) for update, label in zip(updates, cut.labels, strict=True)}
    start = state.models[GLOBAL]
    means = weighted_means(
        (model_name(placed[u.client_id]), u.deltas[GLOBAL], u.num_samples) for u in updates
    )
    models = {
        name: add(start, means[name]) if name in means else start
        for name in map(model_name, range(cut.count))
    }
    told = {f"{_CUT}at": cut.at, f"{_CUT}below": cut.below} | (
        {} if cut.above is None else {f"{_CUT}above": cut.above}
    )
    told[f"{_CUT}round"] = float(state.round)
    slots = {**state.slots, **_kept(cut), START: start}
    if cut.centers is not None:
        slots[CENTERS] = {
            f"{cluster:06d}": center.astype(np.float32) for cluster, center in enumerate(cut.centers)
        }
    after = replace(
        state,
        round=state.round + 1,
        phase=FEDERATE,
        models={INITIAL: state.models[INITIAL], **models},
        slots=slots,
    )
    return with_assignments(replace(after, scalars={**state.scalars, **told}), placed)


def _kept(cut: Cut) -> dict[str, Weights]:
    """Return what is kept of the comparison, of at most 100 clients: their order is that of their ids."""
    if cut.similarity is None or len(cut.labels) > MOST_COMPARED:
        return {}
    return {
        SIMILARITY: {
            MATRIX: np.asarray(np.round(cut.similarity, 3), np.float32),
            LINKAGE: np.asarray(cut.merges, np.float32),
        }
    }


def compared_in(state: ServerState) -> tuple[int, Weights, float] | None:
    """Return the round of the clustering, `matrix` float32[n, n] and `linkage` float32[n - 1, 4]
    (`clustering.linkage`), and the cut.

    Clients are those of `compared_clients`. None before the clustering, without one, and above 100 clients.
    """
    if SIMILARITY not in state.slots:
        return None
    return (
        int(state.scalars.get(f"{_CUT}round", 0)),
        state.slots[SIMILARITY],
        float(state.scalars[f"{_CUT}at"]),
    )


def compared_clients(state: ServerState) -> list[str]:
    """Return the clients of the clustering round, sorted: all that have a cluster but those that arrived
    later.
    """
    return sorted(
        client_id for client_id in assignments(state) if f"{_ARRIVED}{client_id}" not in state.scalars
    )


def explain_clusters(state: ServerState) -> tuple[str, str]:
    """Return what the clustering did, in words, and a warning when its margin is thin.

    Both empty before it and without one.
    """
    placed = assignments(state)
    if f"{_CUT}at" not in state.scalars:
        return "", ""
    at, below, above = (state.scalars.get(f"{_CUT}{key}") for key in ("at", "below", "above"))
    assert at is not None and below is not None
    arrived = len(placed) - len(compared_clients(state))
    told, warning = explain(len(placed) - arrived, len(set(placed.values())), at, below, above)
    return f"{told}; {arrived} clients arrived later" if arrived else told, warning


def _scaled(weights: Weights, rate: float) -> Weights:
    return {name: np.asarray(array * np.float32(rate), np.float32) for name, array in weights.items()}

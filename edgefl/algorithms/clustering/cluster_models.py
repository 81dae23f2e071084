"""One model for each cluster: the aggregator's side of the clustering algorithms.

A client receives the model of its cluster under the name `global` and no other cluster's model. Before the
clustering, all clients share one model.

A client that arrives after the clustering, or missed it, is assigned by its first update. It receives the
model with which the clustering round began, and joins the cluster that is most similar to its update. That
update moves no model, because it did not start from the cluster's model. If such a client sends no update
until the end, it uses the largest cluster's model.

Only the clustering round keeps one delta for each client in memory. In this round, the clusters are unknown
until the last update has arrived. Every other round adds up its updates one at a time.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from edgefl.algorithms.arithmetic import add, average_by_group
from edgefl.algorithms.base import (
    PHASE_CLUSTER,
    PHASE_FEDERATE,
    find_assignment,
    find_largest_cluster,
    is_arriving,
    read_assignments,
    with_assignments,
)
from edgefl.algorithms.clustering.hierarchical import Cut, Matrix, explain_cut
from edgefl.algorithms.names import GLOBAL, INITIAL
from edgefl.types import Array, ServerState, Update, Weights

_CUT_PREFIX = "cut/"
_ARRIVED_PREFIX = "arrived/"
_COMPARED_PREFIX = "compared/"
CLUSTERING_START = "clustering/start"
"""The slot with the model that the clustering round began with."""
CLUSTER_CENTERS = "clustering/centers"
"""The slot with the center of each cluster, which `ClusterAssigner` compares an arriving client with."""
ClusterAssigner = Callable[[Update, Matrix], int]
"""Returns the cluster for a client's first update and the centers, shape (clusters, d), float64."""
MAX_COMPARED_CLIENTS = 100
SIMILARITY = "similarity"
MATRIX = "matrix"
LINKAGE = "linkage"


def name_cluster_model(cluster: int) -> str:
    """Return the name of a cluster's model in the server state."""
    return f"cluster{cluster}"


def make_model_namer(state: ServerState) -> Callable[[str], str]:
    """Return a function from a client's id to the name of the client's model in the server state."""
    clusters = read_assignments(state)
    if not clusters:
        return lambda client_id: GLOBAL
    largest = find_largest_cluster(clusters.values())
    return lambda client_id: name_cluster_model(clusters.get(client_id, largest))


def find_cluster_model(state: ServerState, client_id: str) -> Weights:
    """Return the model of a client's cluster, or the common model before the clustering.

    A client without a cluster gets the model of the largest cluster.

    Args:
        state: the server state.
        client_id: the client.
    """
    cluster = find_assignment(state, client_id)
    return state.models[
        make_model_namer(state)(client_id) if cluster is None else name_cluster_model(cluster)
    ]


def choose_phase_and_model(state: ServerState, client_id: str) -> tuple[str, Weights]:
    """Return the phase and the model of a client's broadcast.

    An arriving client is in the phase `cluster` while the others are in the phase `federate`. It receives the
    model with which the clustering round began, or the initial model if the state does not hold that model.

    Args:
        state: the server state before the round.
        client_id: the receiving client.
    """
    if state.phase == PHASE_FEDERATE and is_arriving(state, client_id):
        return PHASE_CLUSTER, state.slots.get(CLUSTERING_START, state.models[INITIAL])
    return state.phase, find_cluster_model(state, client_id)


def aggregate_clusters(
    state: ServerState, updates: Iterable[Update], assign: ClusterAssigner, rate: float = 1.0
) -> ServerState:
    """Return the state after a round in clusters.

    Each model moves by `rate` times the weighted mean of its clients' deltas. The update of an arriving
    client only assigns the client to a cluster.

    Args:
        state: the server state before the round.
        updates: the round's updates, read once and one at a time.
        assign: chooses the cluster of an arriving client.
        rate: step size along the mean delta.

    Returns:
        The new state with the same round number. The caller advances it.
    """
    name_model = make_model_namer(state)
    arrived = dict[str, int]()
    centers = unpack_centers(state.slots[CLUSTER_CENTERS]) if CLUSTER_CENTERS in state.slots else None

    def weigh_deltas() -> Iterator[tuple[str, Weights, float]]:
        for update in updates:
            if not is_arriving(state, update.client_id):
                yield name_model(update.client_id), update.deltas[GLOBAL], update.num_samples
            elif centers is None:  # the state is from an older version
                arrived[update.client_id] = find_largest_cluster(read_assignments(state).values())
            else:
                arrived[update.client_id] = assign(update, centers)

    means = average_by_group(weigh_deltas())
    models = {
        **state.models,
        **{model: add(state.models[model], _scale_weights(mean, rate)) for model, mean in means.items()},
    }
    after = replace(state, models=models)
    if not arrived:
        return after
    return with_assignments(record_arrivals(after, arrived), {**read_assignments(state), **arrived})


def record_arrivals(state: ServerState, clients: Iterable[str]) -> ServerState:
    """Return the state with the round in which these clients arrived after a clustering.

    Args:
        state: the server state in the round of the arrival.
        clients: ids of the clients.
    """
    arrivals = {f"{_ARRIVED_PREFIX}{client_id}": float(state.round) for client_id in clients}
    return replace(state, scalars={**state.scalars, **arrivals})


def start_clusters(state: ServerState, updates: Sequence[Update], cut: Cut) -> ServerState:
    """Return the state after the clustering round.

    Each cluster starts from the weighted mean of its clients' models.

    Args:
        state: the server state before the round.
        updates: the round's updates. At least one.
        cut: the clusters, with labels in the order of the updates.
    """
    clusters = {update.client_id: int(label) for update, label in zip(updates, cut.labels, strict=True)}
    start = state.models[GLOBAL]
    means = average_by_group(
        (name_cluster_model(clusters[u.client_id]), u.deltas[GLOBAL], u.num_samples) for u in updates
    )
    models = {
        name: add(start, means[name]) if name in means else start
        for name in map(name_cluster_model, range(cut.count))
    }
    recorded = record_cut(state, cut)
    slots = {**recorded.slots, CLUSTERING_START: start}
    if cut.centers is not None:
        slots[CLUSTER_CENTERS] = pack_centers(cut.centers)
    after = replace(
        recorded,
        round=state.round + 1,
        phase=PHASE_FEDERATE,
        models={INITIAL: state.models[INITIAL], **models},
        slots=slots,
    )
    return with_assignments(after, clusters)


def pack_centers(centers: Matrix) -> dict[str, Array]:
    """Return the centers of clusters as a slot.

    Args:
        centers: center of each cluster, shape (clusters, d), float64.

    Returns:
        A vector for each cluster, shape (d,), float32. The names sort in the order of the clusters.
    """
    return {f"{cluster:06d}": center.astype(np.float32) for cluster, center in enumerate(centers)}


def unpack_centers(slot: Weights) -> Matrix:
    """Return the centers of a slot, shape (clusters, d), float64.

    Args:
        slot: result of `pack_centers`.
    """
    return np.stack([array for _, array in sorted(slot.items())]).astype(np.float64)


def record_cut(state: ServerState, cut: Cut, compared: Iterable[str] = ()) -> ServerState:
    """Return the state with the heights and the similarities of a cut, for reports and monitors.

    Args:
        state: the server state before the clustering round.
        cut: the cut.
        compared: the clients of the cut, if the algorithm cuts more than once and not all clients at a time.
    """
    prefixes = (_CUT_PREFIX, _COMPARED_PREFIX)
    scalars = {key: value for key, value in state.scalars.items() if not key.startswith(prefixes)}
    scalars |= {f"{_CUT_PREFIX}at": cut.height, f"{_CUT_PREFIX}below": cut.last_height}
    if cut.next_height is not None:
        scalars[f"{_CUT_PREFIX}above"] = cut.next_height
    scalars[f"{_CUT_PREFIX}round"] = float(state.round)
    scalars |= {f"{_COMPARED_PREFIX}{client_id}": 1.0 for client_id in compared}
    slots = {name: slot for name, slot in state.slots.items() if name != SIMILARITY}
    return replace(state, slots={**slots, **_pack_similarity(cut)}, scalars=scalars)


def is_newly_clustered(after: ServerState) -> bool:
    """Return whether the last round made clusters.

    Args:
        after: the server state after the round.
    """
    return after.scalars.get(f"{_CUT_PREFIX}round") == after.round - 1


def _pack_similarity(cut: Cut) -> dict[str, Weights]:
    """Return the similarity and the merges as a slot, or nothing above `MAX_COMPARED_CLIENTS` clients."""
    if cut.similarity is None or len(cut.labels) > MAX_COMPARED_CLIENTS:
        return {}
    return {
        SIMILARITY: {
            MATRIX: np.asarray(np.round(cut.similarity, 3), np.float32),
            LINKAGE: np.asarray(cut.merges, np.float32),
        }
    }


def read_comparison(state: ServerState) -> tuple[int, Weights, float] | None:
    """Return the comparison of the clients in the clustering round.

    The clients are the ones in `list_compared_clients`.

    Returns:
        The round, the arrays, and the height of the cut. The arrays are `matrix`, shape (n, n), and
            `linkage`, shape (n - 1, 4), both float32 (`hierarchical.build_linkage`). None before the
            clustering, without a clustering, and above `MAX_COMPARED_CLIENTS` clients.
    """
    if SIMILARITY not in state.slots:
        return None
    return (
        int(state.scalars.get(f"{_CUT_PREFIX}round", 0)),
        state.slots[SIMILARITY],
        float(state.scalars[f"{_CUT_PREFIX}at"]),
    )


def list_compared_clients(state: ServerState) -> list[str]:
    """Return the clients of the last clustering round, sorted.

    These are the clients of the last cut. If an algorithm cuts only once, they are all assigned clients
    except the ones that arrived later.
    """
    compared = [
        key.removeprefix(_COMPARED_PREFIX) for key in state.scalars if key.startswith(_COMPARED_PREFIX)
    ]
    return sorted(
        compared
        or (
            client_id
            for client_id in read_assignments(state)
            if f"{_ARRIVED_PREFIX}{client_id}" not in state.scalars
        )
    )


def explain_clusters(state: ServerState) -> tuple[str, str]:
    """Return a summary of the last clustering, and a warning if its margin is thin.

    Both are empty before the clustering, and if there is no clustering.
    """
    clusters = read_assignments(state)
    if f"{_CUT_PREFIX}at" not in state.scalars:
        return "", ""
    height, last_height, next_height = (
        state.scalars.get(f"{_CUT_PREFIX}{key}") for key in ("at", "below", "above")
    )
    assert height is not None and last_height is not None
    compared = list_compared_clients(state)
    compared_clusters = {clusters[client_id] for client_id in compared}
    summary, warning = explain_cut(len(compared), len(compared_clusters), height, last_height, next_height)
    if (total := len(set(clusters.values()))) > len(compared_clusters):
        summary += f"; {total} clusters in total"
    arrived = sum(f"{_ARRIVED_PREFIX}{client_id}" in state.scalars for client_id in clusters)
    return f"{summary}; {arrived} clients arrived later" if arrived else summary, warning


def _scale_weights(weights: Weights, rate: float) -> Weights:
    return {name: np.asarray(array * np.float32(rate), np.float32) for name, array in weights.items()}

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

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from edgefl.base.types import Array, ServerState, StateRecord, Update, Weights
from edgefl.learning.algorithms.arithmetic import add, average_by_group
from edgefl.learning.algorithms.base import (
    PHASE_CLUSTER,
    PHASE_FEDERATE,
    find_assignment,
    find_largest_cluster,
    is_arriving,
    read_assignments,
    with_assignments,
)
from edgefl.learning.algorithms.clustering.hierarchical import Cut, Matrix, explain_cut
from edgefl.learning.algorithms.names import GLOBAL, INITIAL

ClusterAssigner = Callable[[Update, Matrix], int]
"""Returns the cluster for a client's first update and the centers, shape (clusters, d), float64."""
MAX_COMPARED_CLIENTS = 100


@dataclass(frozen=True)
class ClusterReference(StateRecord):
    """What an arriving client is compared with. Empty before the clustering.

    Attributes:
        start: the model that the clustering round began with.
        centers: center of each cluster, shape (clusters, d), float32.
    """

    start: Weights = field(default_factory=dict)
    centers: Array = field(default_factory=lambda: np.zeros((0, 0), np.float32))


@dataclass(frozen=True)
class LastCut(StateRecord):
    """The heights and the similarities of the last cut, for reports and monitors.

    Attributes:
        round: round of the cut, 0 before the first cut.
        height: height of the cut.
        last_height: height of the last merge below the cut.
        next_height: height of the first merge above the cut, None if there is none.
        compared: the clients of the cut, if the algorithm cuts more than once and not all clients at a time.
        similarity: similarity of the clients, shape (n, n), float32. None above `MAX_COMPARED_CLIENTS`
            clients, and if the cut has no similarity.
        merges: the merges, shape (n - 1, 4), float32 (`hierarchical.build_linkage`). None like `similarity`.
    """

    round: int = 0
    height: float = 0.0
    last_height: float = 0.0
    next_height: float | None = None
    compared: tuple[str, ...] = ()
    similarity: Array | None = None
    merges: Array | None = None


@dataclass(frozen=True)
class Arrivals(StateRecord):
    """The clients that arrived after a clustering.

    Attributes:
        rounds: the round of each client's arrival by client id.
    """

    rounds: Mapping[str, int] = field(default_factory=dict)


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
    """
    cluster = find_assignment(state, client_id)
    return state.models[
        make_model_namer(state)(client_id) if cluster is None else name_cluster_model(cluster)
    ]


def choose_phase_and_model(state: ServerState, client_id: str) -> tuple[str, Weights]:
    """Return the phase and the model of a client's broadcast.

    An arriving client is in the phase `cluster` while the others are in the phase `federate`. It receives the
    model with which the clustering round began.

    Args:
        state: the server state before the round.
        client_id: the receiving client.
    """
    if state.phase == PHASE_FEDERATE and is_arriving(state, client_id):
        return PHASE_CLUSTER, state.read_record(ClusterReference).start
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
    reference = state.read_record(ClusterReference)

    def weigh_deltas() -> Iterator[tuple[str, Weights, float]]:
        for update in updates:
            if not is_arriving(state, update.client_id):
                yield name_model(update.client_id), update.deltas[GLOBAL], update.num_samples
            else:
                arrived[update.client_id] = assign(update, reference.centers.astype(np.float64))

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
        state: the server state, whose `round` is the round of the arrival.
        clients: ids of the clients.
    """
    before = state.read_record(Arrivals).rounds
    return state.with_record(Arrivals({**before, **dict.fromkeys(clients, state.round)}))


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
    assert cut.centers is not None
    reference = ClusterReference(start, cut.centers.astype(np.float32))
    after = replace(
        record_cut(state, cut).with_record(reference),
        round=state.round + 1,
        phase=PHASE_FEDERATE,
        models={INITIAL: state.models[INITIAL], **models},
    )
    return with_assignments(after, clusters)


def record_cut(state: ServerState, cut: Cut, compared: Iterable[str] = ()) -> ServerState:
    """Return the state with the heights and the similarities of a cut, for reports and monitors.

    Args:
        state: the server state before the clustering round.
        compared: the clients of the cut, if the algorithm cuts more than once and not all clients at a time.
    """
    similarity = cut.similarity if len(cut.labels) <= MAX_COMPARED_CLIENTS else None
    return state.with_record(
        LastCut(
            round=state.round,
            height=cut.height,
            last_height=cut.last_height,
            next_height=cut.next_height,
            compared=tuple(compared),
            similarity=None if similarity is None else np.asarray(np.round(similarity, 3), np.float32),
            merges=None if similarity is None else np.asarray(cut.merges, np.float32),
        )
    )


def is_newly_clustered(after: ServerState) -> bool:
    """Return whether the last round made clusters.

    Args:
        after: the server state after the round.
    """
    cut_round = after.read_record(LastCut).round
    return cut_round > 0 and cut_round == after.round - 1


def list_compared_clients(state: ServerState) -> list[str]:
    """Return the clients of the last clustering round, sorted.

    These are the clients of the last cut. If an algorithm cuts only once, they are all assigned clients
    except the ones that arrived later.
    """
    arrived = state.read_record(Arrivals).rounds
    return sorted(
        state.read_record(LastCut).compared
        or (client_id for client_id in read_assignments(state) if client_id not in arrived)
    )


def explain_clusters(state: ServerState) -> tuple[str, str]:
    """Return a summary of the last clustering, and a warning if its margin is thin.

    Both are empty before the clustering, and if there is no clustering.
    """
    clusters = read_assignments(state)
    cut = state.read_record(LastCut)
    if not cut.round:
        return "", ""
    compared = list_compared_clients(state)
    compared_clusters = {clusters[client_id] for client_id in compared}
    summary, warning = explain_cut(
        len(compared), len(compared_clusters), cut.height, cut.last_height, cut.next_height
    )
    if (total := len(set(clusters.values()))) > len(compared_clusters):
        summary += f"; {total} clusters in total"
    arrived = len(state.read_record(Arrivals).rounds.keys() & clusters.keys())
    return f"{summary}; {arrived} clients arrived later" if arrived else summary, warning


def _scale_weights(weights: Weights, rate: float) -> Weights:
    return {name: np.asarray(array * np.float32(rate), np.float32) for name, array in weights.items()}

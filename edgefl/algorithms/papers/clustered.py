"""Clustered federated learning on dense layers: one model a cluster of like clients, mixed with each client's
own.

Filippakopoulos et al., Personalization in Distributed tinyML Applications via Adaptive Clustered Federated
Learning.
All clients train h_0 for E epochs. Clients with similar dense layers (cosine similarity, average linkage,
merges up to distance 1 - t) form a cluster, which starts from h_c = sum_k |D_k| / |D_c| h_k. Then in each
round a client trains h_k, the cluster takes the weighted mean h_c of its clients', and the client goes on
from h_k <- lambda h_k + (1 - lambda) h_c.
The paper compares the weights h_k with t = .9; this module compares the deltas h_k - h_0 with t = 0 unless
options say otherwise. The client holds h_k and mixes, so only h_c comes down; one without h_k (its first
round in a cluster, line 34 of the paper's algorithm, or after it lost its state) starts from h_c itself.

Traffic: down one model; up one delta and one count.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from edgefl.algorithms.arithmetic import subtract
from edgefl.algorithms.base import PHASE_CLUSTER, PHASE_FEDERATE, PHASE_PERSONALIZE, Algorithm
from edgefl.algorithms.clustering.cluster_models import (
    CLUSTERING_START,
    aggregate_clusters,
    choose_phase_and_model,
    start_clusters,
)
from edgefl.algorithms.clustering.hierarchical import (
    Cut,
    Matrix,
    average_unit_vectors,
    build_linkage,
    cosine_distance,
    cut_at,
    cut_widest,
    find_most_similar_cluster,
)
from edgefl.algorithms.clustering.similarity import flatten_weights, select_compared_weights
from edgefl.algorithms.entry import Entry
from edgefl.algorithms.names import FEDERATED_MODEL, GLOBAL, INITIAL
from edgefl.algorithms.options import TrainingOptions, as_sgd_hyper, check_choice, check_range
from edgefl.algorithms.papers.fedavg import build_fedavg_objectives
from edgefl.learner.base import Learner
from edgefl.types import Broadcast, ClientState, Mixture, Peer, ServerState, Shard, Update, Weights


def mix_with_cluster(local: Weights, cluster: Weights, mixing: float) -> dict[str, np.ndarray]:
    """Return mixing * own + (1 - mixing) * cluster; where the two are equal, exactly that.

    What `own` lacks is the cluster's.
    """
    rate = np.float32(mixing)
    return {
        name: np.asarray(w + rate * (local[name] - w), np.float32) if name in local else w
        for name, w in cluster.items()
    }


def cut_by_similarity(
    updates: Iterable[Update], start: Weights, threshold: float, cut: str, compare: str, layers: str
) -> Cut:
    """Cluster clients by the dense layers of their models, `start` plus each update's delta, or of the
    deltas; at least one update.

    The automatic cut never merges clients whose mean similarity is below zero.
    """
    names = select_compared_weights(start, layers)
    base = flatten_weights(start, names) * np.float32(compare == "weights")
    vectors = [base + flatten_weights(update.deltas[GLOBAL], names) for update in updates]
    distances = cosine_distance(vectors)
    merges = build_linkage(distances, "average")
    made = cut_at(merges, 1.0 - threshold) if cut == "threshold" else cut_widest(merges, limit=1.0)
    return replace(made, similarity=1.0 - distances, centers=average_unit_vectors(vectors, made.labels))


@dataclass(frozen=True)
class ClusteredOptions(TrainingOptions):
    """Options of training, and those of clusters. Raises ConfigError for an option out of its range.

    `deltas` compares what training changed, `weights` whole weights, as in the paper. Deltas leave out the
    first weights, which all clients have in common: the deltas of clients without a common task are about
    orthogonal at every learning rate. The paper's rule is compare = "weights" with threshold = 0.9. It
    depends on how large the first weights are and on how far clients have moved
    (`clusters.explain_clusters` reports the cut's margin).

    Attributes:
        clustering: false: one cluster from round 1 on, the paper's baseline
        threshold: least similarity t of the clients of a cluster, 0 to 1; the paper's is .9, on weights
        cut: threshold, or auto: in the widest gap (`clustering.cut_widest`), which needs no threshold
        compare: deltas: what training changed, or weights
        layers: compared layers, with commas between; empty: the dense ones
        mixing: the paper's lambda: 1 is the client's own model, 0 its cluster's
    """

    clustering: bool = True
    threshold: float = 0.0
    cut: str = "threshold"
    compare: str = "deltas"
    layers: str = ""
    mixing: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("threshold", self.threshold)
        check_range("mixing", self.mixing)
        check_choice("cut", self.cut, ["threshold", "auto"])
        check_choice("compare", self.compare, ["weights", "deltas"])


def clustered(learner: Learner | None, options: ClusteredOptions) -> Algorithm:
    """Return clustered federated learning; a client's mixture is its own h_k, mixed once more at the end."""
    hyper = as_sgd_hyper(options)

    def init(weights: Weights, rng: np.random.Generator) -> ServerState:
        if options.clustering:
            select_compared_weights(weights, options.layers)
        return ServerState(
            1, PHASE_CLUSTER if options.clustering else PHASE_FEDERATE, {GLOBAL: weights, INITIAL: weights}
        )

    def broadcast(state: ServerState, client_id: str) -> Broadcast:
        phase, received = choose_phase_and_model(state, client_id)
        return Broadcast(
            state.round, state.phase if state.phase == PHASE_PERSONALIZE else phase, {GLOBAL: received}
        )

    def local_update(
        broadcast: Broadcast, state: ClientState, shard: Shard, client_id: str, rng: np.random.Generator
    ) -> tuple[Update, ClientState]:
        assert learner is not None
        received = broadcast.models[GLOBAL]
        begin = (
            received
            if broadcast.phase == PHASE_CLUSTER
            else mix_with_cluster(state.arrays, received, options.mixing)
        )
        trained, loss = learner.fit(
            "train", begin, {"x": shard.x_train}, shard.y_train, epochs=options.epochs, rng=rng, hyper=hyper
        )
        local_model = {**begin, **trained}
        update = Update(
            client_id,
            broadcast.round,
            len(shard.y_train),
            {GLOBAL: subtract(local_model, received)},
            {"loss": loss},
        )
        return update, ClientState() if broadcast.phase == PHASE_CLUSTER else ClientState(local_model)

    def assign_cluster(start: Weights, update: Update, centers: Matrix) -> int:
        names = select_compared_weights(start, options.layers)
        base = flatten_weights(start, names) * np.float32(options.compare == "weights")
        return find_most_similar_cluster(base + flatten_weights(update.deltas[GLOBAL], names), centers)

    def aggregate(state: ServerState, updates: Iterable[Update]) -> ServerState:
        if state.phase != PHASE_CLUSTER:
            return replace(
                aggregate_clusters(
                    state, updates, partial(assign_cluster, state.slots.get(CLUSTERING_START, {}))
                ),
                round=state.round + 1,
            )
        round_updates = list(updates)
        if not round_updates:  # nobody to place: the next round tries again
            return replace(state, round=state.round + 1)
        return start_clusters(
            state,
            round_updates,
            cut_by_similarity(
                round_updates,
                state.models[GLOBAL],
                options.threshold,
                options.cut,
                options.compare,
                options.layers,
            ),
        )

    def personalize(
        broadcast: Broadcast, state: ClientState, shard: Shard, rng: np.random.Generator
    ) -> tuple[Mixture, ClientState]:
        model = broadcast.models[GLOBAL]
        return Mixture(
            mix_with_cluster(state.arrays, model, options.mixing), {FEDERATED_MODEL: Peer("predict", model)}
        ), state

    def current(broadcast: Broadcast, state: ClientState, shard: Shard) -> Peer | None:
        return Peer("predict", mix_with_cluster(state.arrays, broadcast.models[GLOBAL], options.mixing))

    return Algorithm(
        "clustered",
        init,
        broadcast,
        local_update,
        aggregate,
        personalize,
        current=current,
        by_sums=not options.clustering,
    )


ENTRIES = {
    "clustered": Entry(
        ClusteredOptions,
        clustered,
        build_fedavg_objectives,
        "Filippakopoulos et al., Irida Labs: adaptive clustered federated learning",
    )
}

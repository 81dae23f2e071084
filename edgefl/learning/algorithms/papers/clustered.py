"""Clustered federated learning on dense layers: one model for each cluster of similar clients.

All clients train h_0 for E epochs. Clients with similar dense layers form a cluster (cosine similarity,
average linkage, merges up to distance 1 - t). A cluster starts from h_c = sum_k |D_k| / |D_c| h_k. In each
later round, a client trains h_k and the cluster takes the weighted mean h_c of its clients' models. The
client then continues from h_k <- lambda h_k + (1 - lambda) h_c.

The paper compares the weights h_k with t = .9. By default, this module compares the deltas h_k - h_0 with t =
0.

The client stores h_k and mixes, so it receives only h_c. A client without h_k starts from h_c. This happens
in its first round in a cluster (line 34 of the paper's algorithm), or after it lost its state.

Communication cost: down one model, up one delta and one count.

Source: Filippakopoulos et al., Personalization in Distributed tinyML Applications via Adaptive Clustered
Federated Learning.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from edgefl.base.types import Broadcast, ClientState, Mixture, Peer, ServerState, Shard, Update, Weights
from edgefl.learning.algorithms.arithmetic import subtract
from edgefl.learning.algorithms.base import PHASE_CLUSTER, PHASE_FEDERATE, PHASE_PERSONALIZE, Algorithm
from edgefl.learning.algorithms.clustering.cluster_models import (
    ClusterReference,
    aggregate_clusters,
    choose_phase_and_model,
    start_clusters,
)
from edgefl.learning.algorithms.clustering.hierarchical import (
    Cut,
    Matrix,
    average_unit_vectors,
    build_linkage,
    cosine_distance,
    cut_at,
    cut_silhouette,
    cut_widest,
    find_most_similar_cluster,
)
from edgefl.learning.algorithms.clustering.similarity import flatten_weights, select_compared_weights
from edgefl.learning.algorithms.entry import Entry
from edgefl.learning.algorithms.names import FEDERATED_MODEL, GLOBAL, INITIAL
from edgefl.learning.algorithms.options import TrainingOptions, as_sgd_hyper, check_choice, check_range
from edgefl.learning.algorithms.papers.fedavg import build_fedavg_objectives
from edgefl.program.learner.base import Learner


def mix_with_cluster(local: Weights, cluster: Weights, mixing: float) -> dict[str, np.ndarray]:
    """Return mixing * local + (1 - mixing) * cluster.

    If both values are equal, the result is exactly this value. Weights that `local` lacks are copied from
    `cluster`.

    Args:
        local: the client's weights, which may be empty.
        cluster: the weights of the cluster's model.
        mixing: share of the client's weights, from 0 to 1.
    """
    rate = np.float32(mixing)
    return {
        name: np.asarray(w + rate * (local[name] - w), np.float32) if name in local else w
        for name, w in cluster.items()
    }


def cut_by_similarity(
    updates: Iterable[Update], start: Weights, threshold: float, cut: str, compare: str, layers: str
) -> Cut:
    """Cluster clients by the dense layers of their models, or of their deltas.

    The automatic cut never merges clients whose mean similarity is below zero.

    Args:
        updates: the updates of the clustering round. At least one.
        start: the weights that the clients trained from.
        threshold: minimum similarity of the clients of a cluster, from 0 to 1.
        cut: `threshold`, `auto` or `silhouette`.
        compare: `weights` compares `start` plus each delta, `deltas` compares the deltas.
        layers: see `similarity.select_compared_weights`.

    Raises:
        ConfigError: the model has no such layer.
    """
    names = select_compared_weights(start, layers)
    base = flatten_weights(start, names) * np.float32(compare == "weights")
    vectors = [base + flatten_weights(update.deltas[GLOBAL], names) for update in updates]
    distances = cosine_distance(vectors)
    merges = build_linkage(distances, "average")
    clusters = (
        cut_at(merges, 1.0 - threshold)
        if cut == "threshold"
        else cut_widest(merges, limit=1.0)
        if cut == "auto"
        else cut_silhouette(merges, distances)
    )
    return replace(
        clusters, similarity=1.0 - distances, centers=average_unit_vectors(vectors, clusters.labels)
    )


@dataclass(frozen=True)
class ClusteredOptions(TrainingOptions):
    """Options of training by SGD, and of the clusters.

    compare = "deltas" compares the changes of the training, "weights" the whole weights as in the paper.
    Deltas leave out the initial weights, which all clients have in common. The deltas of clients without a
    common task are about orthogonal at every learning rate. The paper's rule is compare = "weights" with
    threshold = 0.9. It depends on the size of the initial weights and on how far clients have moved.
    `cluster_models.explain_clusters` reports the cut's margin.

    Raises:
        ConfigError: an option is out of range.

    Attributes:
        clustering: whether to cluster. false: one cluster from round 1, the paper's baseline.
        threshold: minimum similarity t of the clients of a cluster, 0 to 1. The paper uses .9 on weights.
        cut: threshold, or a cut that needs no threshold: auto for the widest gap, silhouette for the number
            of clusters with the highest mean silhouette.
        compare: deltas (the changes of the training) or weights.
        layers: compared layers, separated by commas. Empty: the dense layers.
        mixing: the paper's lambda. 1 is the client's own model, 0 its cluster's model.
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
        check_choice("cut", self.cut, ["threshold", "auto", "silhouette"])
        check_choice("compare", self.compare, ["weights", "deltas"])


def clustered(learner: Learner | None, options: ClusteredOptions) -> Algorithm:
    """Return clustered federated learning, whose mixture is the client's h_k, mixed once more at the end.

    Args:
        learner: runs the plan. The aggregator passes None.

    Raises:
        ConfigError: `init` raises it if the model has none of the compared layers.

    Source: Filippakopoulos et al., Personalization in Distributed tinyML Applications via Adaptive Clustered
    Federated Learning.
    """
    hyper = as_sgd_hyper(options)

    def init(weights: Weights, rng: np.random.Generator) -> ServerState:
        if options.clustering:
            select_compared_weights(weights, options.layers)
        return ServerState(
            round=1,
            phase=PHASE_CLUSTER if options.clustering else PHASE_FEDERATE,
            models={GLOBAL: weights, INITIAL: weights},
        )

    def broadcast(state: ServerState, client_id: str) -> Broadcast:
        phase, received = choose_phase_and_model(state, client_id)
        return Broadcast(
            round=state.round,
            phase=state.phase if state.phase == PHASE_PERSONALIZE else phase,
            models={GLOBAL: received},
        )

    def local_update(
        broadcast: Broadcast, state: ClientState, shard: Shard, client_id: str, rng: np.random.Generator
    ) -> tuple[Update, ClientState]:
        assert learner is not None
        received = broadcast.models[GLOBAL]
        initial = (
            received
            if broadcast.phase == PHASE_CLUSTER
            else mix_with_cluster(state.arrays, received, options.mixing)
        )
        trained, loss = learner.fit(
            "train", initial, {"x": shard.x_train}, shard.y_train, epochs=options.epochs, rng=rng, hyper=hyper
        )
        local_model = {**initial, **trained}
        update = Update(
            client_id=client_id,
            round=broadcast.round,
            num_samples=len(shard.y_train),
            deltas={GLOBAL: subtract(local_model, received)},
            metrics={"loss": loss},
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
                    state, updates, partial(assign_cluster, state.read_record(ClusterReference).start)
                ),
                round=state.round + 1,
            )
        round_updates = list(updates)
        if not round_updates:  # no client to assign, so the next round clusters
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
            weights=mix_with_cluster(state.arrays, model, options.mixing),
            peers={FEDERATED_MODEL: Peer("predict", model)},
        ), state

    def current(broadcast: Broadcast, state: ClientState, shard: Shard) -> Peer | None:
        return Peer("predict", mix_with_cluster(state.arrays, broadcast.models[GLOBAL], options.mixing))

    return Algorithm(
        name="clustered",
        init=init,
        broadcast=broadcast,
        local_update=local_update,
        aggregate=aggregate,
        personalize=personalize,
        current=current,
        by_sums=not options.clustering,
    )


ENTRIES = {
    "clustered": Entry(
        options=ClusteredOptions,
        factory=clustered,
        objectives=build_fedavg_objectives,
        source="Filippakopoulos et al., Irida Labs: adaptive clustered federated learning",
    )
}

"""FedAP: meta-learning steps within clusters of clients, then a few epochs of each client's own.

Yeganeh et al., Adaptive Personalization in Federated Learning for Highly Non-i.i.d. Data, arXiv:2207.03448.
First FedAvg over all clients; then all train some epochs from the same model and Ward's method clusters them
by how far apart that took them; then in each cluster, which starts from its weighted mean, theta <- theta +
beta_t (sum_k n_k / n theta_k - theta) (equation 9), where beta falls linearly. At the end each client trains
the model that it received on its own data.
The moving statistics of batch norms are not aggregated: each client keeps its own.

Traffic: down one model; up one delta (zeros for the moving statistics) and one count.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from edgefl.algorithms.arithmetic import subtract
from edgefl.algorithms.base import PHASE_CLUSTER, PHASE_FEDERATE, PHASE_PERSONALIZE, PHASE_PRETRAIN, Algorithm
from edgefl.algorithms.clustering.cluster_models import (
    aggregate_clusters,
    choose_phase_and_model,
    start_clusters,
)
from edgefl.algorithms.clustering.hierarchical import (
    Cut,
    Matrix,
    average_vectors,
    build_linkage,
    cosine_similarity,
    cut_at,
    cut_into,
    cut_widest,
    euclidean_distance,
    find_nearest_cluster,
)
from edgefl.algorithms.clustering.similarity import flatten_weights
from edgefl.algorithms.entry import Entry
from edgefl.algorithms.names import FEDERATED_MODEL, GLOBAL, INITIAL
from edgefl.algorithms.options import TrainingOptions, as_sgd_hyper, extend_epochs
from edgefl.algorithms.papers.fedavg import build_fedavg_objectives
from edgefl.algorithms.server_optimizer import STATISTICS
from edgefl.config import FederationConfig
from edgefl.learner.base import Learner
from edgefl.types import Array, Broadcast, ClientState, Mixture, Peer, ServerState, Shard, Update, Weights

FEDERATED_ROUNDS = "federated_rounds"


def schedule_beta(t: int, start: float, end: float, decay_rounds: int) -> float:
    """Return the step of round t = 0, 1, ...: from `start` linearly to `end` at `decay_rounds`, `end` from
    then on.
    """
    return start + (end - start) * min(t / decay_rounds, 1.0) if decay_rounds else end


def select_statistics(weights: Weights) -> dict[str, Array]:
    """Return the moving statistics among the weights.

    Both sides know them by their names, those of Keras's batch norm.
    """
    return {name: array for name, array in weights.items() if name.rpartition("/")[2] in STATISTICS}


def cut_by_distance(updates: Iterable[Update], cut_distance: float, num_clusters: int) -> Cut:
    """Cluster clients that trained from one model by their deltas: Ward's method on the distance of all but
    statistics.
    """
    vectors = [flatten_delta(update) for update in updates]
    merges = build_linkage(euclidean_distance(vectors), "ward")
    by_distance = cut_at(merges, cut_distance) if cut_distance else cut_widest(merges)
    made = cut_into(merges, num_clusters) if num_clusters else by_distance
    return replace(made, similarity=cosine_similarity(vectors), centers=average_vectors(vectors, made.labels))


def flatten_delta(update: Update) -> Array:
    """Return what clients are compared by: all of the delta but moving statistics, float32[d]."""
    delta = update.deltas[GLOBAL]
    return flatten_weights(delta, sorted(delta.keys() - select_statistics(delta).keys()))


@dataclass(frozen=True)
class FedApOptions(TrainingOptions):
    """Options of training, and those of FedAP.

    beta_start = beta_end = 1 and personalize_epochs = 0 give FedAvg, in clusters or not.

    Attributes:
        clustering: false: neither pretraining nor clusters
        pretrain_rounds: rounds of FedAvg before the clustering; 0: a quarter of the rounds, at least 1
        cluster_epochs: epochs in the clustering round
        cut_distance: where Ward's merges are cut; it depends on the model's size and learning rate (see
            `clusters.explain_clusters`); 0: in the widest gap among the upper half of the merges
        num_clusters: number of clusters, in place of the cut; 0: by the cut
        beta_start: beta in the first round in clusters
        beta_end: beta from decay_rounds on
        decay_rounds: rounds over which beta falls, counted from the first round in clusters; 0: all
            rounds in clusters
        personalize_epochs: epochs of each client on its own data at the end
        least_steps: number of steps of these epochs at least; a client with few samples takes more epochs; 0:
            only the epochs
        share_statistics: average the moving statistics of batch norms too
    """

    clustering: bool = True
    pretrain_rounds: int = 0
    cluster_epochs: int = 3
    cut_distance: float = 0.0
    num_clusters: int = 0
    beta_start: float = 1.0
    beta_end: float = 0.46
    decay_rounds: int = 0
    personalize_epochs: int = 7
    least_steps: int = 200
    share_statistics: bool = False


def resolve_fedap_options(options: FedApOptions, config: FederationConfig) -> FedApOptions:
    """Return the options with phase lengths for a configuration's rounds, where they are 0.

    With 20 rounds: 5 of FedAvg, 1 that clusters, 14 in clusters.
    """
    if not options.clustering:
        return replace(options, decay_rounds=options.decay_rounds or config.rounds)
    pretrain = options.pretrain_rounds or max(1, config.rounds // 4)
    decay = options.decay_rounds or max(1, config.rounds - pretrain - 1)
    return replace(options, pretrain_rounds=pretrain, decay_rounds=decay)


def fedap(learner: Learner | None, options: FedApOptions) -> Algorithm:
    """Return FedAP, with clusters or (clustering = false: no pretraining, no clustering) without."""
    hyper = as_sgd_hyper(options)

    def train(
        weights: Weights, shard: Shard, epochs: int, rng: np.random.Generator
    ) -> tuple[dict[str, Array], float]:
        assert learner is not None
        trained, loss = learner.fit(
            "train", weights, {"x": shard.x_train}, shard.y_train, epochs=epochs, rng=rng, hyper=hyper
        )
        return {**weights, **trained}, loss

    def choose_phase(round: int) -> str:
        return (
            PHASE_FEDERATE
            if not options.clustering
            else PHASE_PRETRAIN
            if round <= options.pretrain_rounds
            else PHASE_CLUSTER
        )

    def init(weights: Weights, rng: np.random.Generator) -> ServerState:
        return ServerState(1, choose_phase(1), {GLOBAL: weights, INITIAL: weights})

    def broadcast(state: ServerState, client_id: str) -> Broadcast:
        phase, received = choose_phase_and_model(state, client_id)
        return Broadcast(
            state.round, state.phase if state.phase == PHASE_PERSONALIZE else phase, {GLOBAL: received}
        )

    def restore_statistics(received: Weights, state: ClientState) -> dict[str, Array]:
        return {**received, **{name: array for name, array in state.arrays.items() if name in received}}

    def local_update(
        broadcast: Broadcast, state: ClientState, shard: Shard, client_id: str, rng: np.random.Generator
    ) -> tuple[Update, ClientState]:
        received = broadcast.models[GLOBAL]
        trained, loss = train(
            restore_statistics(received, state),
            shard,
            options.cluster_epochs if broadcast.phase == PHASE_CLUSTER else options.epochs,
            rng,
        )
        local_statistics = {} if options.share_statistics else select_statistics(trained)
        delta = subtract({**trained, **{name: received[name] for name in local_statistics}}, received)
        return Update(
            client_id, broadcast.round, len(shard.y_train), {GLOBAL: delta}, {"loss": loss}
        ), ClientState(local_statistics)

    def assign_cluster(update: Update, centers: Matrix) -> int:
        return find_nearest_cluster(flatten_delta(update), centers)

    def aggregate(state: ServerState, updates: Iterable[Update]) -> ServerState:
        if state.phase == PHASE_CLUSTER:
            round_updates = list(updates)
            if not round_updates:  # nobody to place: the next round tries again
                return replace(state, round=state.round + 1)
            return start_clusters(
                state,
                round_updates,
                cut_by_distance(round_updates, options.cut_distance, options.num_clusters),
            )
        if state.phase == PHASE_PRETRAIN:
            return replace(
                aggregate_clusters(state, updates, assign_cluster),
                round=state.round + 1,
                phase=choose_phase(state.round + 1),
            )
        done = int(state.scalars.get(FEDERATED_ROUNDS, 0))
        after = aggregate_clusters(
            state,
            updates,
            assign_cluster,
            schedule_beta(done, options.beta_start, options.beta_end, options.decay_rounds),
        )
        return replace(
            after, round=state.round + 1, scalars={**after.scalars, FEDERATED_ROUNDS: float(done + 1)}
        )

    def personalize(
        broadcast: Broadcast, state: ClientState, shard: Shard, rng: np.random.Generator
    ) -> tuple[Mixture, ClientState]:
        model = restore_statistics(broadcast.models[GLOBAL], state)
        peers = {FEDERATED_MODEL: Peer("predict", model)}
        count = len(shard.y_train)
        epochs = extend_epochs(options.personalize_epochs, options.least_steps, count, options.batch_size)
        personal, _ = train(model, shard, epochs, rng)
        return Mixture(personal, peers), state

    def current(broadcast: Broadcast, state: ClientState, shard: Shard) -> Peer | None:
        return Peer("predict", restore_statistics(broadcast.models[GLOBAL], state))

    return Algorithm(
        "fedap",
        init,
        broadcast,
        local_update,
        aggregate,
        personalize,
        current=current,
        by_sums=not options.clustering,
    )


ENTRIES = {
    "fedap": Entry(
        FedApOptions,
        fedap,
        build_fedavg_objectives,
        "Yeganeh et al., arXiv:2207.03448",
        resolve=resolve_fedap_options,
    )
}

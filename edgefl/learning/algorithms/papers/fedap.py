"""FedAP: meta-learning steps within clusters of clients, then a few epochs on each client's own data.

The federation has three phases:

- Pretraining: FedAvg over all clients.
- Clustering: all clients train some epochs from the same model. Ward's method clusters them by the distance
  of their deltas.
- Clusters: each cluster starts from its weighted mean. In each round, theta <- theta + beta_t (sum_k n_k / n
  theta_k - theta), where beta falls linearly.

At the end, each client trains the received model on its own data. The moving statistics of batch norms are
not aggregated, because each client uses its own.

Communication cost: down one model, up one delta (zeros for the moving statistics) and one count.

Source: Yeganeh et al., Adaptive Personalization in Federated Learning for Highly Non-i.i.d. Data,
arXiv:2207.03448, equation 9.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from edgefl.base.config import FederationConfig
from edgefl.base.errors import ConfigError
from edgefl.base.types import (
    Array,
    Broadcast,
    ClientState,
    Mixture,
    Peer,
    ServerState,
    Shard,
    StateRecord,
    Update,
    Weights,
)
from edgefl.learning.algorithms.arithmetic import subtract
from edgefl.learning.algorithms.base import (
    PHASE_CLUSTER,
    PHASE_FEDERATE,
    PHASE_PERSONALIZE,
    PHASE_PRETRAIN,
    Algorithm,
)
from edgefl.learning.algorithms.clustering.cluster_models import (
    aggregate_clusters,
    choose_phase_and_model,
    start_clusters,
)
from edgefl.learning.algorithms.clustering.hierarchical import (
    Cut,
    Matrix,
    average_vectors,
    build_linkage,
    cosine_similarity,
    cut_at,
    cut_into,
    cut_silhouette,
    cut_widest,
    euclidean_distance,
    find_nearest_cluster,
)
from edgefl.learning.algorithms.clustering.similarity import flatten_delta, select_statistics
from edgefl.learning.algorithms.entry import Entry
from edgefl.learning.algorithms.names import FEDERATED_MODEL, GLOBAL, INITIAL
from edgefl.learning.algorithms.options import TrainingOptions, as_sgd_hyper, check_choice, extend_epochs
from edgefl.learning.algorithms.papers.fedavg import build_fedavg_objectives
from edgefl.program.learner.base import Learner


@dataclass(frozen=True)
class FederatedRounds(StateRecord):
    """The number of rounds of the phase `federate` so far."""

    count: int = 0


def schedule_beta(t: int, start: float, end: float, decay_rounds: int) -> float:
    """Return the step size beta of a round.

    It falls linearly from `start` to `end` over `decay_rounds` rounds and then stays at `end`.

    Args:
        t: number of earlier rounds in clusters.
        start: beta of the first round.
        end: beta after the decay.
        decay_rounds: length of the decay in rounds. With 0, beta is always `end`.
    """
    return start + (end - start) * min(t / decay_rounds, 1.0) if decay_rounds else end


def cut_by_distance(
    updates: Iterable[Update], cut_distance: float, num_clusters: int, cut: str = "distance"
) -> Cut:
    """Cluster clients by the Euclidean distances of their deltas with Ward's method.

    Moving statistics are not compared.

    Args:
        updates: the updates of the clustering round, from clients that trained from the same model. At least
            one.
        cut_distance: height of the cut. 0 cuts in the widest gap.
        num_clusters: number of clusters, instead of the cut. 0 uses the cut.
        cut: `distance`, or `silhouette` for the number of clusters with the highest mean silhouette.
    """
    vectors = [flatten_delta(update) for update in updates]
    distances = euclidean_distance(vectors)
    merges = build_linkage(distances, "ward")
    by_distance = cut_at(merges, cut_distance) if cut_distance else cut_widest(merges)
    clusters = cut_into(merges, num_clusters) if num_clusters else by_distance
    if cut == "silhouette":
        clusters = cut_silhouette(merges, distances**2)
    return replace(
        clusters, similarity=cosine_similarity(vectors), centers=average_vectors(vectors, clusters.labels)
    )


@dataclass(frozen=True)
class FedApOptions(TrainingOptions):
    """Options of training by SGD, and of FedAP.

    beta_start = beta_end = 1 and personalize_epochs = 0 give FedAvg, with or without clusters.

    Raises:
        ConfigError: an option is out of range. Or cut is silhouette, and cut_distance or num_clusters is set.

    Attributes:
        clustering: whether to pretrain and to cluster.
        pretrain_rounds: rounds of FedAvg before the clustering. 0: a quarter of the rounds, at least 1.
        cluster_epochs: epochs in the clustering round.
        cut_distance: height at which Ward's merges are cut. It depends on the model's size and the learning
            rate. 0: in the widest gap in the upper half of the merges.
        num_clusters: number of clusters, instead of the cut. 0: by the cut.
        cut: distance, or silhouette for the number of clusters with the highest mean silhouette, instead of
            cut_distance and num_clusters.
        beta_start: beta in the first round in clusters.
        beta_end: beta from decay_rounds on.
        decay_rounds: rounds over which beta falls, counted from the first round in clusters. 0: all rounds in
            clusters.
        personalize_epochs: epochs of each client on its own data at the end.
        least_steps: minimum number of steps of these epochs. A client with few samples trains more epochs. 0:
            no minimum.
        share_statistics: whether to average the moving statistics of batch norms too.
    """

    clustering: bool = True
    pretrain_rounds: int = 0
    cluster_epochs: int = 3
    cut_distance: float = 0.0
    num_clusters: int = 0
    cut: str = "distance"
    beta_start: float = 1.0
    beta_end: float = 0.46
    decay_rounds: int = 0
    personalize_epochs: int = 7
    least_steps: int = 200
    share_statistics: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("cut", self.cut, ["distance", "silhouette"])
        if self.cut == "silhouette" and (self.cut_distance or self.num_clusters):
            raise ConfigError(
                f"[algorithm] cut is 'silhouette' with cut_distance {self.cut_distance:g} and num_clusters "
                f"{self.num_clusters}, expected 0 for both; leave them out, or set cut = 'distance'"
            )


def resolve_fedap_options(options: FedApOptions, config: FederationConfig) -> FedApOptions:
    """Return the options with the lengths of the phases. A length that is 0 depends on the number of rounds.

    For example, 20 rounds are 5 rounds of FedAvg, 1 clustering round and 14 rounds in clusters. Without
    clustering, only decay_rounds is set.

    Args:
        config: the configuration, which sets the number of rounds.
    """
    if not options.clustering:
        return replace(options, decay_rounds=options.decay_rounds or config.rounds)
    pretrain = options.pretrain_rounds or max(1, config.rounds // 4)
    decay = options.decay_rounds or max(1, config.rounds - pretrain - 1)
    return replace(options, pretrain_rounds=pretrain, decay_rounds=decay)


def fedap(learner: Learner | None, options: FedApOptions) -> Algorithm:
    """Return FedAP, with clusters or without.

    Without clusters there is no pretraining either.

    Args:
        learner: runs the plan. The aggregator passes None.

    Source: Yeganeh et al., arXiv:2207.03448.
    """
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
        return ServerState(round=1, phase=choose_phase(1), models={GLOBAL: weights, INITIAL: weights})

    def broadcast(state: ServerState, client_id: str) -> Broadcast:
        phase, received = choose_phase_and_model(state, client_id)
        return Broadcast(
            round=state.round,
            phase=state.phase if state.phase == PHASE_PERSONALIZE else phase,
            models={GLOBAL: received},
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
            client_id=client_id,
            round=broadcast.round,
            num_samples=len(shard.y_train),
            deltas={GLOBAL: delta},
            metrics={"loss": loss},
        ), ClientState(local_statistics)

    def assign_cluster(update: Update, centers: Matrix) -> int:
        return find_nearest_cluster(flatten_delta(update), centers)

    def aggregate(state: ServerState, updates: Iterable[Update]) -> ServerState:
        if state.phase == PHASE_CLUSTER:
            round_updates = list(updates)
            if not round_updates:  # no client to assign, so the next round clusters
                return replace(state, round=state.round + 1)
            return start_clusters(
                state,
                round_updates,
                cut_by_distance(round_updates, options.cut_distance, options.num_clusters, options.cut),
            )
        if state.phase == PHASE_PRETRAIN:
            return replace(
                aggregate_clusters(state, updates, assign_cluster),
                round=state.round + 1,
                phase=choose_phase(state.round + 1),
            )
        done = state.read_record(FederatedRounds).count
        after = aggregate_clusters(
            state,
            updates,
            assign_cluster,
            schedule_beta(done, options.beta_start, options.beta_end, options.decay_rounds),
        )
        return replace(after, round=state.round + 1).with_record(FederatedRounds(done + 1))

    def personalize(
        broadcast: Broadcast, state: ClientState, shard: Shard, rng: np.random.Generator
    ) -> tuple[Mixture, ClientState]:
        model = restore_statistics(broadcast.models[GLOBAL], state)
        peers = {FEDERATED_MODEL: Peer("predict", model)}
        count = len(shard.y_train)
        epochs = extend_epochs(options.personalize_epochs, options.least_steps, count, options.batch_size)
        personal, _ = train(model, shard, epochs, rng)
        return Mixture(weights=personal, peers=peers), state

    def current(broadcast: Broadcast, state: ClientState, shard: Shard) -> Peer | None:
        return Peer("predict", restore_statistics(broadcast.models[GLOBAL], state))

    return Algorithm(
        name="fedap",
        init=init,
        broadcast=broadcast,
        local_update=local_update,
        aggregate=aggregate,
        personalize=personalize,
        current=current,
        by_sums=not options.clustering,
    )


ENTRIES = {
    "fedap": Entry(
        options=FedApOptions,
        factory=fedap,
        objectives=build_fedavg_objectives,
        source="Yeganeh et al., arXiv:2207.03448",
        resolve=resolve_fedap_options,
    )
}

"""CFL, clustered federated learning by recursive bipartition.

All clients begin in one cluster. Each cluster trains a model of its own by FedAvg. When the model stops
improving while some clients still pull hard, the clients of the cluster disagree, and the cluster is split in
two. The aggregator splits cluster c after a round if all of these hold:

- The mean update is short: |sum_k n_k / n_c delta_k| < eps1.
- The longest update is not: max_k |delta_k| > eps2.
- The two parts are well separated: sqrt((1 - alpha) / 2) > gamma. alpha is the maximum cosine similarity of
  two clients of different parts.

The parts are the bipartition with the smallest alpha. Merging the most similar clients until two clusters
remain finds it, which is single linkage. Each part starts from the weighted mean of its clients' models.

Differences from the paper:

- By default, eps1 and eps2 are shares of the updates' own norms, because absolute norms depend on the model
  and on the learning rate. `relative = false` is the paper's rule, with eps1 = .4 and eps2 = 1.6 in the
  authors' code. That code merges by complete linkage. This module follows algorithm 1.
- The mean is weighted by samples also within a cluster. Moving statistics of batch norms are not compared.
- The paper caches all updates of a split. Here the aggregator keeps the mean direction of each part, which
  gives the mean similarity instead of the maximum.
- Not all clients have to take part in the round of a split.

A client that missed the split of its cluster walks down the tree of splits (algorithm 3), and so does a
client that arrives later, from the root. In each of its rounds, it receives the model that the cluster had
before the split. Its update selects the part with the more similar direction and moves no model. A client
that sends no update uses the model of its last cluster, or of the largest cluster if it has none.

Before the first split is possible, updates are added up one at a time. From then on, the aggregator keeps a
round's deltas in memory.

Communication cost: down one model, up one delta and one count.

Source: Sattler, Mueller and Samek, Clustered Federated Learning: Model-Agnostic Distributed Multi-Task
Optimization under Privacy Constraints, IEEE TNNLS 2020, arXiv:1910.01991, algorithms 1 to 3.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from edgefl.base.config import FederationConfig
from edgefl.base.types import Array, Broadcast, ServerState, StateRecord, Update, Weights
from edgefl.learning.algorithms.arithmetic import add, weighted_mean
from edgefl.learning.algorithms.base import (
    PHASE_PERSONALIZE,
    Algorithm,
    find_assignment,
    read_assignments,
    with_assignments,
)
from edgefl.learning.algorithms.clustering.cluster_models import (
    find_cluster_model,
    name_cluster_model,
    record_arrivals,
    record_cut,
)
from edgefl.learning.algorithms.clustering.hierarchical import (
    Cut,
    average_unit_vectors,
    build_linkage,
    cosine_distance,
    cut_into,
    find_most_similar_cluster,
)
from edgefl.learning.algorithms.clustering.similarity import flatten_delta
from edgefl.learning.algorithms.entry import Entry
from edgefl.learning.algorithms.names import GLOBAL
from edgefl.learning.algorithms.options import TrainingOptions, check_count, check_range
from edgefl.learning.algorithms.papers.fedavg import FedAvgOptions, build_fedavg_objectives, fedavg
from edgefl.program.learner.base import Learner


@dataclass(frozen=True)
class Split:
    """A split of a cluster into two parts.

    Attributes:
        cluster: the number of the divided cluster.
        start: its model before the split.
        centers: center of each part, shape (2, d), float32.
    """

    cluster: int
    start: Weights
    centers: Array


@dataclass(frozen=True)
class SplitHistory(StateRecord):
    """The splits so far.

    Attributes:
        splits: the splits in their order. Part 0 of a split keeps the number of the divided cluster. Part 1
            of split i is cluster i + 1.
        passed: the number of splits that each client's assignment takes into account, by client id.
        largest_norm: the largest norm of a client's update in any round.
    """

    splits: tuple[Split, ...] = ()
    passed: Mapping[str, int] = field(default_factory=dict)
    largest_norm: float = 0.0


@dataclass(frozen=True)
class CflOptions(TrainingOptions):
    """Options of training by SGD, and of the splits.

    Raises:
        ConfigError: an option is out of range.

    Attributes:
        pretrain_rounds: rounds of FedAvg before the first split. 0: a quarter of the rounds, at least 1.
        eps1: a cluster may be split if the norm of its mean update is below this share of the round's largest
            norm in the cluster.
        eps2: a cluster may be split if the largest norm of its clients is above this share of the largest
            norm in any round.
        relative: false makes eps1 and eps2 absolute norms, as in the paper.
        gamma: minimum separation sqrt((1 - alpha) / 2) of the parts, 0 to 1. 0: no minimum. With .7071 and
            more, no two clients of different parts have a positive similarity.
        min_cluster_size: minimum number of clients of a part, among the clients of the round.
    """

    pretrain_rounds: int = 0
    eps1: float = 0.4
    eps2: float = 0.5
    relative: bool = True
    gamma: float = 0.7
    min_cluster_size: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("gamma", self.gamma)
        check_count("min_cluster_size", self.min_cluster_size)


def resolve_cfl_options(options: CflOptions, config: FederationConfig) -> CflOptions:
    """Return the options with the number of rounds before the first split.

    Args:
        config: the configuration, which sets the number of rounds.
    """
    return replace(options, pretrain_rounds=options.pretrain_rounds or max(1, config.rounds // 4))


def bipartition(vectors: Sequence[Array]) -> Cut:
    """Divide clients into two parts with the smallest similarity between any two clients of different parts.

    Args:
        vectors: the update of each client, shape (d,), float32. Two or more.

    Returns:
        The cut. Its `next_height` is 1 minus the maximum similarity between the parts.

    Source: Sattler et al., arXiv:1910.01991, algorithm 1.
    """
    distances = cosine_distance(vectors)
    cut = cut_into(build_linkage(distances, "single"), 2)
    return replace(cut, similarity=1.0 - distances, centers=average_unit_vectors(vectors, cut.labels))


def measure_separation(cut: Cut) -> float:
    """Return sqrt((1 - alpha) / 2) of a bipartition, from 0 to 1.

    Args:
        cut: result of `bipartition`.

    Source: Sattler et al., arXiv:1910.01991, algorithm 2.
    """
    return float(np.sqrt((cut.next_height or 0.0) / 2))


def find_missed_split(state: ServerState, client_id: str) -> int | None:
    """Return the first split of a client's cluster that its assignment does not take into account.

    Args:
        state: the server state before the round.
        client_id: the client. A client without a cluster begins in cluster 0 before all splits.

    Returns:
        The number of the split, or None if there is no such split.
    """
    cluster = find_assignment(state, client_id) or 0
    history = state.read_record(SplitHistory)
    passed = history.passed.get(client_id, 0)
    return next(
        (index for index in range(passed, len(history.splits)) if history.splits[index].cluster == cluster),
        None,
    )


def assign_part(state: ServerState, client_id: str, vector: Array, split: int) -> ServerState:
    """Return the state in which a client has joined a part of a split.

    Args:
        state: the server state in the client's round.
        vector: the client's update from the model before the split, shape (d,), float32.
    """
    missed = state.read_record(SplitHistory).splits[split]
    part = find_most_similar_cluster(vector, missed.centers.astype(np.float64))
    is_new = find_assignment(state, client_id) is None
    arrived = record_arrivals(state, [client_id]) if is_new else state
    cluster = split + 1 if part else missed.cluster
    return _set_clusters(arrived, {client_id: cluster}, split + 1)


def split_cluster(state: ServerState, cluster: int, updates: Sequence[Update], cut: Cut) -> ServerState:
    """Return the state in which a cluster is divided into two.

    Args:
        state: the server state before the round.
        updates: the round's updates of its clients, sorted by client id.
        cut: the two parts, with labels in the order of the updates.
    """
    assert cut.centers is not None
    history = state.read_record(SplitHistory)
    index = len(history.splits)
    numbers = [cluster, index + 1]
    start = _read_model(state, cluster)
    models = {name: model for name, model in state.models.items() if name != GLOBAL}
    for part, number in enumerate(numbers):
        members = [update for update, label in zip(updates, cut.labels, strict=True) if label == part]
        mean = weighted_mean((update.deltas[GLOBAL], update.num_samples) for update in members)
        models[name_cluster_model(number)] = start if mean is None else add(start, mean)
    split = Split(cluster, start, cut.centers.astype(np.float32))
    recorded = record_cut(state, cut, [update.client_id for update in updates])
    after = replace(recorded, models=models).with_record(replace(history, splits=(*history.splits, split)))
    joined = {
        update.client_id: numbers[int(label)] for update, label in zip(updates, cut.labels, strict=True)
    }
    return _set_clusters(after, joined, index + 1)


def cfl(learner: Learner | None, options: CflOptions) -> Algorithm:
    """Return CFL, whose mixture is the model of the client's cluster.

    Args:
        learner: runs the plan. The aggregator passes None.

    Source: Sattler et al., arXiv:1910.01991, algorithms 1 to 3.
    """
    base = fedavg(
        learner,
        FedAvgOptions(
            epochs=options.epochs,
            learning_rate=options.learning_rate,
            momentum=options.momentum,
            weight_decay=options.weight_decay,
            batch_size=options.batch_size,
        ),
    )

    def broadcast(state: ServerState, client_id: str) -> Broadcast:
        missed = None if state.phase == PHASE_PERSONALIZE else find_missed_split(state, client_id)
        model = (
            find_cluster_model(state, client_id)
            if missed is None
            else state.read_record(SplitHistory).splits[missed].start
        )
        return Broadcast(round=state.round, phase=state.phase, models={GLOBAL: model})

    def may_split(mean: Array, norms: Sequence[float], largest_norm: float) -> bool:
        longest = max(norms)
        unit1, unit2 = (longest, largest_norm) if options.relative else (1.0, 1.0)
        return float(np.linalg.norm(mean)) < options.eps1 * unit1 and longest > options.eps2 * unit2

    def advance_cluster(state: ServerState, cluster: int, updates: Sequence[Update]) -> ServerState:
        vectors = [flatten_delta(update) for update in updates]
        norms = [float(np.linalg.norm(vector)) for vector in vectors]
        history = state.read_record(SplitHistory)
        largest_norm = max(*norms, history.largest_norm)
        mean = weighted_mean((update.deltas[GLOBAL], update.num_samples) for update in updates)
        after = state.with_record(replace(history, largest_norm=largest_norm))
        if mean is None:
            return after
        mean_vector = flatten_delta(replace(updates[0], deltas={GLOBAL: mean}))
        if len(updates) >= 2 * options.min_cluster_size and may_split(mean_vector, norms, largest_norm):
            cut = bipartition(vectors)
            smallest = int(np.bincount(cut.labels).min())
            if smallest >= options.min_cluster_size and measure_separation(cut) > options.gamma:
                return split_cluster(after, cluster, updates, cut)
        name = name_cluster_model(cluster) if read_assignments(state) else GLOBAL
        return replace(after, models={**after.models, name: add(after.models[name], mean)})

    def pretrain(state: ServerState, updates: Iterable[Update]) -> ServerState:
        history = state.read_record(SplitHistory)
        largest_norm = history.largest_norm

        def weigh_deltas() -> Iterator[tuple[Weights, float]]:
            nonlocal largest_norm
            for update in updates:
                largest_norm = max(largest_norm, float(np.linalg.norm(flatten_delta(update))))
                yield update.deltas[GLOBAL], update.num_samples

        mean = weighted_mean(weigh_deltas())
        model = state.models[GLOBAL]
        models = {**state.models, GLOBAL: model if mean is None else add(model, mean)}
        return replace(state, models=models).with_record(replace(history, largest_norm=largest_norm))

    def aggregate(state: ServerState, updates: Iterable[Update]) -> ServerState:
        if state.round <= options.pretrain_rounds:
            return replace(pretrain(state, updates), round=state.round + 1)
        clusters = read_assignments(state)
        updates_by_cluster: dict[int, list[Update]] = {}
        after = state
        for update in updates:
            missed = find_missed_split(state, update.client_id)
            if missed is None:
                updates_by_cluster.setdefault(clusters.get(update.client_id, 0), []).append(update)
            else:
                after = assign_part(after, update.client_id, flatten_delta(update), missed)
        for cluster, members in sorted(updates_by_cluster.items()):
            after = advance_cluster(after, cluster, members)
        return replace(after, round=state.round + 1)

    return replace(
        base, name="cfl", broadcast=broadcast, aggregate=aggregate, takes_late=False, by_sums=False
    )


def _read_model(state: ServerState, cluster: int) -> Weights:
    return state.models[name_cluster_model(cluster) if read_assignments(state) else GLOBAL]


def _set_clusters(state: ServerState, clusters: dict[str, int], passed: int) -> ServerState:
    history = state.read_record(SplitHistory)
    counts = {**history.passed, **dict.fromkeys(clusters, passed)}
    after = state.with_record(replace(history, passed=counts))
    return with_assignments(after, {**read_assignments(state), **clusters})


ENTRIES = {
    "cfl": Entry(
        options=CflOptions,
        factory=cfl,
        objectives=build_fedavg_objectives,
        source="Sattler et al., IEEE TNNLS 2020, arXiv:1910.01991",
        resolve=resolve_cfl_options,
    )
}

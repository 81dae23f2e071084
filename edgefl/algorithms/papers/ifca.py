"""IFCA: clients choose among several models, and the clusters are who chose which.

Ghosh et al., An Efficient Framework for Clustered Federated Learning, NeurIPS 2020, with model averaging and
one cohort for all models, as Isaksson et al., Adaptive Expert Models for Personalization in Federated
Learning, 2022, equations 2 and 3:
j = argmin_j sum_i l(x_i, y_i, w_j) over the client's training data; E epochs of SGD from w_j; w_j <- sum_k
n_k / n_j w_k over the clients that chose j; a model that nobody chose stays as it is. After the rounds a
client uses the model of lowest loss on its validation samples, which it never trained on (Isaksson et al.,
section 3.1).

Traffic: down J models; up the delta of one, a count and the choice.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgefl.algorithms.arithmetic import add, average_by_group, subtract
from edgefl.algorithms.base import PHASE_FEDERATE, Algorithm
from edgefl.algorithms.draws import draw_initial_weights
from edgefl.algorithms.entry import Entry
from edgefl.algorithms.names import EXPERT_PREFIX, FEDERATED_MODEL, name_expert, select_experts
from edgefl.algorithms.options import TrainingOptions, as_sgd_hyper, check_count, check_range, limit_experts
from edgefl.algorithms.papers.fedavg import build_fedavg_objectives
from edgefl.config import FederationConfig
from edgefl.data.holdout import hold_out
from edgefl.learner.base import Learner, predict_label_log_p
from edgefl.rng import derive_rng
from edgefl.types import (
    Array,
    Broadcast,
    ClientState,
    Labels,
    Mixture,
    Peer,
    ServerState,
    Shard,
    Update,
    Weights,
)

if TYPE_CHECKING:
    pass

PICKS_PREFIX = "picks/"
MAX_HELD_OUT_SHARE = 0.9
"""The largest share of a client's training samples that may be held back."""
CURRENT_SAMPLES = 64
"""Number of training samples, at most, on which a client chooses the model that it would use now."""


def find_lowest_loss(losses: Mapping[int, float]) -> int:
    """Return the index of the lowest loss, the first of several.

    One that is not a number is never chosen if another is.
    """
    return min(losses, key=lambda index: losses[index] if np.isfinite(losses[index]) else np.inf)


def measure_mean_losses(
    learner: Learner,
    models: Mapping[int, Weights],
    x: Array,
    y: Labels,
    samples: int,
    rng: np.random.Generator,
) -> dict[int, float]:
    """Return the mean loss of each model, all over the same `samples` samples drawn by rng; 0: over all,
    nothing drawn.
    """
    if 0 < samples < len(y):
        drawn = np.sort(rng.choice(len(y), size=samples, replace=False))
        x = x[drawn]
        y = y[drawn]
    return {
        index: float(-predict_label_log_p(learner, "predict", weights, x, y).mean())
        for index, weights in models.items()
    }


def split_validation_rows(
    labels: Labels, share: float, groups: Labels | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split a client's training samples into those that train and those that validate, for the whole
    federation.

    The split depends on the arguments alone, so that it is the same in each round and after a client lost its
    state. A group is not divided where there are two or more.

    Args:
        labels: int64[n], the labels of the training samples.
        share: share that validates, at least one sample.
        groups: int64[n], the recording of each sample, where it is known.

    Returns:
        Indices int64, sorted: (train, validate). Nothing validates at share 0 or with fewer than two samples.
    """
    count = len(labels)
    if count < 2 or not share:
        return np.arange(count), np.arange(0)
    if groups is not None:
        train, validate = hold_out(labels, groups, share, derive_rng(0, 0, "validation"))
        if len(validate):
            return train, validate
    order = derive_rng(0, 0, "validation").permutation(count)
    held_out = min(max(1, round(count * share)), count - 1)
    return np.sort(order[held_out:]), np.sort(order[:held_out])


def read_pick_counts(state: ServerState) -> dict[int, int]:
    """Return how many updates each model has had, by index; a model that nobody chose so far is left out."""
    return {
        int(key.removeprefix(PICKS_PREFIX)): int(count)
        for key, count in state.scalars.items()
        if key.startswith(PICKS_PREFIX)
    }


@dataclass(frozen=True)
class IfcaOptions(TrainingOptions):
    """Options of training, and those of IFCA.

    Raises ConfigError when there is no expert and for a share out of range.

    Attributes:
        num_experts: the number of cluster models, J; where it is not set, at most one for each client that
            the configuration expects
        selection_samples: number of the client's samples that a choice is made on; 0: all
        validation_share: share of a client's training samples that never trains a cluster model: the last
            choice is made on them; 0: on training samples
    """

    num_experts: int = 6
    selection_samples: int = 0
    validation_share: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("num_experts", self.num_experts)
        check_range("validation_share", self.validation_share, MAX_HELD_OUT_SHARE)


def resolve_ifca_options(options: IfcaOptions, config: FederationConfig) -> IfcaOptions:
    """Return the options with no more experts than a configuration has clients, where it sets none."""
    return replace(options, num_experts=limit_experts(options.num_experts, config))


def ifca(learner: Learner | None, options: IfcaOptions) -> Algorithm:
    """Return IFCA; its mixture is the model of lowest loss on the client's validation samples.

    Model 0 starts from the initial weights, the others from further draws (see `draws`).
    """
    hyper = as_sgd_hyper(options)

    def init(weights: Weights, rng: np.random.Generator) -> ServerState:
        models = draw_initial_weights(weights, options.num_experts, rng)
        return ServerState(
            1, PHASE_FEDERATE, {name_expert(index): model for index, model in enumerate(models)}
        )

    def broadcast(state: ServerState, client_id: str) -> Broadcast:
        return Broadcast(state.round, state.phase, state.models)

    def local_update(
        broadcast: Broadcast, state: ClientState, shard: Shard, client_id: str, rng: np.random.Generator
    ) -> tuple[Update, ClientState]:
        assert learner is not None
        fit, _ = split_validation_rows(shard.y_train, options.validation_share, shard.group_train)
        received = select_experts(broadcast.models)
        x = shard.x_train[fit]
        y = shard.y_train[fit]
        chosen = (
            find_lowest_loss(measure_mean_losses(learner, received, x, y, options.selection_samples, rng))
            if len(received) > 1
            else next(iter(received))
        )
        trained, loss = learner.fit(
            "train", received[chosen], {"x": x}, y, epochs=options.epochs, rng=rng, hyper=hyper
        )
        # Zero for what the model keeps frozen
        delta = subtract({**received[chosen], **trained}, received[chosen])
        return Update(
            client_id,
            broadcast.round,
            len(y),
            {name_expert(chosen): delta},
            {"loss": loss, EXPERT_PREFIX: float(chosen)},
        ), state

    def aggregate(state: ServerState, updates: Iterable[Update]) -> ServerState:
        counts = read_pick_counts(state)

        def weigh_deltas() -> Iterator[tuple[str, Weights, float]]:
            for update in updates:
                for name, delta in update.deltas.items():
                    (index,) = select_experts({name: delta})
                    counts[index] = counts.get(index, 0) + 1
                    yield name, delta, update.num_samples

        means = average_by_group(weigh_deltas())
        models = {
            name: add(weights, means[name]) if name in means else weights
            for name, weights in state.models.items()
        }
        scalars = {
            **state.scalars,
            **{f"{PICKS_PREFIX}{index}": float(count) for index, count in sorted(counts.items())},
        }
        return replace(state, round=state.round + 1, models=models, scalars=scalars)

    def personalize(
        broadcast: Broadcast, state: ClientState, shard: Shard, rng: np.random.Generator
    ) -> tuple[Mixture, ClientState]:
        assert learner is not None
        received = select_experts(broadcast.models)
        fit, held_out = split_validation_rows(shard.y_train, options.validation_share, shard.group_train)
        rows = held_out if len(held_out) else fit
        best = find_lowest_loss(
            measure_mean_losses(
                learner, received, shard.x_train[rows], shard.y_train[rows], options.selection_samples, rng
            )
        )
        model = received[best]
        return Mixture(model, {FEDERATED_MODEL: Peer("predict", model)}, {"best": float(best)}), state

    def current(broadcast: Broadcast, state: ClientState, shard: Shard) -> Peer | None:
        assert learner is not None
        received = select_experts(broadcast.models)
        rng = derive_rng(0, broadcast.round, "current")
        x = shard.x_train
        return Peer(
            "predict",
            received[
                find_lowest_loss(
                    measure_mean_losses(learner, received, x, shard.y_train, CURRENT_SAMPLES, rng)
                )
            ],
        )

    return Algorithm(
        "ifca", init, broadcast, local_update, aggregate, personalize, current=current, by_sums=True
    )


ENTRIES = {
    "ifca": Entry(
        IfcaOptions,
        ifca,
        build_fedavg_objectives,
        "Ghosh et al., NeurIPS 2020, as compared with by Isaksson et al., 2022",
        models="num_experts",
        resolve=resolve_ifca_options,
    )
}

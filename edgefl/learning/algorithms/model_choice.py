"""Several shared models, of which each client trains and uses the one that fits its samples best.

IFCA is this algorithm, and AEM builds on it. `edgefl.learning.algorithms.papers.ifca` has the equations.

Source: Ghosh et al., An Efficient Framework for Clustered Federated Learning, NeurIPS 2020.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from edgefl.base.config import FederationConfig
from edgefl.base.rng import derive_rng
from edgefl.base.types import (
    Array,
    Broadcast,
    ClientState,
    Labels,
    Mixture,
    Peer,
    ServerState,
    Shard,
    StateRecord,
    Update,
    Weights,
)
from edgefl.data.holdout import hold_out
from edgefl.learning.algorithms.arithmetic import add, average_by_group, subtract
from edgefl.learning.algorithms.base import PHASE_FEDERATE, Algorithm, TrainedModels
from edgefl.learning.algorithms.draws import draw_initial_weights
from edgefl.learning.algorithms.names import (
    EXPERT_PREFIX,
    FEDERATED_MODEL,
    name_expert,
    name_experts,
    select_experts,
)
from edgefl.learning.algorithms.options import (
    TrainingOptions,
    as_sgd_hyper,
    check_count,
    check_range,
    limit_experts,
)
from edgefl.program.learner.base import Learner, predict_label_log_p

MAX_HELD_OUT_SHARE = 0.9
"""Maximum share of a client's training samples that may be held out."""
CURRENT_SAMPLES = 64
"""Maximum number of training samples on which a client chooses the model that it would use now."""


def find_lowest_loss(losses: Mapping[int, float]) -> int:
    """Return the index of the lowest loss, the first among equals.

    A loss that is not finite is chosen only if all others are not finite either.
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
    """Return the mean loss of each model by index.

    Args:
        x: samples, shape (n, *input_shape), float32.
        y: labels, shape (n,), int64.
        samples: number of samples to draw, the same ones for all models. 0 uses all samples without any draw.
        rng: draws the samples.
    """
    if 0 < samples < len(y):
        drawn = np.sort(rng.choice(len(y), size=samples, replace=False))
        x = x[drawn]
        y = y[drawn]
    return {
        index: float(-predict_label_log_p(learner, "predict", weights, x, y).mean())
        for index, weights in models.items()
    }


def split_validation_rows(shard: Shard, share: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split a client's training samples into training and validation samples for the whole federation.

    The split depends only on the arguments. A client therefore gets the same split in each round, even if it
    has lost its state. Samples that the rounds did not have (`Shard.unseen_train`) do not change the split of
    the others, and become training samples. With two or more groups, no group is divided.

    Args:
        share: share of validation samples. At least one sample is held out, except with a share of 0.

    Returns:
        Sorted indices of the training and the validation samples, int64. There are no validation samples if
            the share is 0 or the rounds had fewer than two samples.
    """
    all_rows = np.arange(len(shard.y_train))
    rows = all_rows if shard.unseen_train is None else np.setdiff1d(all_rows, shard.unseen_train)
    groups = None if shard.group_train is None else shard.group_train[rows]
    held_out = rows[_choose_validation_rows(shard.y_train[rows], share, groups)]
    return np.setdiff1d(all_rows, held_out), held_out


def _choose_validation_rows(labels: Labels, share: float, groups: Labels | None) -> NDArray[np.int64]:
    count = len(labels)
    if count < 2 or not share:
        return np.arange(0)
    if groups is not None:
        _, held_out = hold_out(labels, groups, share, derive_rng(0, 0, "validation"))
        if len(held_out):
            return held_out
    order = derive_rng(0, 0, "validation").permutation(count)
    return np.sort(order[: min(max(1, round(count * share)), count - 1)])


@dataclass(frozen=True)
class PickCounts(StateRecord):
    """How often each model was chosen.

    Attributes:
        counts: the number of updates of each model by index. Models that no client has chosen are left out.
    """

    counts: Mapping[int, int] = field(default_factory=dict)


def read_pick_counts(state: ServerState) -> dict[int, int]:
    """Return the number of updates of each model by index. Models that no client has chosen are left out."""
    return dict(state.read_record(PickCounts).counts)


@dataclass(frozen=True)
class ModelChoiceOptions(TrainingOptions):
    """Options of training by SGD, and of IFCA.

    Raises:
        ConfigError: num_experts is below 1, or validation_share is out of range.

    Attributes:
        num_experts: number of cluster models, J. If it is not set, there is at most one for each client that
            the configuration expects.
        selection_samples: number of the client's samples that a choice uses. 0: all samples.
        validation_share: share of a client's training samples that never train a cluster model. The last
            choice uses them. 0: training samples choose, see docs/results/lab-notes/model-choice.md.
    """

    num_experts: int = 6
    selection_samples: int = 0
    validation_share: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("num_experts", self.num_experts)
        check_range("validation_share", self.validation_share, MAX_HELD_OUT_SHARE)


def resolve_model_choice(options: ModelChoiceOptions, config: FederationConfig) -> ModelChoiceOptions:
    """Return the options with at most one model for each expected client.

    A number that the configuration sets is not changed.

    Args:
        options: the options of the algorithm. AEM passes its own options, which extend these.
        config: the configuration, which sets the expected clients.
    """
    return replace(options, num_experts=limit_experts(options.num_experts, config))


def make_model_choice(learner: Learner | None, options: ModelChoiceOptions) -> Algorithm:
    """Return IFCA, whose mixture is the model with the lowest loss on the client's samples.

    Model 0 starts from the initial weights, and the others from further draws
    (`edgefl.learning.algorithms.draws`).

    Args:
        learner: runs the plan. The aggregator passes None.

    Source: Ghosh et al., NeurIPS 2020.
    """
    hyper = as_sgd_hyper(options)

    def init(weights: Weights, rng: np.random.Generator) -> ServerState:
        models = draw_initial_weights(weights, options.num_experts, rng)
        return ServerState(
            round=1,
            phase=PHASE_FEDERATE,
            models={name_expert(index): model for index, model in enumerate(models)},
        )

    def broadcast(state: ServerState, client_id: str) -> Broadcast:
        return Broadcast(round=state.round, phase=state.phase, models=state.models)

    def local_update(
        broadcast: Broadcast, state: ClientState, shard: Shard, client_id: str, rng: np.random.Generator
    ) -> tuple[Update, ClientState]:
        assert learner is not None
        fit, _ = split_validation_rows(shard, options.validation_share)
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
        # The delta of frozen weights is zero.
        delta = subtract({**received[chosen], **trained}, received[chosen])
        return Update(
            client_id=client_id,
            round=broadcast.round,
            num_samples=len(y),
            deltas={name_expert(chosen): delta},
            metrics={"loss": loss, EXPERT_PREFIX: float(chosen)},
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
        return replace(state, round=state.round + 1, models=models).with_record(PickCounts(counts))

    def personalize(
        broadcast: Broadcast, state: ClientState, shard: Shard, rng: np.random.Generator
    ) -> tuple[Mixture, ClientState]:
        assert learner is not None
        received = select_experts(broadcast.models)
        fit, held_out = split_validation_rows(shard, options.validation_share)
        rows = held_out if len(held_out) else fit
        best = find_lowest_loss(
            measure_mean_losses(
                learner, received, shard.x_train[rows], shard.y_train[rows], options.selection_samples, rng
            )
        )
        model = received[best]
        return Mixture(
            weights=model, peers={FEDERATED_MODEL: Peer("predict", model)}, diagnostics={"best": float(best)}
        ), state

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
        name="ifca",
        init=init,
        broadcast=broadcast,
        local_update=local_update,
        aggregate=aggregate,
        personalize=personalize,
        current=current,
        by_sums=True,
        trained=TrainedModels(
            required=(), choices=name_experts(options.num_experts), min_choices=1, max_choices=1
        ),
    )

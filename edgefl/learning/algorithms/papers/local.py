"""Local training, the baseline without a federation.

Each client trains alone from the same initial weights. It trains as many epochs as it would have trained in
the rounds. This is the baseline `Local` of all five papers.

Rounds still run, and cost one message for each client. The client trains when it personalizes, so the choice
of cohorts makes no difference.

Communication cost: down nothing in the rounds and the initial weights at their end, up one message without a
delta.
"""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from edgefl.base.types import Array, Broadcast, ClientState, Mixture, ServerState, Shard, Update, Weights
from edgefl.learning.algorithms.base import NO_MODELS, PHASE_FEDERATE, Algorithm
from edgefl.learning.algorithms.entry import Entry
from edgefl.learning.algorithms.names import INITIAL
from edgefl.learning.algorithms.options import (
    TrainingOptions,
    as_sgd_hyper,
    check_choice,
    check_count,
    check_range,
)
from edgefl.learning.algorithms.papers.fedavg import build_fedavg_objectives
from edgefl.learning.algorithms.schedule import SCHEDULES, scale_learning_rate
from edgefl.program.learner.base import Learner

if TYPE_CHECKING:
    from edgefl.program.compiler.network import Network
    from edgefl.program.compiler.objective import Objective

EPOCHS_SCALAR = "epochs"


@dataclass(frozen=True)
class LocalOptions(TrainingOptions):
    """Options of the training, and a limit.

    Raises:
        ConfigError: a value is out of range, or optimizer or schedule is unknown.

    Attributes:
        epochs: passes over the client's samples for each round.
        learning_rate: step size in the first epoch.
        momentum: momentum of SGD. It runs through all epochs.
        max_epochs: maximum number of epochs in total. 0: no limit.
        optimizer: sgd or adam, fixed when the plan is built.
        schedule: constant, step or cosine. How the learning rate changes from epoch to epoch: not at all, by
            decay_factor each decay_every epochs, or along a cosine to almost 0 in the last epoch.
        decay_every: with schedule = "step", number of epochs between two decays.
        decay_factor: with schedule = "step", factor of each decay, from 0 to 1.
    """

    max_epochs: int = 0
    optimizer: str = "sgd"
    schedule: str = "constant"
    decay_every: int = 100
    decay_factor: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("optimizer", self.optimizer, ("sgd", "adam"))
        check_choice("schedule", self.schedule, SCHEDULES)
        check_count("decay_every", self.decay_every)
        check_range("decay_factor", self.decay_factor)


def local(learner: Learner | None, options: LocalOptions) -> Algorithm:
    """Return the baseline without a federation.

    A client trains `epochs` epochs for each round, but at most `max_epochs` in total. An update has no delta.
    Its loss is NaN because nothing was trained.

    Args:
        learner: runs the plan. The aggregator passes None.
    """

    def init(weights: Weights, rng: np.random.Generator) -> ServerState:
        return ServerState(round=1, phase=PHASE_FEDERATE, models={INITIAL: weights})

    def broadcast(state: ServerState, client_id: str) -> Broadcast:
        if state.phase == PHASE_FEDERATE:
            return Broadcast(round=state.round, phase=state.phase, models={})
        count = (state.round - 1) * options.epochs
        return Broadcast(
            round=state.round,
            phase=state.phase,
            models=state.models,
            scalars={EPOCHS_SCALAR: float(min(count, options.max_epochs) if options.max_epochs else count)},
        )

    def local_update(
        broadcast: Broadcast, state: ClientState, shard: Shard, client_id: str, rng: np.random.Generator
    ) -> tuple[Update, ClientState]:
        return Update(
            client_id=client_id,
            round=broadcast.round,
            num_samples=len(shard.y_train),
            deltas={},
            metrics={"loss": math.nan},
        ), state

    def aggregate(state: ServerState, updates: Iterable[Update]) -> ServerState:
        for _ in updates:
            pass  # an iterator may compute the updates only when they are read
        return replace(state, round=state.round + 1)

    def personalize(
        broadcast: Broadcast, state: ClientState, shard: Shard, rng: np.random.Generator
    ) -> tuple[Mixture, ClientState]:
        assert learner is not None
        first = broadcast.models[INITIAL]
        count = int(broadcast.scalars[EPOCHS_SCALAR])
        model = train_by_schedule(learner, first, shard, count, options, rng)
        return Mixture(weights=model), state

    return Algorithm(
        name="local",
        init=init,
        broadcast=broadcast,
        local_update=local_update,
        aggregate=aggregate,
        personalize=personalize,
        current=lambda *received: None,
        trained=NO_MODELS,
    )


def train_by_schedule(
    learner: Learner,
    start: Weights,
    shard: Shard,
    epochs: int,
    options: LocalOptions,
    rng: np.random.Generator,
) -> Weights:
    """Return a model, trained with the learning rates of a schedule.

    Args:
        start: the weights before the training.
        rng: draws the batches, the augmentation and the noise.

    Raises:
        DataError: the samples do not fit the plan.
        DivergedError: the loss is not a finite number.
    """
    hyper = as_sgd_hyper(options)
    rates = [
        options.learning_rate
        * scale_learning_rate(
            options.schedule,
            epoch,
            epochs,
            decay_every=options.decay_every,
            decay_factor=options.decay_factor,
        )
        for epoch in range(epochs)
    ]
    model = start
    slots: dict[str, Array] = {}
    for rate, group in itertools.groupby(rates):  # one call for all epochs of the same rate
        trained, _ = learner.fit(
            "train",
            model,
            {"x": shard.x_train},
            shard.y_train,
            epochs=len(list(group)),
            rng=rng,
            hyper={**hyper, "learning_rate": rate},
            slots=slots,
        )
        model = {**model, **trained}
    return model


def build_local_objectives(network: "Network", options: LocalOptions) -> tuple["Objective", ...]:
    """Return the objectives of FedAvg, whose `train` has the optimizer of the options."""
    from edgefl.program.compiler.optimizer import adam

    train, *others = build_fedavg_objectives(network, options)
    if options.optimizer == "adam":
        train = replace(train, optimizer=adam(options.learning_rate, weight_decay=options.weight_decay))
    return (train, *others)


ENTRIES = {
    "local": Entry(
        options=LocalOptions,
        factory=local,
        objectives=build_local_objectives,
        source="the baseline without a federation",
    )
}

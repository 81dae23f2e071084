"""APFL: each client mixes the weights of a personal model with the weights of the global model.

On each batch a client takes these steps for its copy w of the global model, whose delta is sent, and for its
personal model v:

    w <- w - eta grad f(w)
    v <- v - eta grad_v f(alpha v + (1 - alpha) w)

Once in each round, before these steps, it adapts alpha, which stays in [0, 1]:

    alpha <- alpha - eta_alpha <v - w, grad f(alpha v + (1 - alpha) w)>

The mixture is alpha v + (1 - alpha) w, which is one model instead of two.

Communication cost: as in FedAvg. v and alpha stay on the device.

Source: Deng et al., Adaptive Personalized Federated Learning, arXiv:2003.13461, algorithm 1 and equation 10.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from edgefl.base.types import (
    Array,
    Broadcast,
    ClientState,
    Mixture,
    Peer,
    Shard,
    StateRecord,
    Weights,
)
from edgefl.learning.algorithms.base import Algorithm
from edgefl.learning.algorithms.entry import Entry
from edgefl.learning.algorithms.global_copy import make_local_update
from edgefl.learning.algorithms.names import FEDERATED_MODEL, GLOBAL, prefix_specs, strip_prefix, with_prefix
from edgefl.learning.algorithms.options import as_sgd_hyper, check_range
from edgefl.learning.algorithms.papers.fedavg import FedAvgOptions, build_fedavg_objectives, fedavg
from edgefl.learning.algorithms.server_optimizer import STATISTICS
from edgefl.program.learner.base import Learner
from edgefl.program.plan.spec import TensorSpec

if TYPE_CHECKING:
    from edgefl.program.compiler.network import Network
    from edgefl.program.compiler.objective import Objective

Tensor = Any
Tensors = Mapping[str, Tensor]

ALPHA_NAME = "alpha"
PERSONAL_MODEL_PREFIX = "own"


@dataclass(frozen=True)
class PersonalShare(StateRecord):
    """The share of the personal model in a client's mixture.

    Attributes:
        alpha: the share, from 0 to 1. None before the first round.
    """

    alpha: float | None = None


@dataclass(frozen=True)
class ApflOptions(FedAvgOptions):
    """Options of FedAvg, and of the mixture.

    Raises:
        ConfigError: alpha is not between 0 and 1, or as in `FedAvgOptions`.

    Attributes:
        alpha: share of the personal model, initially or always.
        adaptive: whether alpha is learnt.
        alpha_learning_rate: step size of the SGD on alpha.
    """

    alpha: float = 0.5
    adaptive: bool = True
    alpha_learning_rate: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("alpha", self.alpha)


def apfl(learner: Learner | None, options: ApflOptions) -> Algorithm:
    """Return FedAvg whose mixture is alpha v + (1 - alpha) w.

    v starts from the global model. Moving statistics are not mixed, because the personal model has its own.
    When a client personalizes, it trains once more, from the last global model and its v.

    Args:
        learner: runs the plan. The aggregator passes None.

    Raises:
        ConfigError: as in `fedavg`.

    Source: Deng et al., arXiv:2003.13461, algorithm 1.
    """
    base = fedavg(learner, options)
    hyper = as_sgd_hyper(options)

    def read_share(state: ClientState) -> float:
        share = state.read_record(PersonalShare).alpha
        return options.alpha if share is None else share

    def train_both(
        received: Weights, state: ClientState, shard: Shard, rng: np.random.Generator
    ) -> tuple[dict[str, Array], ClientState, float]:
        """Return the copy of the global model, the client's new state, and the mean loss of both models."""
        assert learner is not None
        signature = learner.spec.find_signature("train_both")
        personal = {name: array for name, array in state.arrays.items() if name in received}
        share = np.asarray(read_share(state), np.float32)
        weights = {
            **received,
            **with_prefix(PERSONAL_MODEL_PREFIX, {**received, **personal}),
            ALPHA_NAME: share,
        }
        if options.adaptive and personal:
            index = rng.permutation(len(shard.y_train))[: signature.batch_size]
            batch = {"x": shard.x_train[index]}
            labels = shard.y_train[index]
            alpha_weights, _ = learner.fit(
                "train_alpha",
                weights,
                batch,
                labels,
                epochs=1,
                rng=rng,
                hyper={"learning_rate": options.alpha_learning_rate},
            )
            weights[ALPHA_NAME] = np.clip(alpha_weights[ALPHA_NAME], 0, 1, dtype=np.float32)
        both, loss = learner.fit(
            "train_both",
            weights,
            {"x": shard.x_train},
            shard.y_train,
            epochs=options.epochs,
            rng=rng,
            hyper=hyper,
        )
        personal_trained = {
            name: both[f"{PERSONAL_MODEL_PREFIX}/{name}"]
            for name in received
            if f"{PERSONAL_MODEL_PREFIX}/{name}" in both
        }
        return (
            {**received, **{name: both[name] for name in personal_trained}},
            ClientState(personal_trained).with_record(PersonalShare(float(weights[ALPHA_NAME]))),
            loss / 2,
        )

    def personalize(
        broadcast: Broadcast, state: ClientState, shard: Shard, rng: np.random.Generator
    ) -> tuple[Mixture, ClientState]:
        received = broadcast.models[GLOBAL]
        model, new_state, _ = train_both(received, state, shard, rng)
        share = read_share(new_state)
        return Mixture(
            weights=interpolate_models(model, new_state.arrays, share),
            peers={FEDERATED_MODEL: Peer("predict", received)},
            diagnostics={ALPHA_NAME: share},
        ), new_state

    def current(broadcast: Broadcast, state: ClientState, shard: Shard) -> Peer | None:
        received = broadcast.models[GLOBAL]
        personal = {name: array for name, array in state.arrays.items() if name in received}
        return Peer("predict", interpolate_models(received, personal, read_share(state)))

    local_update = make_local_update(learner, train_both, options.sanitizer, "train_both")
    return replace(base, name="apfl", local_update=local_update, personalize=personalize, current=current)


def interpolate_models(model: Weights, personal: Weights, alpha: float) -> dict[str, Array]:
    """Return alpha personal + (1 - alpha) model.

    Weights without a personal counterpart are copied from `model`. Moving statistics are copied from
    `personal`.

    Args:
        model: the client's copy of the global model.
        alpha: share of the personal weights, from 0 to 1.
    """
    share = {name: 1.0 if name.endswith(STATISTICS) else alpha for name in personal}
    return {
        **model,
        **{
            name: np.asarray(personal[name] * share[name] + model[name] * (1 - share[name]), np.float32)
            for name in personal
        },
    }


def build_apfl_objectives(network: "Network", options: ApflOptions) -> tuple["Objective", ...]:
    """Return the objectives of FedAvg, `train_both` over the two models, and `train_alpha`.

    Source: Deng et al., arXiv:2003.13461, algorithm 1 and equation 10.
    """
    from edgefl.program.compiler.optimizer import sgd

    train, *others = build_fedavg_objectives(network, options)
    share = TensorSpec(ALPHA_NAME, ())

    def compute_mixture_loss(
        weights: Tensors, data: Tensors, noise: Tensors
    ) -> tuple[Tensor, dict[str, Tensor]]:
        import tensorflow as tf

        personal = strip_prefix(PERSONAL_MODEL_PREFIX, weights)
        part = {
            name: personal[name] * weights[ALPHA_NAME]
            + tf.stop_gradient(weights[name]) * (1.0 - weights[ALPHA_NAME])
            for name in network.trainable
        }
        return train.loss_per_sample({**weights, **personal, **part}, data, noise)

    def compute_both_losses(
        weights: Tensors, data: Tensors, noise: Tensors
    ) -> tuple[Tensor, dict[str, Tensor]]:
        losses, assigned = train.loss_per_sample(weights, data, noise)
        personal, personal_assigned = compute_mixture_loss(weights, data, noise)
        return losses + personal, {
            **assigned,
            **{f"{PERSONAL_MODEL_PREFIX}/{name}": value for name, value in personal_assigned.items()},
        }

    def compute_alpha_loss(
        weights: Tensors, data: Tensors, noise: Tensors
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return compute_mixture_loss(weights, data, noise)[0], {}

    personal_specs = prefix_specs(PERSONAL_MODEL_PREFIX, train.trained)
    both = replace(
        train,
        name="train_both",
        trained=(*train.trained, *personal_specs),
        frozen=(*train.frozen, share),
        loss_per_sample=compute_both_losses,
        assigned=(*train.assigned, *(f"{PERSONAL_MODEL_PREFIX}/{name}" for name in train.assigned)),
    )
    alpha = replace(
        train,
        name="train_alpha",
        trained=(share,),
        frozen=(*train.frozen, *train.trained, *personal_specs),
        assigned=(),
        optimizer=sgd(options.alpha_learning_rate),
        loss_per_sample=compute_alpha_loss,
    )
    return (train, *others, both, alpha)


ENTRIES = {
    "apfl": Entry(
        options=ApflOptions,
        factory=apfl,
        objectives=build_apfl_objectives,
        source="Deng et al., arXiv:2003.13461",
    )
}

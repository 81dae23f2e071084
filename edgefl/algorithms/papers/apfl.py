"""APFL: each client mixes the weights of a model of its own with those of the global one.

Deng et al., Adaptive Personalized Federated Learning, arXiv:2003.13461, algorithm 1. On each batch:

    w <- w - eta grad f(w)                            its copy of the global model, whose delta is sent
    v <- v - eta grad_v f(alpha v + (1 - alpha) w)    its own model

Once a round, before these steps, alpha <- alpha - eta_alpha <v - w, grad f(alpha v + (1 - alpha) w)>, kept in
[0, 1] (equation 10). The personal model is alpha v + (1 - alpha) w: one model, not two.

Traffic: that of FedAvg; v and alpha stay on the device.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from edgefl.algorithms.arithmetic import subtract
from edgefl.algorithms.base import Algorithm
from edgefl.algorithms.entry import Entry
from edgefl.algorithms.names import FEDERATED, GLOBAL, specs_with_prefix, with_prefix, without_prefix
from edgefl.algorithms.options import check_range, sgd_hyper
from edgefl.algorithms.papers.fedavg import FedAvgOptions, fedavg, fedavg_objectives
from edgefl.algorithms.server_optimizer import STATISTICS
from edgefl.learner.base import Learner
from edgefl.plan.spec import TensorSpec
from edgefl.types import Array, Broadcast, ClientState, Mixture, Peer, Shard, Update, Weights

if TYPE_CHECKING:
    from edgefl.compiler.network import Network
    from edgefl.compiler.objective import Objective

Tensor = Any
Tensors = Mapping[str, Tensor]

ALPHA = "alpha"
OWN = "own"


@dataclass(frozen=True)
class ApflOptions(FedAvgOptions):
    """Those of FedAvg, and those of the mixture. Raises ConfigError for an alpha above 1.

    Attributes:
        alpha: share of the client's own model at first, or always
        adaptive: whether alpha is learnt
        alpha_learning_rate: step size of the SGD on alpha
    """

    alpha: float = 0.5
    adaptive: bool = True
    alpha_learning_rate: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("alpha", self.alpha)


def apfl(learner: Learner | None, options: ApflOptions) -> Algorithm:
    """Return FedAvg whose mixture is alpha v + (1 - alpha) w.

    v starts from the global model. Moving statistics are not mixed: the personal model has its own. When it
    personalizes, a client trains once more, from the last global model and its v.
    """
    base = fedavg(learner, options)
    defence = options.defence
    hyper = sgd_hyper(options)

    def trained(
        received: Weights, state: ClientState, shard: Shard, rng: np.random.Generator
    ) -> tuple[dict[str, Array], ClientState, float]:
        """Return the client's copy of the global model, what it keeps, and the mean of the two models'
        losses.
        """
        assert learner is not None
        signature = learner.spec.signature("train_both")
        own = {name: array for name, array in state.arrays.items() if name in received}
        share = np.asarray(state.scalars.get(ALPHA, options.alpha), np.float32)
        weights = {**received, **with_prefix(OWN, {**received, **own}), ALPHA: share}
        if options.adaptive and own:
            index = rng.permutation(len(shard.y_train))[: signature.batch_size]
            batch = {"x": shard.x_train[index]}
            labels = shard.y_train[index]
            moved, _ = learner.fit(
                "train_alpha",
                weights,
                batch,
                labels,
                epochs=1,
                rng=rng,
                hyper={"learning_rate": options.alpha_learning_rate},
            )
            weights[ALPHA] = np.clip(moved[ALPHA], 0, 1, dtype=np.float32)
        both, loss = learner.fit(
            "train_both",
            weights,
            {"x": shard.x_train},
            shard.y_train,
            epochs=options.epochs,
            rng=rng,
            hyper=hyper,
        )
        kept = {name: both[f"{OWN}/{name}"] for name in received if f"{OWN}/{name}" in both}
        return (
            {**received, **{name: both[name] for name in kept}},
            ClientState(kept, {ALPHA: float(weights[ALPHA])}),
            loss / 2,
        )

    def local_update(
        broadcast: Broadcast, state: ClientState, shard: Shard, client_id: str, rng: np.random.Generator
    ) -> tuple[Update, ClientState]:
        received = broadcast.models[GLOBAL]
        model, kept, loss = trained(received, state, shard, rng)
        delta = defence.apply(subtract(model, received), kept.arrays.keys(), rng)
        return Update(client_id, broadcast.round, len(shard.y_train), {GLOBAL: delta}, {"loss": loss}), kept

    def personalize(
        broadcast: Broadcast, state: ClientState, shard: Shard, rng: np.random.Generator
    ) -> tuple[Mixture, ClientState]:
        received = broadcast.models[GLOBAL]
        model, kept, _ = trained(received, state, shard, rng)
        share = kept.scalars[ALPHA]
        return Mixture(
            mixed(model, kept.arrays, share), {FEDERATED: Peer("predict", received)}, {ALPHA: share}
        ), kept

    def current(broadcast: Broadcast, state: ClientState, shard: Shard) -> Peer | None:
        received = broadcast.models[GLOBAL]
        own = {name: array for name, array in state.arrays.items() if name in received}
        return Peer("predict", mixed(received, own, state.scalars.get(ALPHA, options.alpha)))

    return replace(base, name="apfl", local_update=local_update, personalize=personalize, current=current)


def mixed(model: Weights, own: Weights, alpha: float) -> dict[str, Array]:
    """Return alpha own + (1 - alpha) model.

    Weights that are not among the own ones, and own statistics, are taken as they are.
    """
    share = {name: 1.0 if name.endswith(STATISTICS) else alpha for name in own}
    return {
        **model,
        **{
            name: np.asarray(own[name] * share[name] + model[name] * (1 - share[name]), np.float32)
            for name in own
        },
    }


def apfl_objectives(network: "Network", options: ApflOptions) -> tuple["Objective", ...]:
    """Return FedAvg's, `train_both` over the two models, and `train_alpha`."""
    from edgefl.compiler.optimizer import sgd

    train, *others = fedavg_objectives(network, options)
    share = TensorSpec(ALPHA, ())

    def on_mixture(weights: Tensors, data: Tensors, noise: Tensors) -> tuple[Tensor, dict[str, Tensor]]:
        import tensorflow as tf

        own = without_prefix(OWN, weights)
        part = {
            name: own[name] * weights[ALPHA] + tf.stop_gradient(weights[name]) * (1.0 - weights[ALPHA])
            for name in network.trainable
        }
        return train.loss_per_sample({**weights, **own, **part}, data, noise)

    def on_both(weights: Tensors, data: Tensors, noise: Tensors) -> tuple[Tensor, dict[str, Tensor]]:
        losses, assigned = train.loss_per_sample(weights, data, noise)
        personal, own = on_mixture(weights, data, noise)
        return losses + personal, {**assigned, **{f"{OWN}/{name}": value for name, value in own.items()}}

    def on_alpha(weights: Tensors, data: Tensors, noise: Tensors) -> tuple[Tensor, dict[str, Tensor]]:
        return on_mixture(weights, data, noise)[0], {}

    own = specs_with_prefix(OWN, train.trained)
    both = replace(
        train,
        name="train_both",
        trained=(*train.trained, *own),
        frozen=(*train.frozen, share),
        loss_per_sample=on_both,
        assigned=(*train.assigned, *(f"{OWN}/{name}" for name in train.assigned)),
    )
    alpha = replace(
        train,
        name="train_alpha",
        trained=(share,),
        frozen=(*train.frozen, *train.trained, *own),
        assigned=(),
        optimizer=sgd(options.alpha_learning_rate),
        loss_per_sample=on_alpha,
    )
    return (train, *others, both, alpha)


ENTRIES = {"apfl": Entry(ApflOptions, apfl, apfl_objectives, "Deng et al., arXiv:2003.13461")}

"""FedALA: each client merges the received model into its local model, with one learnt weight for each number.

Before it trains, a client mixes the last p layers of its local model with the last p layers of the global
model. It takes the other layers from the global model:

    start = local + (global - local) * W,    W in [0, 1], one value for each weight of these layers

W stays on the device. It starts at 1, where the start is the global model, as in FedAvg. A client learns W by
SGD on a share of its samples, one batch at a time, and clips it to [0, 1]:

    W <- clip(W - eta (global - local) * grad f(start))

The first time, it repeats this until the loss converges. Later it takes one epoch in each round. Then it
trains the whole model from the start, and sends the difference between its trained and the received model.

In its first round a client has no local model and does not learn W. When a client personalizes, it merges and
trains once more. Its mixture is the result.

Differences: The number of epochs until W converges has a limit. The mean loss of an epoch decides whether W
has converged. The authors' code has no limit and uses the loss of an epoch's last batch. The paper does not
mention moving statistics, which come from the global model here. p counts layers, as in the paper. The
authors' code counts kernels and biases.

Communication cost: as in FedAvg. W stays on the device. The last update describes the local layers.

Source: Zhang et al., FedALA: Adaptive Local Aggregation for Personalized Federated Learning, AAAI 2023,
arXiv:2212.01197, algorithm 1 and equations 4 and 5.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from edgefl.base.errors import ConfigError
from edgefl.base.types import Array, Broadcast, ClientState, Mixture, Peer, Shard, Weights
from edgefl.learning.algorithms.base import Algorithm
from edgefl.learning.algorithms.entry import Entry
from edgefl.learning.algorithms.global_copy import make_local_update
from edgefl.learning.algorithms.names import (
    FEDERATED_MODEL,
    GLOBAL,
    LOCAL_MODEL,
    extract_layer,
    prefix_specs,
    strip_prefix,
    with_prefix,
)
from edgefl.learning.algorithms.options import as_sgd_hyper, check_count, check_range
from edgefl.learning.algorithms.papers.fedavg import FedAvgOptions, build_fedavg_objectives, fedavg
from edgefl.program.learner.base import Learner

if TYPE_CHECKING:
    from edgefl.program.compiler.network import Network
    from edgefl.program.compiler.objective import Objective

Tensor = Any
Tensors = Mapping[str, Tensor]

MIXING_PREFIX = "mixing"
CONVERGENCE_EPOCHS = 10
"""Number of epochs whose losses must be almost equal before W counts as converged."""


@dataclass(frozen=True)
class FedAlaOptions(FedAvgOptions):
    """Options of FedAvg, and of the weights W that merge the received model into the local model.

    Raises:
        ConfigError: mixing_layers or start_epochs is below 1, mixing_share is not between 0 and 1, or as in
            `FedAvgOptions`.

    Attributes:
        mixing_layers: number of last layers that are merged by W, p, fixed when the plan is built.
        mixing_learning_rate: step size of the SGD on W, eta. 0: W stays at 1, and the rounds are those of
            FedAvg.
        mixing_share: share of the client's samples that W is learnt on, drawn in each round.
        mixing_threshold: W has converged if the standard deviation of the last 10 epochs' losses is below
            this value.
        start_epochs: maximum number of epochs until W converges, when a client learns it for the first time.
    """

    mixing_layers: int = 1
    mixing_learning_rate: float = 1.0
    mixing_share: float = 0.8
    mixing_threshold: float = 0.01
    start_epochs: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("mixing_layers", self.mixing_layers)
        check_count("start_epochs", self.start_epochs)
        check_range("mixing_share", self.mixing_share)


def fedala(learner: Learner | None, options: FedAlaOptions) -> Algorithm:
    """Return FedAvg whose clients start from a learnt mixture of their local and the global model.

    Args:
        learner: runs the plan. The aggregator passes None.

    Raises:
        ConfigError: as in `fedavg`.

    Source: Zhang et al., arXiv:2212.01197, algorithm 1.
    """
    base = fedavg(learner, options)
    hyper = as_sgd_hyper(options)
    mixing_hyper = {"learning_rate": options.mixing_learning_rate}

    def learn_mixing(
        received: Weights, state: ClientState, shard: Shard, rng: np.random.Generator
    ) -> dict[str, Array]:
        """Return W by the names `mixing/NAME`. A client that has no W starts from 1."""
        assert learner is not None
        signature = learner.spec.find_signature("train_mixing")
        local = with_prefix(
            LOCAL_MODEL, {name: array for name, array in state.arrays.items() if name in received}
        )
        mixing = {
            spec.name: state.arrays.get(spec.name, np.ones(spec.shape, np.float32))
            for spec in signature.trained
        }
        is_first = not any(name in state.arrays for name in mixing)
        count = len(shard.y_train)
        rows = rng.choice(count, size=max(1, round(count * options.mixing_share)), replace=False)
        losses: list[float] = []
        for _ in range(options.start_epochs if is_first else 1):
            order = rng.permutation(rows)
            total = 0.0
            for first in range(0, len(order), signature.batch_size):
                batch = order[first : first + signature.batch_size]
                stepped, loss = learner.fit(
                    "train_mixing",
                    {**received, **local, **mixing},
                    {"x": shard.x_train[batch]},
                    shard.y_train[batch],
                    epochs=1,
                    rng=rng,
                    hyper=mixing_hyper,
                )
                mixing = {name: np.clip(array, 0, 1, dtype=np.float32) for name, array in stepped.items()}
                total += loss * len(batch)
            losses.append(total / len(order))
            if has_converged(losses, options.mixing_threshold):
                break
        return mixing

    def merge_and_train(
        received: Weights, state: ClientState, shard: Shard, rng: np.random.Generator
    ) -> tuple[dict[str, Array], ClientState, float]:
        """Return the trained model, the client's new state, and the mean loss of the training."""
        assert learner is not None
        names = [
            spec.name.removeprefix(f"{MIXING_PREFIX}/")
            for spec in learner.spec.find_signature("train_mixing").trained
        ]
        has_local = all(name in state.arrays for name in names)
        learns = has_local and options.mixing_learning_rate and len(shard.y_train)
        mixing = learn_mixing(received, state, shard, rng) if learns else {}
        start = merge_models(received, {**state.arrays, **mixing})
        trained, loss = learner.fit(
            "train", start, {"x": shard.x_train}, shard.y_train, epochs=options.epochs, rng=rng, hyper=hyper
        )
        model = {**start, **trained}
        return model, replace(state, arrays={**{name: model[name] for name in names}, **mixing}), loss

    def personalize(
        broadcast: Broadcast, state: ClientState, shard: Shard, rng: np.random.Generator
    ) -> tuple[Mixture, ClientState]:
        received = broadcast.models[GLOBAL]
        model, new_state, _ = merge_and_train(received, state, shard, rng)
        mixing = strip_prefix(MIXING_PREFIX, new_state.arrays)
        diagnostics = {f"{MIXING_PREFIX}/{name}": float(array.mean()) for name, array in mixing.items()}
        return Mixture(
            weights=model, peers={FEDERATED_MODEL: Peer("predict", received)}, diagnostics=diagnostics
        ), new_state

    def current(broadcast: Broadcast, state: ClientState, shard: Shard) -> Peer | None:
        return Peer("predict", merge_models(broadcast.models[GLOBAL], state.arrays))

    local_update = make_local_update(learner, merge_and_train, options.sanitizer)
    return replace(base, name="fedala", local_update=local_update, personalize=personalize, current=current)


def has_converged(losses: list[float], threshold: float) -> bool:
    """Return whether the losses of the last epochs are almost equal.

    Args:
        losses: mean loss of each epoch so far.
        threshold: limit of the standard deviation of the last `CONVERGENCE_EPOCHS` losses.
    """
    return len(losses) > CONVERGENCE_EPOCHS and float(np.std(losses[-CONVERGENCE_EPOCHS:])) < threshold


def merge_models(received: Weights, state: Weights) -> dict[str, Array]:
    """Return the model that a client trains from, local + (global - local) * W.

    Args:
        received: the global model.
        state: arrays of the client's state: weights of the local model by name, and W by `mixing/NAME`.
            Weights without W are copied from the global model.
    """
    mixing = strip_prefix(MIXING_PREFIX, state)
    return {
        **received,
        **{
            name: np.asarray(state[name] * (1 - share) + received[name] * share, np.float32)
            for name, share in mixing.items()
        },
    }


def select_mixed_weights(network: "Network", layers: int) -> list[str]:
    """Return the names of the trainable weights of the last layers.

    Args:
        layers: number of layers. Only layers with weights count.

    Raises:
        ConfigError: the model has fewer layers.
    """
    trained_layers = list(dict.fromkeys(extract_layer(name) for name in network.trainable))
    if layers > len(trained_layers):
        raise ConfigError(
            f"[algorithm] mixing_layers is {layers}, expected at most {len(trained_layers)}, the number of "
            "layers of the model with trainable weights"
        )
    return [name for name in network.trainable if extract_layer(name) in trained_layers[-layers:]]


def build_fedala_objectives(network: "Network", options: FedAlaOptions) -> tuple["Objective", ...]:
    """Return the objectives of FedAvg, and `train_mixing`, which trains W.

    Raises:
        ConfigError: the model has fewer layers than `mixing_layers`.

    Source: Zhang et al., arXiv:2212.01197, equations 4 and 5.
    """
    from edgefl.program.compiler.optimizer import sgd

    train, *others = build_fedavg_objectives(network, options)
    names = select_mixed_weights(network, options.mixing_layers)
    mixed_specs = network.select(names)

    def compute_merged_loss(
        weights: Tensors, data: Tensors, noise: Tensors
    ) -> tuple[Tensor, dict[str, Tensor]]:
        local = strip_prefix(LOCAL_MODEL, weights)
        mixing = strip_prefix(MIXING_PREFIX, weights)
        merged = {name: local[name] + (weights[name] - local[name]) * mixing[name] for name in names}
        return train.loss_per_sample({**weights, **merged}, data, noise)[0], {}

    mixing = replace(
        train,
        name="train_mixing",
        trained=prefix_specs(MIXING_PREFIX, mixed_specs),
        frozen=(*train.frozen, *train.trained, *prefix_specs(LOCAL_MODEL, mixed_specs)),
        assigned=(),
        optimizer=sgd(options.mixing_learning_rate),
        loss_per_sample=compute_merged_loss,
    )
    return (train, *others, mixing)


ENTRIES = {
    "fedala": Entry(
        options=FedAlaOptions,
        factory=fedala,
        objectives=build_fedala_objectives,
        source="Zhang et al., arXiv:2212.01197",
    )
}

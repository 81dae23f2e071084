"""Federated averaging.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017, algorithm 1:
w <- w + sum_k n_k / n (w_k - w), where w_k comes from E epochs of SGD at client k.

Traffic: down one model; up one delta and one count.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from edgefl.algorithms.arithmetic import add, subtract, weighted_mean
from edgefl.algorithms.base import FEDERATE, Algorithm
from edgefl.algorithms.entry import entry
from edgefl.learner.base import Learner
from edgefl.types import Broadcast, ClientState, Mixture, Peer, ServerState, Shard, Update, Weights

if TYPE_CHECKING:
    from edgefl.plan.network import Network
    from edgefl.plan.objective import Objective

GLOBAL = "global"
FEDERATED = "federated"
INITIAL = "initial"
BASELINE_ROUNDS = "baseline_rounds"


def fedavg(
    learner: Learner | None,
    *,
    epochs: int = 5,
    learning_rate: float = 0.01,
    momentum: float = 0.5,
    weight_decay: float = 0.0,
    batch_size: int = 10,
    baseline_epochs: int = 50,
) -> Algorithm:
    """Return FedAvg; its mixture is the global model itself. The aggregator needs no learner.

    batch_size is fixed when the plan is built. baseline_epochs bounds the training of each client's model of its own data
    alone, which personalization compares with; 0 leaves that out.
    """
    del batch_size
    hyper = {"learning_rate": learning_rate, "momentum": momentum, "weight_decay": weight_decay}

    def init(weights: Weights, rng: np.random.Generator) -> ServerState:
        return ServerState(1, FEDERATE, {GLOBAL: weights, INITIAL: weights})

    def broadcast(state: ServerState, client_id: str) -> Broadcast:
        if state.phase == FEDERATE:
            return Broadcast(state.round, state.phase, {GLOBAL: state.models[GLOBAL]})
        alone = min(state.round - 1, baseline_epochs // max(epochs, 1))
        return Broadcast(state.round, state.phase, state.models, {BASELINE_ROUNDS: float(alone)})

    def local_update(
        broadcast: Broadcast, state: ClientState, shard: Shard, client_id: str, rng: np.random.Generator
    ) -> tuple[Update, ClientState]:
        assert learner is not None
        received = broadcast.models[GLOBAL]
        trained, loss = learner.fit("train", received, {"x": shard.x_train}, shard.y_train, epochs=epochs, rng=rng, hyper=hyper)
        delta = subtract({**received, **trained}, received)  # zero for what the model keeps frozen
        return Update(client_id, broadcast.round, len(shard.y_train), {GLOBAL: delta}, {"loss": loss}), state

    def aggregate(state: ServerState, updates: Iterable[Update]) -> ServerState:
        mean = weighted_mean((update.deltas[GLOBAL], update.num_samples) for update in updates)
        models = state.models if mean is None else {**state.models, GLOBAL: add(state.models[GLOBAL], mean)}
        return replace(state, round=state.round + 1, models=models)

    def personalize(broadcast: Broadcast, state: ClientState, shard: Shard, rng: np.random.Generator) -> tuple[Mixture, ClientState]:
        model = broadcast.models[GLOBAL]
        return Mixture(model, {FEDERATED: Peer("predict", model)}), state

    return Algorithm("fedavg", init, broadcast, local_update, aggregate, personalize)


def fedavg_objectives(network: "Network", options: Mapping[str, Any]) -> tuple["Objective", ...]:
    """Return train, predict and, the same graph, predict_mixture."""
    from edgefl.plan import objective as of
    from edgefl.plan.optimizer import sgd

    optimizer = sgd(options["learning_rate"], momentum=options["momentum"], weight_decay=options["weight_decay"])
    return (
        of.classify(network, of.batch_of(options, "batch_size"), optimizer),
        of.predict(network, of.PREDICT_BATCH),
        of.predict(network, of.PREDICT_BATCH, "predict_mixture"),
    )


ENTRIES = {"fedavg": entry(fedavg, fedavg_objectives, "McMahan et al., AISTATS 2017")}

"""Federated averaging.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017,
algorithm 1:
w <- w + sum_k n_k / n (w_k - w), where w_k comes from E epochs of SGD at client k.
The mean may be another (robust.py), the server may take it as a gradient (server_optimizer.py), and a device
may change its delta before it sends it (defence.py); all three are off at first.

Traffic: down one model; up one delta and one count.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from edgefl.algorithms import robust
from edgefl.algorithms import server_optimizer as server
from edgefl.algorithms.arithmetic import subtract
from edgefl.algorithms.base import FEDERATE, Algorithm
from edgefl.algorithms.entry import entry
from edgefl.algorithms.names import ALONE, BASELINE_ROUNDS, FEDERATED, GLOBAL, INITIAL, RECEIVED, with_prefix
from edgefl.algorithms.update_sanitization import Defence, listed
from edgefl.learner.base import Learner
from edgefl.types import Broadcast, ClientState, Mixture, Peer, ServerState, Shard, Update, Weights

if TYPE_CHECKING:
    from edgefl.compiler.network import Network
    from edgefl.compiler.objective import Objective

SKIPPED = "skipped_rounds"
"""The server's count of rounds whose updates were too few for its mean."""


def fedavg(
    learner: Learner | None,
    *,
    epochs: int = 5,
    learning_rate: float = 0.01,
    momentum: float = 0.5,
    weight_decay: float = 0.0,
    batch_size: int = 10,
    baseline_epochs: int = 50,
    mean: str = "weighted",
    trim: float = 0.1,
    krum_faults: int = 1,
    krum_keep: int = 1,
    clip_norm: float = 0.0,
    server_optimizer: str = "none",
    server_learning_rate: float = 0.0,
    server_beta1: float = 0.9,
    server_beta2: float = 0.999,
    server_epsilon: float = 1e-8,
    clip_update: float = 0.0,
    noise_multiplier: float = 0.0,
    withhold: str = "",
) -> Algorithm:
    """Return FedAvg; its mixture is the global model itself. The aggregator needs no learner.

    batch_size is fixed when the plan is built. baseline_epochs bounds the training of each client's model of
    its own data alone, which personalization compares with; 0 leaves that out.

    mean: weighted (by samples), or trimmed, median, krum, which count each client once and hold a round's
    deltas in memory. trim: the share cut off at either end. krum_faults: how many clients may be hostile; a
    round of fewer than 2 f + 3 updates changes nothing and is counted in the state's scalars. krum_keep: of
    how many deltas Krum takes the mean. clip_norm: the largest L2 norm that the server lets a delta have, 0
    for any.
    server_optimizer: none, momentum, adam, yogi. server_learning_rate: 0 is the usual one, 1 for none and
    momentum, else .001. clip_update, noise_multiplier, withhold (a comma list of the ends of weights' names):
    what a device does to its delta; what is withheld stays as broadcast.

    Raises ConfigError for options that do not fit together, and at `init` for withheld weights that there are
    not.
    """
    del batch_size
    hyper = {"learning_rate": learning_rate, "momentum": momentum, "weight_decay": weight_decay}
    robust.check_mean(mean, trim)
    server_hyper = {
        "learning_rate": server_learning_rate,
        "beta1": server_beta1,
        "beta2": server_beta2,
        "epsilon": server_epsilon,
    }
    server.check_optimizer(server_optimizer, server_hyper)
    defence = Defence(clip_update, noise_multiplier, listed(withhold))

    def init(weights: Weights, rng: np.random.Generator) -> ServerState:
        defence.check(weights)
        return ServerState(1, FEDERATE, {GLOBAL: weights, INITIAL: weights})

    def broadcast(state: ServerState, client_id: str) -> Broadcast:
        if state.phase == FEDERATE:
            return Broadcast(state.round, state.phase, {GLOBAL: state.models[GLOBAL]})
        alone = min(state.round - 1, baseline_epochs // max(epochs, 1))
        models = state.models if alone else {GLOBAL: state.models[GLOBAL]}
        return Broadcast(state.round, state.phase, models, {BASELINE_ROUNDS: float(alone)})

    def local_update(
        broadcast: Broadcast, state: ClientState, shard: Shard, client_id: str, rng: np.random.Generator
    ) -> tuple[Update, ClientState]:
        assert learner is not None
        received = broadcast.models[GLOBAL]
        weights = {**received, **with_prefix(RECEIVED, received)}
        trained, loss = learner.fit(
            "train", weights, {"x": shard.x_train}, shard.y_train, epochs=epochs, rng=rng, hyper=hyper
        )
        delta = subtract({**received, **trained}, received)  # zero for what the model keeps frozen
        if broadcast.round != ALONE:
            delta = defence.apply(delta, trained, rng)
        return Update(client_id, broadcast.round, len(shard.y_train), {GLOBAL: delta}, {"loss": loss}), state

    def aggregate(state: ServerState, updates: Iterable[Update]) -> ServerState:
        count = 0

        def terms() -> Iterator[tuple[Weights, float]]:
            nonlocal count
            for update in updates:
                count += 1
                yield update.deltas[GLOBAL], update.num_samples

        delta = robust.mean_of(
            mean, terms(), trim=trim, faults=krum_faults, keep=krum_keep, clip_norm=clip_norm
        )
        after = replace(state, round=state.round + 1)
        if delta is None:
            return (
                replace(after, scalars={**state.scalars, SKIPPED: state.scalars.get(SKIPPED, 0.0) + 1})
                if count
                else after
            )
        model, slots = server.step(
            server_optimizer, server_hyper, state.models[GLOBAL], delta, state.slots.get(GLOBAL, {})
        )
        return replace(
            after,
            models={**state.models, GLOBAL: model},
            slots={**state.slots, GLOBAL: slots} if slots else state.slots,
        )

    def personalize(
        broadcast: Broadcast, state: ClientState, shard: Shard, rng: np.random.Generator
    ) -> tuple[Mixture, ClientState]:
        model = broadcast.models[GLOBAL]
        return Mixture(model, {FEDERATED: Peer("predict", model)}), state

    by_sums = mean == "weighted" and not clip_norm
    return Algorithm(
        "fedavg", init, broadcast, local_update, aggregate, personalize, takes_late=True, by_sums=by_sums
    )


def fedavg_objectives(network: "Network", options: Mapping[str, Any]) -> tuple["Objective", ...]:
    """Return train, predict and, the same graph, predict_mixture."""
    from edgefl.compiler import objective as of
    from edgefl.compiler.optimizer import sgd

    optimizer = sgd(
        options["learning_rate"], momentum=options["momentum"], weight_decay=options["weight_decay"]
    )
    return (
        of.classify(network, of.batch_of(options, "batch_size"), optimizer),
        of.predict(network, of.PREDICT_BATCH),
        of.predict(network, of.PREDICT_BATCH, "predict_mixture"),
    )


ENTRIES = {"fedavg": entry(fedavg, fedavg_objectives, "McMahan et al., AISTATS 2017")}

"""Ditto: beside the global model, each client trains one of its own that is held near it.

Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, arXiv:2012.04221, algorithm 1.
The global model w is that of FedAvg; client k takes steps v <- v - eta (grad F_k(v) + lambda (v -
w_received)), which the server never sees.

Traffic: that of FedAvg.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from edgefl.algorithms.base import Algorithm
from edgefl.algorithms.entry import entry
from edgefl.algorithms.names import ALONE, FEDERATED, GLOBAL, RECEIVED, with_prefix
from edgefl.algorithms.papers.fedavg import fedavg, fedavg_objectives
from edgefl.algorithms.papers.fedprox import proximal
from edgefl.learner.base import Learner
from edgefl.types import Broadcast, ClientState, Mixture, Peer, Shard, Update, Weights

if TYPE_CHECKING:
    from edgefl.compiler.network import Network
    from edgefl.compiler.objective import Objective


def ditto(
    learner: Learner | None,
    *,
    penalty: float = 1.0,
    personal_epochs: int = 5,
    personal_learning_rate: float = 0.01,
    personal_momentum: float = 0.0,
    **federation: Any,
) -> Algorithm:
    """Return FedAvg (with the keywords `federation`) with a personal model beside it: the mixture.

    penalty is the paper's lambda, fixed when the plan is built. The personal model trains for personal_epochs
    in each round that its client takes part in, and once more, towards the last global model, when it
    personalizes; who has none yet starts from the global one.
    """
    del penalty
    hyper = {"learning_rate": personal_learning_rate, "momentum": personal_momentum}
    base = fedavg(learner, **federation)

    def trained(received: Weights, state: ClientState, shard: Shard, rng: np.random.Generator) -> ClientState:
        assert learner is not None
        own = {**received, **{name: array for name, array in state.arrays.items() if name in received}}
        weights = {**own, **with_prefix(RECEIVED, received)}
        moved, _ = learner.fit(
            "train_personal",
            weights,
            {"x": shard.x_train},
            shard.y_train,
            epochs=personal_epochs,
            rng=rng,
            hyper=hyper,
        )
        return replace(state, arrays=moved)

    def local_update(
        broadcast: Broadcast, state: ClientState, shard: Shard, client_id: str, rng: np.random.Generator
    ) -> tuple[Update, ClientState]:
        update, _ = base.local_update(broadcast, state, shard, client_id, rng)
        return update, state if broadcast.round == ALONE else trained(
            broadcast.models[GLOBAL], state, shard, rng
        )

    def personalize(
        broadcast: Broadcast, state: ClientState, shard: Shard, rng: np.random.Generator
    ) -> tuple[Mixture, ClientState]:
        model = broadcast.models[GLOBAL]
        state = trained(model, state, shard, rng)
        return Mixture({**model, **state.arrays}, {FEDERATED: Peer("predict", model)}), state

    return replace(base, name="ditto", local_update=local_update, personalize=personalize)


def ditto_objectives(network: "Network", options: Mapping[str, Any]) -> tuple["Objective", ...]:
    """Return FedAvg's, and `train_personal` with the penalty."""
    from edgefl.compiler import objective as of
    from edgefl.compiler.optimizer import sgd

    optimizer = sgd(options["personal_learning_rate"], momentum=options["personal_momentum"])
    personal = of.classify(network, of.batch_of(options, "batch_size"), optimizer, "train_personal")
    return (*fedavg_objectives(network, options), proximal(personal, options["penalty"]))


ENTRIES = {"ditto": entry(ditto, ditto_objectives, "Li et al., arXiv:2012.04221", fedavg)}

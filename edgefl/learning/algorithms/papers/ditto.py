"""Ditto: each client trains a personal model near the global model.

The global model w is trained as in FedAvg. Client k also takes the steps v <- v - eta (grad F_k(v) + lambda
(v - w_received)). The server never sees v.

Communication cost: as in FedAvg.

Source: Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, arXiv:2012.04221,
algorithm 1.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from edgefl.base.types import Broadcast, ClientState, Mixture, Peer, Shard, Update, Weights
from edgefl.learning.algorithms.base import Algorithm
from edgefl.learning.algorithms.entry import Entry
from edgefl.learning.algorithms.names import FEDERATED_MODEL, GLOBAL, RECEIVED_PREFIX, with_prefix
from edgefl.learning.algorithms.papers.fedavg import FedAvgOptions, build_fedavg_objectives, fedavg
from edgefl.learning.algorithms.proximal import add_proximal_term
from edgefl.program.learner.base import Learner

if TYPE_CHECKING:
    from edgefl.program.compiler.network import Network
    from edgefl.program.compiler.objective import Objective


@dataclass(frozen=True)
class DittoOptions(FedAvgOptions):
    """Options of FedAvg, and of the personal model.

    Attributes:
        penalty: weight of the penalty, the paper's lambda, fixed when the plan is built.
        personal_epochs: epochs of the personal model in each round that its client takes part in.
        personal_learning_rate: step size of the personal model's SGD.
        personal_momentum: momentum of the personal model's SGD.
    """

    penalty: float = 1.0
    personal_epochs: int = 5
    personal_learning_rate: float = 0.01
    personal_momentum: float = 0.0


def ditto(learner: Learner | None, options: DittoOptions) -> Algorithm:
    """Return FedAvg with a personal model, which is the mixture.

    When a client personalizes, it trains its personal model once more, towards the last global model. A
    client without a personal model starts from the global model.

    Args:
        learner: runs the plan. The aggregator passes None.

    Raises:
        ConfigError: as in `fedavg`.

    Source: Li et al., arXiv:2012.04221, algorithm 1.
    """
    hyper = {"learning_rate": options.personal_learning_rate, "momentum": options.personal_momentum}
    base = fedavg(learner, options)

    def assemble_personal(received: Weights, state: ClientState) -> Weights:
        return {**received, **{name: array for name, array in state.arrays.items() if name in received}}

    def train_personal(
        received: Weights, state: ClientState, shard: Shard, rng: np.random.Generator
    ) -> ClientState:
        assert learner is not None
        weights = {**assemble_personal(received, state), **with_prefix(RECEIVED_PREFIX, received)}
        personal, _ = learner.fit(
            "train_personal",
            weights,
            {"x": shard.x_train},
            shard.y_train,
            epochs=options.personal_epochs,
            rng=rng,
            hyper=hyper,
        )
        return replace(state, arrays=personal)

    def local_update(
        broadcast: Broadcast, state: ClientState, shard: Shard, client_id: str, rng: np.random.Generator
    ) -> tuple[Update, ClientState]:
        update, _ = base.local_update(broadcast, state, shard, client_id, rng)
        return update, train_personal(broadcast.models[GLOBAL], state, shard, rng)

    def personalize(
        broadcast: Broadcast, state: ClientState, shard: Shard, rng: np.random.Generator
    ) -> tuple[Mixture, ClientState]:
        model = broadcast.models[GLOBAL]
        state = train_personal(model, state, shard, rng)
        return Mixture(
            weights={**model, **state.arrays}, peers={FEDERATED_MODEL: Peer("predict", model)}
        ), state

    def current(broadcast: Broadcast, state: ClientState, shard: Shard) -> Peer | None:
        return Peer("predict", assemble_personal(broadcast.models[GLOBAL], state))

    return replace(base, name="ditto", local_update=local_update, personalize=personalize, current=current)


def build_ditto_objectives(network: "Network", options: DittoOptions) -> tuple["Objective", ...]:
    """Return the objectives of FedAvg, and `train_personal` with the penalty.

    Source: Li et al., arXiv:2012.04221, algorithm 1.
    """
    from edgefl.program.compiler import objective as of
    from edgefl.program.compiler.optimizer import sgd

    optimizer = sgd(options.personal_learning_rate, momentum=options.personal_momentum)
    personal = of.classify(network, options.batch_size, optimizer, "train_personal")
    return (*build_fedavg_objectives(network, options), add_proximal_term(personal, options.penalty))


ENTRIES = {
    "ditto": Entry(
        options=DittoOptions,
        factory=ditto,
        objectives=build_ditto_objectives,
        source="Li et al., arXiv:2012.04221",
    )
}

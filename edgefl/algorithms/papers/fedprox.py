"""FedProx: federated averaging with a penalty on a client's distance from the received model.

Client k trains on F_k(w) + mu / 2 |w - w_received|^2, where F_k is its mean loss. With mu = 0 it is federated
averaging.

Communication cost: as in FedAvg. An update also reports `distance`, the L2 norm of the delta that it sends.

Source: Li et al., Federated Optimization in Heterogeneous Networks, arXiv:1812.06127, algorithm 2.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from edgefl.algorithms.base import Algorithm
from edgefl.algorithms.entry import Entry
from edgefl.algorithms.names import GLOBAL, RECEIVED_PREFIX, prefix_specs, strip_prefix
from edgefl.algorithms.papers.fedavg import FedAvgOptions, build_fedavg_objectives, fedavg
from edgefl.algorithms.robust import l2_norm
from edgefl.learner.base import Learner
from edgefl.types import Broadcast, ClientState, Shard, Update

if TYPE_CHECKING:
    from edgefl.compiler.network import Network
    from edgefl.compiler.objective import Objective

Tensor = Any
Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class FedProxOptions(FedAvgOptions):
    """Options of FedAvg, and the weight of the penalty.

    Attributes:
        mu: weight of the penalty, fixed when the plan is built. 0: FedAvg.
    """

    mu: float = 0.01


def fedprox(learner: Learner | None, options: FedProxOptions) -> Algorithm:
    """Return FedAvg whose clients train on the proximal objective.

    Args:
        learner: runs the plan. The aggregator passes None.
        options: the options of the algorithm.

    Raises:
        ConfigError: as in `fedavg`.

    Source: Li et al., arXiv:1812.06127, algorithm 2.
    """
    base = fedavg(learner, options)

    def local_update(
        broadcast: Broadcast, state: ClientState, shard: Shard, client_id: str, rng: np.random.Generator
    ) -> tuple[Update, ClientState]:
        update, state = base.local_update(broadcast, state, shard, client_id, rng)
        return replace(update, metrics={**update.metrics, "distance": l2_norm(update.deltas[GLOBAL])}), state

    return replace(base, name="fedprox", local_update=local_update)


def add_proximal_term(objective: "Objective", mu: float) -> "Objective":
    """Return the objective with mu / 2 |w - w_received|^2 added to the loss.

    The received weights are the frozen weights `received/NAME`.

    Args:
        objective: the training objective.
        mu: weight of the penalty. With 0 the objective is returned unchanged.
    """

    if not mu:
        return objective
    names = [spec.name for spec in objective.optimized]

    def compute_loss(weights: Tensors, data: Tensors, noise: Tensors) -> tuple[Tensor, dict[str, Tensor]]:
        import tensorflow as tf

        losses, assigned = objective.loss_per_sample(weights, data, noise)
        received = strip_prefix(RECEIVED_PREFIX, weights)
        squares = [tf.reduce_sum(tf.square(weights[name] - received[name])) for name in names]
        return losses + sum(squares) * (mu / 2), assigned

    return replace(
        objective,
        frozen=(*objective.frozen, *prefix_specs(RECEIVED_PREFIX, objective.optimized)),
        loss_per_sample=compute_loss,
    )


def build_fedprox_objectives(network: "Network", options: FedProxOptions) -> tuple["Objective", ...]:
    """Return the objectives of FedAvg, with the penalty in `train`.

    Args:
        network: the model.
        options: the options of the algorithm.

    Source: Li et al., arXiv:1812.06127, algorithm 2.
    """
    train, *others = build_fedavg_objectives(network, options)
    return (add_proximal_term(train, options.mu), *others)


ENTRIES = {
    "fedprox": Entry(
        options=FedProxOptions,
        factory=fedprox,
        objectives=build_fedprox_objectives,
        source="Li et al., arXiv:1812.06127",
    )
}

"""FedProx: federated averaging with a penalty on a client's distance from the received model.

Client k trains on F_k(w) + mu / 2 |w - w_received|^2, where F_k is its mean loss. With mu = 0 it is federated
averaging.

Communication cost: as in FedAvg. An update also reports `distance`, the L2 norm of the delta that it sends.

Source: Li et al., Federated Optimization in Heterogeneous Networks, arXiv:1812.06127, algorithm 2.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from edgefl.base.types import Broadcast, ClientState, Shard, Update
from edgefl.learning.algorithms.base import Algorithm
from edgefl.learning.algorithms.entry import Entry
from edgefl.learning.algorithms.names import GLOBAL
from edgefl.learning.algorithms.papers.fedavg import FedAvgOptions, build_fedavg_objectives, fedavg
from edgefl.learning.algorithms.proximal import add_proximal_term
from edgefl.learning.algorithms.robust import l2_norm
from edgefl.program.learner.base import Learner

if TYPE_CHECKING:
    from edgefl.program.compiler.network import Network
    from edgefl.program.compiler.objective import Objective


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


def build_fedprox_objectives(network: "Network", options: FedProxOptions) -> tuple["Objective", ...]:
    """Return the objectives of FedAvg, with the penalty in `train`.

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

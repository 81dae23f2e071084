"""LG-FedAvg: each client learns a personal representation below shared layers.

The first layers are local, and the other layers are averaged.

Communication cost: down the shared part, and once the initial values of the local part. Up the delta of the
shared part.

Source: Liang et al., Think Locally, Act Globally, arXiv:2001.01523, algorithm 1. Reisser et al.,
arXiv:2107.06724, compare with it as `Local/Global`, with a local input layer.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgefl.learning.algorithms.base import Algorithm
from edgefl.learning.algorithms.entry import Entry
from edgefl.learning.algorithms.papers.fedavg import FedAvgOptions, build_fedavg_objectives
from edgefl.learning.algorithms.partial import make_partial_sharing, select_local_weights
from edgefl.program.learner.base import Learner

if TYPE_CHECKING:
    from edgefl.program.compiler.network import Network
    from edgefl.program.compiler.objective import Objective


@dataclass(frozen=True)
class LgFedAvgOptions(FedAvgOptions):
    """Options of FedAvg, and the local layers.

    Attributes:
        local_layers: layers that stay on the device, or prefixes of them, separated by commas. Empty: the
            first layer.
    """

    local_layers: str = ""


def lg_fedavg(learner: Learner | None, options: LgFedAvgOptions) -> Algorithm:
    """Return FedAvg of all layers except the local ones.

    Args:
        learner: runs the plan. The aggregator passes None.

    Raises:
        ConfigError: as in `fedavg`. `init` raises it if a layer does not exist, or all weights are local.

    Source: Liang et al., arXiv:2001.01523, algorithm 1.
    """
    return make_partial_sharing(
        learner, "lg-fedavg", lambda weights: select_local_weights(weights, options.local_layers), options
    )


def build_lg_fedavg_objectives(network: "Network", options: LgFedAvgOptions) -> tuple["Objective", ...]:
    """Return the objectives of FedAvg.

    Raises:
        ConfigError: an entry of `local_layers` is not a layer of the model.
    """
    select_local_weights(network.read_weights(), options.local_layers)
    return build_fedavg_objectives(network, options)


ENTRIES = {
    "lg-fedavg": Entry(
        options=LgFedAvgOptions,
        factory=lg_fedavg,
        objectives=build_lg_fedavg_objectives,
        source="Liang et al., arXiv:2001.01523",
    )
}

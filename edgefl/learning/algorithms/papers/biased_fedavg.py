"""Biased FedAvg: all weights are shared except the bias of the output layer, which is personal.

The personal bias b_s models only the skew of the client's labels. It also hides from the server what the bias
would reveal about the labels. The kernel of the output layer still reveals some of it.

Communication cost: as in FedAvg, minus one number for each class.

Source: a baseline of Reisser et al., Federated Mixture of Experts, arXiv:2107.06724, section 4 and appendix
C.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgefl.base.errors import ConfigError
from edgefl.base.options import suggest_nearest
from edgefl.base.types import Weights
from edgefl.learning.algorithms.base import Algorithm
from edgefl.learning.algorithms.entry import Entry
from edgefl.learning.algorithms.names import find_output_weights
from edgefl.learning.algorithms.papers.fedavg import FedAvgOptions, build_fedavg_objectives
from edgefl.learning.algorithms.partial import make_partial_sharing
from edgefl.program.learner.base import Learner

if TYPE_CHECKING:
    from edgefl.program.compiler.network import Network
    from edgefl.program.compiler.objective import Objective


@dataclass(frozen=True)
class BiasedFedAvgOptions(FedAvgOptions):
    """Options of FedAvg, and the name of the bias.

    Attributes:
        output_bias: name of the personal bias. Empty: the bias of the last dense layer.
    """

    output_bias: str = ""


def biased_fedavg(learner: Learner | None, options: BiasedFedAvgOptions) -> Algorithm:
    """Return FedAvg with a personal bias.

    The option output_bias is for models whose bias is not found automatically, for example because the last
    layers are frozen.

    Args:
        learner: runs the plan. The aggregator passes None.

    Raises:
        ConfigError: as in `fedavg`. `init` raises it if the bias does not exist.

    Source: Reisser et al., arXiv:2107.06724, section 4.
    """

    def choose(weights: Weights) -> list[str]:
        name = options.output_bias or find_output_weights(weights)[1]
        if name not in weights:
            raise ConfigError(
                f"output_bias is {name!r}, which is no weight of the model; "
                f"{suggest_nearest(name, list(weights))}"
            )
        return [name]

    return make_partial_sharing(learner, "biased-fedavg", choose, options)


def build_biased_fedavg_objectives(
    network: "Network", options: BiasedFedAvgOptions
) -> tuple["Objective", ...]:
    """Return the objectives of FedAvg.

    Raises:
        ConfigError: the personal bias is not the bias of the model's output layer, or no bias is found.
    """
    weights = network.read_weights()
    name = options.output_bias or find_output_weights(weights)[1]
    if name not in network.head_names or weights[name].shape != (network.num_classes,):
        raise ConfigError(f"{name!r} is not the output layer's bias; name it by the option output_bias")
    return build_fedavg_objectives(network, options)


ENTRIES = {
    "biased-fedavg": Entry(
        options=BiasedFedAvgOptions,
        factory=biased_fedavg,
        objectives=build_biased_fedavg_objectives,
        source="Reisser et al., arXiv:2107.06724",
        needs_classes="its personal bias models how often a client has each class",
    )
}

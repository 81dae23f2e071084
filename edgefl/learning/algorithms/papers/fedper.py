"""FedPer: base layers are averaged, and the last layers are personal.

A client trains base layers and personalization layers together, by SGD on its own samples. It sends only the
delta of the base layers.

Two things differ from the paper:

- The personalization layers of all clients start from the same initial values, which the server sends once.
  In the paper, each client draws its own.
- The paper counts the blocks of a ResNet as one layer each. Here `personal_layers` counts layers with
  weights, batch norms among them.

Communication cost: down the base layers, and once the initial values of the personalization layers. Up the
delta of the base layers.

Source: Arivazhagan, Aggarwal, Singh and Choudhary, Federated Learning with Personalization Layers,
arXiv:1912.00818, algorithms 1 and 2.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgefl.base.errors import ConfigError
from edgefl.base.types import Weights
from edgefl.learning.algorithms.base import Algorithm
from edgefl.learning.algorithms.entry import Entry
from edgefl.learning.algorithms.names import find_head_weights, find_last_layers
from edgefl.learning.algorithms.papers.fedavg import FedAvgOptions, build_fedavg_objectives
from edgefl.learning.algorithms.partial import make_partial_sharing
from edgefl.program.learner.base import Learner

if TYPE_CHECKING:
    from edgefl.program.compiler.network import Network
    from edgefl.program.compiler.objective import Objective


@dataclass(frozen=True)
class FedPerOptions(FedAvgOptions):
    """Options of FedAvg, and the number of personalization layers.

    Attributes:
        personal_layers: number of layers with weights that stay on the device, counted from the output. 0:
            the head, which is all dense layers at the end of the model.
    """

    personal_layers: int = 1


def select_personal_weights(weights: Weights, count: int) -> list[str]:
    """Return the names of the weights of the personalization layers.

    Args:
        weights: the weights of the model, in the plan's order.
        count: the option personal_layers.
    """
    return find_last_layers(weights, count) if count else find_head_weights(weights)


def fedper(learner: Learner | None, options: FedPerOptions) -> Algorithm:
    """Return FedAvg of all layers except the last ones.

    Args:
        learner: runs the plan. The aggregator passes None.

    Raises:
        ConfigError: as in `fedavg`. `init` raises it if no weight or all weights are personal.

    Source: Arivazhagan et al., arXiv:1912.00818, algorithms 1 and 2.
    """
    return make_partial_sharing(
        learner, "fedper", lambda weights: select_personal_weights(weights, options.personal_layers), options
    )


def build_fedper_objectives(network: "Network", options: FedPerOptions) -> tuple["Objective", ...]:
    """Return the objectives of FedAvg.

    Raises:
        ConfigError: no base layer is left, or the personalization layers do not end with the output layer.
    """
    weights = network.read_weights()
    personal = select_personal_weights(weights, options.personal_layers)
    if len(personal) == len(weights):
        raise ConfigError(
            f"personal_layers is {options.personal_layers}, which makes all {len(weights)} weights of the "
            "model personal, expected at least one base layer; lower personal_layers, or use a model with "
            "more layers"
        )
    trained = [name for name in network.head_names if name in network.trainable]
    if not personal or not set(trained[-1:]) <= set(personal):
        selected = ", ".join(personal) or "no weight"
        raise ConfigError(
            f"personal_layers is {options.personal_layers}, which selects {selected}, expected the "
            "output layer among them: frozen layers are the last of a plan; use lg-fedavg and name the "
            "layers by local_layers"
        )
    return build_fedavg_objectives(network, options)


ENTRIES = {
    "fedper": Entry(
        options=FedPerOptions,
        factory=fedper,
        objectives=build_fedper_objectives,
        source="Arivazhagan et al., arXiv:1912.00818",
    )
}

"""LG-FedAvg: each client learns a representation of its own under layers that all share.

Liang et al., Think Locally, Act Globally, arXiv:2001.01523, algorithm 1: the first layers are local, the
others are averaged. (Reisser et al., arXiv:2107.06724, compare with it as `Local/Global`, with the input
layer local.)

Traffic: down the shared part, and once the local part's first values; up the delta of the shared part.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgefl.algorithms.base import Algorithm
from edgefl.algorithms.entry import Entry
from edgefl.algorithms.names import extract_layer
from edgefl.algorithms.papers.fedavg import FedAvgOptions, build_fedavg_objectives
from edgefl.algorithms.papers.partial import make_partial_sharing
from edgefl.algorithms.update_sanitization import split_comma_list
from edgefl.config import suggest_nearest
from edgefl.errors import ConfigError
from edgefl.learner.base import Learner
from edgefl.types import Weights

if TYPE_CHECKING:
    from edgefl.compiler.network import Network
    from edgefl.compiler.objective import Objective


def select_local_weights(weights: Weights, layers: str) -> list[str]:
    """Return the names of the weights in these layers: a comma list of layers or of what they begin with.

    The first layer if empty.

    Weights are in the plan's order. Raises ConfigError for an entry that is no layer.
    """
    chosen = split_comma_list(layers) or (extract_layer(next(iter(weights))),)
    for layer in chosen:
        if not any(_is_in_layer(name, layer) for name in weights):
            model_layers = list(dict.fromkeys(extract_layer(name) for name in weights))
            raise ConfigError(
                f"local_layers has {layer!r}, which is no layer of the model; "
                f"{suggest_nearest(layer, model_layers)}"
            )
    return [name for name in weights if any(_is_in_layer(name, layer) for layer in chosen)]


def _is_in_layer(name: str, layer: str) -> bool:
    return name.startswith(f"{layer}/")


@dataclass(frozen=True)
class LgFedAvgOptions(FedAvgOptions):
    """Those of FedAvg, and the local layers.

    Attributes:
        local_layers: layers that stay on the device, or what their names begin with, with commas between;
            empty: the first one
    """

    local_layers: str = ""


def lg_fedavg(learner: Learner | None, options: LgFedAvgOptions) -> Algorithm:
    """Return FedAvg of all but the local layers."""
    return make_partial_sharing(
        learner, "lg-fedavg", lambda weights: select_local_weights(weights, options.local_layers), options
    )


def build_lg_fedavg_objectives(network: "Network", options: LgFedAvgOptions) -> tuple["Objective", ...]:
    """Return FedAvg's; ConfigError for a layer that the model lacks."""
    select_local_weights(network.read_weights(), options.local_layers)
    return build_fedavg_objectives(network, options)


ENTRIES = {
    "lg-fedavg": Entry(
        LgFedAvgOptions, lg_fedavg, build_lg_fedavg_objectives, "Liang et al., arXiv:2001.01523"
    )
}

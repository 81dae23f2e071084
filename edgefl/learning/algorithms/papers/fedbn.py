"""FedBN: all weights are shared except those of batch norms, which are personal.

Clients whose samples look different, for example from other sensors, have other statistics in each layer.
Each client therefore keeps gamma, beta and the moving statistics of its batch norms.

Two things differ from the paper:

- The mean is weighted by the number of samples. The paper's algorithm weights all clients equally.
- Before a model is measured or shipped, its moving statistics are estimated again on the client's samples
  (`edgefl.learning.client.batch_norm`). edgefl does this for every algorithm.

Communication cost: as in FedAvg, minus the weights of the batch norms, whose initial values are sent once.

Source: Li, Jiang, Zhang, Kamp and Dou, FedBN: Federated Learning on Non-IID Features via Local Batch
Normalization, ICLR 2021, arXiv:2102.07623, algorithm 1.
"""

from typing import TYPE_CHECKING

from edgefl.base.errors import ConfigError
from edgefl.base.types import Weights
from edgefl.learning.algorithms.base import Algorithm
from edgefl.learning.algorithms.entry import Entry
from edgefl.learning.algorithms.names import extract_layer
from edgefl.learning.algorithms.papers.fedavg import FedAvgOptions, build_fedavg_objectives
from edgefl.learning.algorithms.partial import make_partial_sharing
from edgefl.learning.algorithms.server_optimizer import STATISTICS
from edgefl.program.learner.base import Learner

if TYPE_CHECKING:
    from edgefl.program.compiler.network import Network
    from edgefl.program.compiler.objective import Objective


def select_norm_weights(weights: Weights) -> list[str]:
    """Return the names of the weights of all batch norms.

    A batch norm is a layer with the moving statistics of Keras.

    Args:
        weights: the weights of the model.

    Raises:
        ConfigError: the model has no batch norm.
    """
    norms = {
        extract_layer(name)
        for name in weights
        if all(f"{extract_layer(name)}/{part}" in weights for part in STATISTICS)
    }
    if not norms:
        raise ConfigError(
            f"fedbn: none of the {len(weights)} weights of the model belongs to a batch norm, expected "
            f"layers with {' and '.join(STATISTICS)}; use mobilenetv2, autoencoder or a model of your own "
            "with BatchNormalization layers, or use fedavg"
        )
    return [name for name in weights if extract_layer(name) in norms]


def fedbn(learner: Learner | None, options: FedAvgOptions) -> Algorithm:
    """Return FedAvg of all weights except those of batch norms.

    Args:
        learner: runs the plan. The aggregator passes None.

    Raises:
        ConfigError: as in `fedavg`. `init` raises it if the model has no batch norm, or no other weights.

    Source: Li et al., arXiv:2102.07623, algorithm 1.
    """
    return make_partial_sharing(learner, "fedbn", select_norm_weights, options)


def build_fedbn_objectives(network: "Network", options: FedAvgOptions) -> tuple["Objective", ...]:
    """Return the objectives of FedAvg.

    Raises:
        ConfigError: the model has no batch norm.
    """
    select_norm_weights(network.read_weights())
    return build_fedavg_objectives(network, options)


ENTRIES = {
    "fedbn": Entry(
        options=FedAvgOptions,
        factory=fedbn,
        objectives=build_fedbn_objectives,
        source="Li et al., arXiv:2102.07623",
    )
}

"""PFL-FT: federated averaging, then each client fine-tunes the whole model on its own data.

The baseline of Guo et al., PFL-MoE: Personalized Federated Learning Based on Mixture of Experts, 2020,
section V; first in Wang et al., Federated Evaluation of On-device Personalization, arXiv:1910.10252.

Traffic: that of federated averaging; what is personal does not leave the device.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from edgefl.algorithms.base import Algorithm
from edgefl.algorithms.entry import entry
from edgefl.algorithms.names import FEDERATED, GLOBAL
from edgefl.algorithms.papers.fedavg import fedavg, fedavg_objectives
from edgefl.learner.base import Learner
from edgefl.types import Broadcast, ClientState, Mixture, Peer, Shard

if TYPE_CHECKING:
    from edgefl.compiler.network import Network
    from edgefl.compiler.objective import Objective


def pfl_ft(
    learner: Learner | None,
    *,
    adapt_epochs: int = 10,
    adapt_learning_rate: float = 0.001,
    adapt_momentum: float = 0.9,
    adapt_weight_decay: float = 5e-4,
    adapt_batch_size: int = 64,
    **federation: Any,
) -> Algorithm:
    """Return FedAvg (with the keywords `federation`) whose mixture is the global model after adapt_epochs
    epochs of SGD.

    Weight decay is decoupled, as in Keras. adapt_batch_size is fixed when the plan is built.
    """
    del adapt_batch_size
    hyper = {
        "learning_rate": adapt_learning_rate,
        "momentum": adapt_momentum,
        "weight_decay": adapt_weight_decay,
    }

    def personalize(
        broadcast: Broadcast, state: ClientState, shard: Shard, rng: np.random.Generator
    ) -> tuple[Mixture, ClientState]:
        assert learner is not None
        model = broadcast.models[GLOBAL]
        trained, _ = learner.fit(
            "train_all", model, {"x": shard.x_train}, shard.y_train, epochs=adapt_epochs, rng=rng, hyper=hyper
        )
        return Mixture({**model, **trained}, {FEDERATED: Peer("predict", model)}), state

    return replace(fedavg(learner, **federation), name="pfl-ft", personalize=personalize)


def pfl_ft_objectives(network: "Network", options: Mapping[str, Any]) -> tuple["Objective", ...]:
    """Return FedAvg's, and `train_all` with the settings of the fine-tuning."""
    from edgefl.compiler import objective as of
    from edgefl.compiler.optimizer import sgd

    adapt = sgd(
        options["adapt_learning_rate"],
        momentum=options["adapt_momentum"],
        weight_decay=options["adapt_weight_decay"],
    )
    return (
        *fedavg_objectives(network, options),
        of.classify(network, of.batch_of(options, "adapt_batch_size"), adapt, "train_all"),
    )


_SOURCE = "Guo et al., PFL-MoE, arXiv:2012.15589"
ENTRIES = {"pfl-ft": entry(pfl_ft, pfl_ft_objectives, _SOURCE, fedavg)}

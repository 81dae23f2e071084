"""PFL-FT: federated averaging, after which each client fine-tunes the whole model on its own data.

Communication cost: as in FedAvg. Personal weights do not leave the device.

Source: the baseline of Guo et al., PFL-MoE: Personalized Federated Learning Based on Mixture of Experts,
2020, section V. It first appears in Wang et al., Federated Evaluation of On-device Personalization,
arXiv:1910.10252.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from edgefl.base.types import Broadcast, ClientState, Mixture, Peer, Shard
from edgefl.learning.algorithms.base import Algorithm
from edgefl.learning.algorithms.entry import Entry
from edgefl.learning.algorithms.fine_tuning import FineTuningOptions
from edgefl.learning.algorithms.names import FEDERATED_MODEL, GLOBAL
from edgefl.learning.algorithms.papers.fedavg import build_fedavg_objectives, fedavg
from edgefl.program.learner.base import Learner

if TYPE_CHECKING:
    from edgefl.program.compiler.network import Network
    from edgefl.program.compiler.objective import Objective


def pfl_ft(learner: Learner | None, options: FineTuningOptions) -> Algorithm:
    """Return FedAvg whose mixture is the global model after fine-tuning on the client's data.

    Args:
        learner: runs the plan. The aggregator passes None.

    Raises:
        ConfigError: as in `fedavg`.

    Source: Guo et al., 2020, section V.
    """

    def personalize(
        broadcast: Broadcast, state: ClientState, shard: Shard, rng: np.random.Generator
    ) -> tuple[Mixture, ClientState]:
        assert learner is not None
        model = broadcast.models[GLOBAL]
        trained, _ = learner.fit(
            "train_all",
            model,
            {"x": shard.x_train},
            shard.y_train,
            epochs=options.count_epochs(len(shard.y_train)),
            rng=rng,
            hyper=options.adapt_hyper,
        )
        return Mixture(weights={**model, **trained}, peers={FEDERATED_MODEL: Peer("predict", model)}), state

    return replace(fedavg(learner, options), name="pfl-ft", personalize=personalize)


def build_pfl_ft_objectives(network: "Network", options: FineTuningOptions) -> tuple["Objective", ...]:
    """Return the objectives of FedAvg, and `train_all` with the settings of the fine-tuning.

    Source: Guo et al., 2020, section V.
    """
    from edgefl.program.compiler import objective as of

    return (
        *build_fedavg_objectives(network, options),
        of.classify(network, options.adapt_batch_size, options.make_adapt_optimizer(), "train_all"),
    )


ENTRIES = {
    "pfl-ft": Entry(
        options=FineTuningOptions,
        factory=pfl_ft,
        objectives=build_pfl_ft_objectives,
        source="Guo et al., PFL-MoE, arXiv:2012.15589",
    )
}

"""PFL-FT: federated averaging, after which each client fine-tunes the whole model on its own data.

Communication cost: as in FedAvg. Personal weights do not leave the device.

Source: the baseline of Guo et al., PFL-MoE: Personalized Federated Learning Based on Mixture of Experts,
2020, section V. It first appears in Wang et al., Federated Evaluation of On-device Personalization,
arXiv:1910.10252.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from edgefl.algorithms.base import Algorithm
from edgefl.algorithms.entry import Entry
from edgefl.algorithms.names import FEDERATED_MODEL, GLOBAL
from edgefl.algorithms.options import check_count, extend_epochs
from edgefl.algorithms.papers.fedavg import FedAvgOptions, build_fedavg_objectives, fedavg
from edgefl.learner.base import Learner
from edgefl.types import Broadcast, ClientState, Mixture, Peer, Shard

if TYPE_CHECKING:
    from edgefl.compiler.network import Network
    from edgefl.compiler.objective import Objective
    from edgefl.compiler.optimizer import Optimizer


@dataclass(frozen=True)
class PflFtOptions(FedAvgOptions):
    """Options of FedAvg, and of the personal training after the rounds.

    Raises:
        ConfigError: adapt_batch_size is below 1, or as in `FedAvgOptions`.

    Attributes:
        adapt_epochs: epochs of the personal training.
        least_steps: minimum number of steps of the personal training. A client with few samples trains more
            epochs. 0: no minimum.
        adapt_learning_rate: step size of the personal training's SGD.
        adapt_momentum: momentum of the personal training's SGD.
        adapt_weight_decay: decoupled weight decay of the personal training's SGD.
        adapt_batch_size: samples in a batch of the personal training, fixed when the plan is built.
    """

    adapt_epochs: int = 10
    least_steps: int = 200
    adapt_learning_rate: float = 0.001
    adapt_momentum: float = 0.9
    adapt_weight_decay: float = 5e-4
    adapt_batch_size: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("adapt_batch_size", self.adapt_batch_size)

    @property
    def adapt_hyper(self) -> dict[str, float]:
        """The hyperparameters of the personal training."""
        return {
            "learning_rate": self.adapt_learning_rate,
            "momentum": self.adapt_momentum,
            "weight_decay": self.adapt_weight_decay,
        }

    def count_epochs(self, samples: int) -> int:
        """Return the epochs of the personal training on this number of samples."""
        return extend_epochs(self.adapt_epochs, self.least_steps, samples, self.adapt_batch_size)

    def make_adapt_optimizer(self) -> "Optimizer":
        """Return the optimizer of the personal training for the plan. Imports TensorFlow."""
        from edgefl.compiler.optimizer import sgd

        return sgd(
            self.adapt_learning_rate, momentum=self.adapt_momentum, weight_decay=self.adapt_weight_decay
        )


def pfl_ft(learner: Learner | None, options: PflFtOptions) -> Algorithm:
    """Return FedAvg whose mixture is the global model after fine-tuning on the client's data.

    Args:
        learner: runs the plan. The aggregator passes None.
        options: the options of the algorithm.

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


def build_pfl_ft_objectives(network: "Network", options: PflFtOptions) -> tuple["Objective", ...]:
    """Return the objectives of FedAvg, and `train_all` with the settings of the fine-tuning.

    Args:
        network: the model.
        options: the options of the algorithm.

    Source: Guo et al., 2020, section V.
    """
    from edgefl.compiler import objective as of

    return (
        *build_fedavg_objectives(network, options),
        of.classify(network, options.adapt_batch_size, options.make_adapt_optimizer(), "train_all"),
    )


_SOURCE = "Guo et al., PFL-MoE, arXiv:2012.15589"
ENTRIES = {
    "pfl-ft": Entry(options=PflFtOptions, factory=pfl_ft, objectives=build_pfl_ft_objectives, source=_SOURCE)
}

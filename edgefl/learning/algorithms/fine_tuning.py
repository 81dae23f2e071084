"""The options of algorithms that train a personal model after the rounds of FedAvg."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgefl.learning.algorithms.options import check_count, extend_epochs
from edgefl.learning.algorithms.papers.fedavg import FedAvgOptions

if TYPE_CHECKING:
    from edgefl.program.compiler.optimizer import Optimizer


@dataclass(frozen=True)
class FineTuningOptions(FedAvgOptions):
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
        from edgefl.program.compiler.optimizer import sgd

        return sgd(
            self.adapt_learning_rate, momentum=self.adapt_momentum, weight_decay=self.adapt_weight_decay
        )

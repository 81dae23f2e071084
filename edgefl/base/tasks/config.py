"""The configuration of the task that a federation learns.

This module imports no numpy, because `edgefl.base.config` is loaded by every command.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

from edgefl.base.errors import ConfigError

CLASSIFICATION = "classification"
REGRESSION = "regression"
ANOMALY = "anomaly"
BINARY_LOSS = "binary"
LOSSES_BY_KIND = {
    CLASSIFICATION: ("cross-entropy", BINARY_LOSS),
    REGRESSION: ("mse", "mae", "huber"),
    ANOMALY: ("mse", "mae", "huber"),
}
"""The losses of each kind of task. The first is the default."""
TASK_KINDS = tuple(LOSSES_BY_KIND)
"""The kinds of tasks, in the order of their numbers in the settings of a `State`."""


@dataclass(frozen=True)
class TaskConfig:
    """`[task]`: what the federation learns.

    Raises ConfigError if values are out of range or do not fit together.

    Attributes:
        kind: classification (a class for each sample), regression (one or more numbers for each sample) or
            anomaly (an autoencoder learns normal samples, and a sample that it reconstructs badly is an
            anomaly).
        loss: cross-entropy for classification, or binary for two classes and a model that ends with one
            output, such as Dense(1, activation="sigmoid"). mse, mae or huber (with delta 1) for the others.
            Empty takes the first.
        outputs: number of values that a regression predicts for each sample.
        anomalies: labels that mean an anomaly. A device trains on none of their samples, and measures with
            them. An empty list means every label but 0. Samples without labels are normal.
        false_alarm_rate: share of normal samples that may raise an alarm. The alarm threshold of an anomaly
            detector follows from it.
    """

    kind: str = CLASSIFICATION
    loss: str = ""
    outputs: int = 1
    anomalies: tuple[int, ...] = ()
    false_alarm_rate: float = 0.01

    def __post_init__(self) -> None:
        if self.kind not in LOSSES_BY_KIND:
            raise ConfigError(f"[task] kind is {self.kind!r}, expected one of {', '.join(LOSSES_BY_KIND)}")
        losses = LOSSES_BY_KIND[self.kind]
        if self.loss and self.loss not in losses:
            raise ConfigError(
                f"[task] loss is {self.loss!r}, expected {' or '.join(losses)} for kind = {self.kind!r}"
            )
        if self.outputs < 1:
            raise ConfigError(f"[task] outputs is {self.outputs}, expected at least 1")
        for key, kind in (("outputs", REGRESSION), ("anomalies", ANOMALY), ("false_alarm_rate", ANOMALY)):
            if self.kind != kind and getattr(self, key) != getattr(TaskConfig, key):
                raise ConfigError(
                    f"[task] {key} is set, but only kind = {kind!r} uses it; leave it out, or change kind"
                )
        if any(type(label) is not int or label < 0 for label in self.anomalies):
            raise ConfigError(
                f"[task] anomalies is {list(self.anomalies)}, expected labels such as [1, 2], numbers from 0"
            )
        if not 0 < self.false_alarm_rate < 1:
            raise ConfigError(
                f"[task] false_alarm_rate is {self.false_alarm_rate}, expected a share above 0 and below 1, "
                "such as 0.01"
            )

    @property
    def loss_name(self) -> str:
        """The loss: `loss`, or the default of the kind."""
        return self.loss or LOSSES_BY_KIND[self.kind][0]

    @property
    def is_classification(self) -> bool:
        """Whether the task is to classify samples."""
        return self.kind == CLASSIFICATION

    def count_outputs(self, input_shape: tuple[int, ...], num_classes: int) -> int:
        """Return the number of values that a model of the task returns for each sample.

        Args:
            input_shape: shape of one sample.
            num_classes: number of classes of a classification.
        """
        if self.kind == ANOMALY:
            return math.prod(input_shape)
        if self.loss == BINARY_LOSS:
            return 2
        return self.outputs if self.kind == REGRESSION else num_classes

    def as_plan_entry(self) -> dict[str, Any]:
        """Return the task as an entry of a plan. It is empty for the default, as in older plans."""
        if self == CLASSIFICATION_TASK:
            return {}
        return {**asdict(self), "loss": self.loss_name, "anomalies": list(self.anomalies)}


CLASSIFICATION_TASK = TaskConfig()

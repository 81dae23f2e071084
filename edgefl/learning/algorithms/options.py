"""Options that several algorithms share: training by SGD, and checks of values."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from edgefl.base.config import FederationConfig
from edgefl.base.errors import ConfigError
from edgefl.base.options import find_nearest


class SGDOptions(Protocol):
    """Options of an algorithm whose clients train one model by SGD."""

    @property
    def learning_rate(self) -> float: ...
    @property
    def momentum(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def batch_size(self) -> int: ...


@dataclass(frozen=True)
class TrainingOptions:
    """Options of training by SGD, with the defaults of federated averaging.

    Raises:
        ConfigError: batch_size is below 1.

    Attributes:
        epochs: passes over the client's samples in a round.
        learning_rate: step size of SGD on the client.
        momentum: momentum of SGD on the client. It starts at zero in each round.
        weight_decay: decoupled weight decay, w <- w - learning_rate * weight_decay * w before the step.
        batch_size: samples in a training batch, fixed when the plan is built.
    """

    epochs: int = 5
    learning_rate: float = 0.01
    momentum: float = 0.5
    weight_decay: float = 0.0
    batch_size: int = 10

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size)


def as_sgd_hyper(options: SGDOptions) -> dict[str, float]:
    """Return the hyperparameters of the signature `train`."""
    return {
        "learning_rate": options.learning_rate,
        "momentum": options.momentum,
        "weight_decay": options.weight_decay,
    }


def count_expected_clients(config: FederationConfig) -> int:
    """Return the number of clients that a configuration expects.

    This is the number of clients that it lists. Without a list, it is the largest of `min_clients`,
    `clients_per_round` and `[privacy] population`.
    """
    least = max(config.min_clients, config.clients_per_round, config.privacy.population)
    return len(set(config.clients)) or least


def limit_experts(option: int, config: FederationConfig) -> int:
    """Return the number of experts for a configuration.

    If the configuration does not set num_experts, there is at most one expert for each expected client. With
    more experts than clients, some would never be trained.

    Args:
        option: the option num_experts, set or by default.
    """
    return option if "num_experts" in config.options else min(option, count_expected_clients(config))


def extend_epochs(epochs: int, least_steps: int, samples: int, batch_size: int) -> int:
    """Return the epochs of a personal training, increased until they take at least `least_steps` steps.

    A client with few samples takes few steps in an epoch. Zero epochs stay zero.

    Args:
        least_steps: minimum number of training steps.
        batch_size: samples in a batch.
    """
    steps = math.ceil(samples / batch_size)
    return max(epochs, math.ceil(least_steps / steps)) if epochs and steps else epochs


def check_count(key: str, value: int) -> None:
    """Check that an option is 1 or more.

    Args:
        key: name of the option, for the error.

    Raises:
        ConfigError: the value is below 1.
    """
    if value < 1:
        raise ConfigError(f"[algorithm] {key} is {value}, expected 1 or more")


def check_range(key: str, value: float, limit: float = 1.0) -> None:
    """Check that an option is a number from 0 to `limit`.

    Args:
        key: name of the option, for the error.
        limit: the largest allowed value.

    Raises:
        ConfigError: the value is below 0, above `limit`, or NaN.
    """
    if not 0 <= value <= limit:
        raise ConfigError(f"[algorithm] {key} is {value}, expected a number from 0 to {limit:g}")


def check_choice(key: str, value: str, choices: Sequence[str]) -> None:
    """Check that an option is one of its choices.

    Args:
        key: name of the option, for the error.
        choices: the allowed values.

    Raises:
        ConfigError: the value is not one of the choices.
    """
    if value not in choices:
        expected = f"[algorithm] {key} is {value!r}, expected {' or '.join(map(repr, choices))}"
        raise ConfigError("; ".join(filter(None, (expected, find_nearest(value, choices)))))

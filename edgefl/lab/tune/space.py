"""The search space of a stage, and random points of it. Pure functions of a random generator.

Options are named as in federation.toml, such as `learning_rate`, `local_options.hidden` or `model.filters1`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import log10
from typing import Any, Protocol

import numpy as np

from edgefl.base.config import FederationConfig

AEM_CNN = "aem-cnn"
GATE_CNNS = ("cnn", "gate-cnn", AEM_CNN)
TrialOptions = Mapping[str, Any]


class Domain(Protocol):
    """The possible values of one option."""

    def pick(self, position: float) -> Any:
        """Return the value at a position of the domain.

        Args:
            position: from 0 to below 1.
        """


@dataclass(frozen=True)
class NumberRange:
    """A range of numbers, rounded to three significant digits.

    Attributes:
        low: the lowest number.
        high: the highest number.
        log: whether numbers are uniform in the logarithm.
    """

    low: float
    high: float
    log: bool = False

    def pick(self, position: float) -> float:
        """See `Domain.pick`."""
        if not self.log:
            return float(f"{self.low + position * (self.high - self.low):.3g}")
        return float(f"{10 ** (log10(self.low) + position * (log10(self.high) - log10(self.low))):.3g}")


@dataclass(frozen=True)
class Choice:
    """One of several values with equal probability.

    Attributes:
        values: the values.
    """

    values: tuple[Any, ...]

    def pick(self, position: float) -> Any:
        """See `Domain.pick`."""
        return self.values[int(position * len(self.values))]


SearchSpace = Mapping[str, Domain]


def draw_points(space: SearchSpace, count: int, rng: np.random.Generator) -> tuple[dict[str, Any], ...]:
    """Return random points of a search space.

    The points are a Latin hypercube. The domain of each option is divided into `count` equal parts, and each
    part contains one point. Few points therefore cover each option.

    Args:
        space: the domain of each option.

    Source: McKay, Beckman and Conover, Technometrics 21(2), 1979.
    """
    positions = {name: (rng.permutation(count) + rng.random(count)) / count for name in space}
    return tuple(
        {name: domain.pick(float(positions[name][i])) for name, domain in space.items()} for i in range(count)
    )


def with_options(config: FederationConfig, options: TrialOptions) -> FederationConfig:
    """Return the configuration with these options changed.

    Args:
        options: new values by the option's name, such as `epsilon` or `model.hidden`.
    """
    model = dict(config.model.options)
    algorithm = dict(config.options)
    for name, value in options.items():
        table, _, key = name.rpartition(".")
        if table == "model":
            model[key] = value
        elif table:
            algorithm[table] = {**algorithm.get(table, {}), key: value}
        else:
            algorithm[key] = value
    return replace(config, range_test=False, options=algorithm, model=replace(config.model, options=model))


def make_cluster_space(config: FederationConfig) -> SearchSpace:
    """Return the search space of a cluster model: learning rate, weight decay and epochs.

    For the paper's network, the space also has the sizes of the layers and the dropout.

    Source: Isaksson et al., Adaptive Expert Models for Personalization in Federated Learning, 2022, section
    4.4.
    """
    sizes = (
        _make_size_domains("model.", (16, 32, 64, 128), (128, 256, 512, 1024))
        if config.model.name == AEM_CNN
        else {}
    )
    rates = {
        "learning_rate": NumberRange(1e-3, 1e-1, log=True),
        "weight_decay": NumberRange(1e-5, 1e-2, log=True),
    }
    return {**rates, "epochs": Choice((1, 2, 3, 5)), **sizes}


def make_local_space(config: FederationConfig) -> SearchSpace:
    """Return the search space of a local model: learning rate and weight decay of AdamW.

    If `local_model` of [algorithm] is the paper's network, the space also has the sizes of the layers and the
    dropout.

    Args:
        config: the configuration, with the options of the algorithm.
    """
    sizes = (
        _make_size_domains("local_options.", (8, 16, 32, 64, 128, 256), (32, 64, 128, 256))
        if config.options.get("local_model") == AEM_CNN
        else {}
    )
    return {
        "local_learning_rate": NumberRange(1e-5, 1e-2, log=True),
        "local_weight_decay": NumberRange(1e-4, 1e-1, log=True),
        **sizes,
    }


def make_gate_space(config: FederationConfig) -> SearchSpace:
    """Return the search space of a gate: learning rate and weight decay of AdamW.

    If `gate` of [algorithm] is a convolutional network, the space also has the sizes of the layers and the
    dropout.

    Args:
        config: the configuration, with the options of the algorithm.
    """
    sizes = (
        _make_size_domains("gate_options.", (4, 8, 12, 16), (4, 8, 16, 32))
        if config.options.get("gate") in GATE_CNNS
        else {}
    )
    return {
        "gate_learning_rate": NumberRange(1e-6, 1e-2, log=True),
        "gate_weight_decay": NumberRange(1e-5, 1e-2, log=True),
        **sizes,
    }


def make_exploration_space(config: FederationConfig) -> SearchSpace:
    """Return the search space of epsilon, from 0 to 1.

    Args:
        config: unused, because all stages call their space with the configuration.
    """
    return {"epsilon": NumberRange(0.0, 1.0)}


def _make_size_domains(table: str, filters: tuple[int, ...], hidden: tuple[int, ...]) -> dict[str, Domain]:
    sizes: dict[str, Domain] = {
        "filters1": Choice(filters),
        "filters2": Choice(filters),
        "hidden": Choice(hidden),
    }
    sizes["dropout"] = NumberRange(0.0, 0.9)
    return {f"{table}{name}": domain for name, domain in sizes.items()}

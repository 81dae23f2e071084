"""What a stage of the search may choose, and draws from it: pure functions of a generator.

An option is named as in federation.toml: `learning_rate`, `local_options.hidden`, `model.filters1`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import log10
from typing import Any, Protocol

import numpy as np

from edgefl.config import FederationConfig

AEM_CNN = "aem-cnn"
GATE_CNNS = ("cnn", "gate-cnn", AEM_CNN)
TrialOptions = Mapping[str, Any]


class Domain(Protocol):
    """The values of one option."""

    def pick(self, position: float) -> Any:
        """Return the value at a place from 0 to 1, 1 left out."""


@dataclass(frozen=True)
class NumberRange:
    """A range of numbers with three digits, uniform or, with `log`, uniform in the logarithm."""

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
    """One of several values, each alike."""

    values: tuple[Any, ...]

    def pick(self, position: float) -> Any:
        """See `Domain.pick`."""
        return self.values[int(position * len(self.values))]


SearchSpace = Mapping[str, Domain]


def draw_points(space: SearchSpace, count: int, rng: np.random.Generator) -> tuple[dict[str, Any], ...]:
    """Return `count` points of the space.

    A Latin hypercube (McKay, Beckman and Conover, 1979): each option's range is cut into `count` equal parts,
    and each part is drawn from once, so that few points cover each option.
    """
    positions = {name: (rng.permutation(count) + rng.random(count)) / count for name in space}
    return tuple(
        {name: domain.pick(float(positions[name][i])) for name, domain in space.items()} for i in range(count)
    )


def with_options(config: FederationConfig, options: TrialOptions) -> FederationConfig:
    """Return the configuration with these options in place of its own."""
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
    return replace(config, options=algorithm, model=replace(config.model, options=model))


def make_cluster_space(config: FederationConfig) -> SearchSpace:
    """Return the search space of a cluster model: rate, decay and epochs.

    For the paper's network it has the sizes of the layers too.
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
    """Return the search space of a local model: rate and decay of AdamW.

    If `local_model` of [algorithm] is the paper's network, it has the sizes of the layers too.
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
    """Return the search space of a gate: rate and decay of AdamW.

    If `gate` of [algorithm] is the paper's network, it has the sizes of the layers too.
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
    """Return the search space of epsilon."""
    return {"epsilon": NumberRange(0.0, 1.0)}


def _make_size_domains(table: str, filters: tuple[int, ...], hidden: tuple[int, ...]) -> dict[str, Domain]:
    sizes: dict[str, Domain] = {
        "filters1": Choice(filters),
        "filters2": Choice(filters),
        "hidden": Choice(hidden),
    }
    sizes["dropout"] = NumberRange(0.0, 0.9)
    return {f"{table}{name}": domain for name, domain in sizes.items()}

"""Algorithms by name: factory, options, and the objectives that a plan needs for them."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from edgefl.algorithms.base import Algorithm
from edgefl.algorithms.fedavg import fedavg
from edgefl.algorithms.pfl_moe import pfl_moe
from edgefl.config import nearest
from edgefl.errors import ConfigError
from edgefl.learner.base import Learner

if TYPE_CHECKING:
    from edgefl.plan.network import Network
    from edgefl.plan.objective import Objective


@dataclass(frozen=True)
class Entry:
    """One algorithm: `factory(learner, **options)`, its keywords, its source, and `objectives(network, options)` (TensorFlow)."""

    factory: Callable[..., Algorithm]
    defaults: Mapping[str, Any]
    source: str
    objectives: Callable[["Network", Mapping[str, Any]], tuple["Objective", ...]]


def _defaults(*factories: Callable[..., Any]) -> dict[str, Any]:
    return {
        p.name: p.default
        for factory in factories
        for p in inspect.signature(factory).parameters.values()
        if p.kind is p.KEYWORD_ONLY and p.default is not p.empty
    }


def _fedavg_objectives(network: "Network", options: Mapping[str, Any]) -> tuple["Objective", ...]:
    from edgefl.algorithms.losses import fedavg_objectives

    return fedavg_objectives(network, options)


def _pfl_objectives(kind: str, network: "Network", options: Mapping[str, Any]) -> tuple["Objective", ...]:
    from edgefl.algorithms.losses import pfl_moe_objectives

    return pfl_moe_objectives(kind, network, options)


_PFL_SOURCE = "Guo et al., PFL-MoE: Personalized Federated Learning Based on Mixture of Experts, 2020"

REGISTRY: Mapping[str, Entry] = {
    "fedavg": Entry(fedavg, _defaults(fedavg), "McMahan et al., AISTATS 2017", _fedavg_objectives),
    **{
        f"pfl-{kind}": Entry(partial(pfl_moe, kind=kind), _defaults(fedavg, pfl_moe), _PFL_SOURCE, partial(_pfl_objectives, kind))
        for kind in ("fb", "mf", "mfe")
    },
}


def entry(name: str) -> Entry:
    """Return the registry's entry; ConfigError names the nearest known algorithm."""
    if name not in REGISTRY:
        raise ConfigError(f"unknown algorithm {name!r}; {nearest(name, list(REGISTRY))}")
    return REGISTRY[name]


def full_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the algorithm's defaults with the options over them.

    Raises ConfigError for an unknown option (and names the nearest) or one of another type than its default.
    """
    defaults = entry(name).defaults
    for key, value in options.items():
        if key not in defaults:
            raise ConfigError(f"[algorithm] {name} has no option {key!r}; {nearest(key, list(defaults))}")
        number = isinstance(value, int | float) and not isinstance(value, bool)
        default = defaults[key]
        fits = number if isinstance(default, float) else isinstance(value, type(default)) and not isinstance(value, bool)
        if not fits:
            raise ConfigError(f"[algorithm] {key} is {value!r}, expected {type(default).__name__} such as {default!r}")
        if number and value < 0:
            raise ConfigError(f"[algorithm] {key} is {value!r}, expected 0 or more")
    return {**defaults, **options}


def make_algorithm(name: str, learner: Learner | None, options: Mapping[str, Any]) -> Algorithm:
    """Make an algorithm by name. The aggregator passes no learner: it never trains."""
    return entry(name).factory(learner, **full_options(name, options))


def objectives(name: str, network: "Network", options: Mapping[str, Any]) -> tuple["Objective", ...]:
    """Return what the plan must hold for this algorithm. Imports TensorFlow."""
    return entry(name).objectives(network, full_options(name, options))

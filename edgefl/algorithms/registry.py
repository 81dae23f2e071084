"""Algorithms by name: each module of `papers` offers its `ENTRIES`.

`module:name` finds those of anybody's module.
"""

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from edgefl.algorithms import papers
from edgefl.algorithms.base import Algorithm
from edgefl.algorithms.entry import Entry, as_mapping
from edgefl.config import FederationConfig, suggest_nearest
from edgefl.config.schema import describe_type
from edgefl.errors import ConfigError, PlanError
from edgefl.learner.base import Learner
from edgefl.plan.spec import PlanSpec

if TYPE_CHECKING:
    from edgefl.compiler.network import Network
    from edgefl.compiler.objective import Objective

REMOVED_OPTIONS: Mapping[str, str] = {
    "baseline_epochs": "remove it: [personalization] baseline = false is what baseline_epochs = 0 was",
}
"""Options of earlier versions, and what to do about them."""


def _load_entries() -> Iterator[tuple[str, Entry]]:
    for module in pkgutil.walk_packages(papers.__path__, f"{papers.__name__}."):
        yield from getattr(importlib.import_module(module.name), "ENTRIES", {}).items()


REGISTRY: Mapping[str, Entry] = dict(sorted(_load_entries()))


def find_entry(name: str) -> Entry:
    """Return the entry of a registered name or of `module:name`.

    ConfigError names the nearest known algorithm.
    """
    if ":" in name:
        return _import_entry(*name.split(":", 1))
    if name not in REGISTRY:
        raise ConfigError(f"unknown algorithm {name!r}; {suggest_nearest(name, list(REGISTRY))}")
    return REGISTRY[name]


def _import_entry(module: str, name: str) -> Entry:
    try:
        record = importlib.import_module(module).ENTRIES[name]
    except (ImportError, AttributeError, KeyError, TypeError) as error:
        raise ConfigError(
            f"no algorithm {module}:{name}: {error!r}; expected a module that can be imported, with "
            f"ENTRIES[{name!r}]"
        ) from error
    if not isinstance(record, Entry):
        raise ConfigError(
            f"{module}:{name} is a {type(record).__name__}, expected an edgefl.algorithms.entry.Entry"
        )
    return record


def make_options(name: str, options: Mapping[str, Any]) -> Any:
    """Return the algorithm's options dataclass with these options, and defaults for all others.

    Raises:
        ConfigError: An option is unknown (the error names the nearest), is of another type than its
            default, or is out of range.
    """
    record = find_entry(name)
    defaults = record.defaults
    for key, value in options.items():
        if key not in defaults:
            remedy = REMOVED_OPTIONS.get(key) or suggest_nearest(key, list(defaults))
            raise ConfigError(f"[algorithm] {name} has no option {key!r}; {remedy}")
        number = isinstance(value, int | float) and not isinstance(value, bool)
        default = defaults[key]
        same = isinstance(value, type(default)) and isinstance(value, bool) == isinstance(default, bool)
        fits = number if isinstance(default, float) else same
        if not fits:
            raise ConfigError(
                f"[algorithm] {key} is {value!r}, expected {describe_type(type(default))} such as {default!r}"
            )
        if number and value < 0:
            raise ConfigError(f"[algorithm] {key} is {value!r}, expected 0 or more")
    return record.options(**options)


def check_plan_options(spec: PlanSpec, remedy: str) -> None:
    """Check that this version knows all options of a plan.

    Raises:
        PlanError: An option is unknown: another version built the plan. The error ends with the remedy.
    """
    unknown = [key for key in spec.options if key not in find_entry(spec.algorithm).defaults]
    if unknown:
        raise PlanError(
            f"the plan of {spec.algorithm} has the option {unknown[0]!r}, which this version of edgefl does "
            f"not know: another version built it; {remedy}"
        )


def complete_algorithm_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options of the algorithm by name, in order. Raises ConfigError as `make_options` does."""
    return as_mapping(make_options(name, options))


def resolve_algorithm_options(config: FederationConfig) -> dict[str, Any]:
    """Return all options of a configuration's algorithm by name, derived ones with their values.

    Only a plan is built from them. Whoever has a plan takes the options of its spec.

    Raises:
        ConfigError: As `make_options` does.
    """
    options = make_options(config.algorithm, config.options)
    return as_mapping(find_entry(config.algorithm).resolve(options, config))


def make_algorithm(name: str, learner: Learner | None, options: Mapping[str, Any]) -> Algorithm:
    """Make an algorithm by name. The aggregator passes no learner because it never trains."""
    return find_entry(name).factory(learner, make_options(name, options))


def count_further_draws(name: str, options: Mapping[str, Any]) -> int:
    """Return how many further draws of the first weights the algorithm needs beside the initial weights."""
    option = find_entry(name).models
    return max(getattr(make_options(name, options), option) - 1, 0) if option else 0


def build_objectives(name: str, network: "Network", options: Mapping[str, Any]) -> tuple["Objective", ...]:
    """Return what the plan holds for this algorithm. Imports TensorFlow."""
    return find_entry(name).objectives(network, make_options(name, options))

"""The registry of algorithms by name.

Each module of `papers` provides its `ENTRIES`. The name `module:name` refers to an entry of any other module
that can be imported.
"""

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from edgefl.base.config import FederationConfig
from edgefl.base.errors import ConfigError, PlanError
from edgefl.base.options import check_options, suggest_nearest
from edgefl.learning.algorithms import measurement, papers, range_test
from edgefl.learning.algorithms.base import Algorithm
from edgefl.learning.algorithms.entry import Entry, as_mapping
from edgefl.program.learner.base import Learner
from edgefl.program.plan.spec import PlanSpec

if TYPE_CHECKING:
    from edgefl.program.compiler.network import Network
    from edgefl.program.compiler.objective import Objective

REMOVED_OPTIONS: Mapping[str, str] = {
    "baseline_epochs": "remove it: [personalization] baseline = false is what baseline_epochs = 0 was",
}
"""Options of earlier versions, each with its remedy."""


def _load_entries() -> Iterator[tuple[str, Entry]]:
    for module in pkgutil.walk_packages(papers.__path__, f"{papers.__name__}."):
        yield from getattr(importlib.import_module(module.name), "ENTRIES", {}).items()


REGISTRY: Mapping[str, Entry] = dict(sorted(_load_entries()))
EARLY_ALGORITHMS: Mapping[str, Entry] = {
    measurement.MEASUREMENT_ALGORITHM: measurement.MEASUREMENT_ENTRY,
    range_test.RANGE_TEST_ALGORITHM: range_test.RANGE_TEST_ENTRY,
}
"""Algorithms that run before round 1. No configuration can choose them."""


def find_entry(name: str) -> Entry:
    """Return the entry of an algorithm.

    Args:
        name: a registered name, or `module:name` for an algorithm of another module.

    Raises:
        ConfigError: the name is unknown, in which case the error suggests the nearest name. Or the module
            cannot be imported, or it has no such entry.
    """
    if ":" in name:
        return _import_entry(*name.split(":", 1))
    if name in EARLY_ALGORITHMS:
        return EARLY_ALGORITHMS[name]
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
            f"{module}:{name} is a {type(record).__name__}, expected an "
            "edgefl.learning.algorithms.entry.Entry"
        )
    return record


def has_range_test(spec: PlanSpec) -> bool:
    """Return whether a range test can find the learning rate of a plan.

    Args:
        spec: the spec of the plan of a federation.
    """
    signature = next((item for item in spec.signatures if item.name == range_test.TRAIN), None)
    return (
        find_entry(spec.algorithm).trains_one_model
        and range_test.RATE in spec.options
        and signature is not None
        and range_test.RATE in signature.hyper
    )


def make_options(name: str, options: Mapping[str, Any]) -> Any:
    """Return the algorithm's options dataclass with these options, and defaults for all others.

    Args:
        name: see `find_entry`.

    Raises:
        ConfigError: an option is unknown, in which case the error suggests the nearest name. Or its type
            differs from the type of its default, or it is out of range. Or the algorithm is unknown.
    """
    record = find_entry(name)
    owner = f"[algorithm] {name}"
    checked = check_options(owner, record.defaults, options, remedies=REMOVED_OPTIONS)
    for key, value in checked.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and not value >= 0:  # NaN too
            raise ConfigError(f"{owner}: {key} is {value!r}, expected 0 or more")
    return record.options(**checked)


def check_plan_options(spec: PlanSpec, remedy: str) -> None:
    """Check that this version of edgefl knows all options of a plan.

    Args:
        remedy: the end of the error message.

    Raises:
        PlanError: an option is unknown because another version built the plan.
        ConfigError: the algorithm of the plan is unknown.
    """
    unknown = [key for key in spec.options if key not in find_entry(spec.algorithm).defaults]
    if unknown:
        raise PlanError(
            f"the plan of {spec.algorithm} has the option {unknown[0]!r}, which this version of edgefl does "
            f"not know: another version built it; {remedy}"
        )


def complete_algorithm_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options of an algorithm by name, with defaults where `options` has no value.

    Args:
        name: see `find_entry`.

    Raises:
        ConfigError: as in `make_options`.
    """
    return as_mapping(make_options(name, options))


def resolve_algorithm_options(config: FederationConfig) -> dict[str, Any]:
    """Return all options of a configuration's algorithm by name, with values for the derived options.

    Only the plan builder calls this. All others read the options from the plan's spec.

    Raises:
        ConfigError: as in `make_options`.
    """
    options = make_options(config.algorithm, config.options)
    return as_mapping(find_entry(config.algorithm).resolve(options, config))


def make_algorithm(name: str, learner: Learner | None, options: Mapping[str, Any]) -> Algorithm:
    """Return an algorithm by name.

    Args:
        name: see `find_entry`.
        learner: runs the plan. The aggregator passes None because it never trains.

    Raises:
        ConfigError: as in `make_options`.
    """
    return find_entry(name).factory(learner, make_options(name, options))


def count_further_draws(name: str, options: Mapping[str, Any]) -> int:
    """Return how many draws of initial weights the algorithm needs in addition to the initial weights.

    Args:
        name: see `find_entry`.

    Raises:
        ConfigError: as in `make_options`.
    """
    option = find_entry(name).models
    return max(getattr(make_options(name, options), option) - 1, 0) if option else 0


def check_algorithm_task(config: FederationConfig) -> None:
    """Check that the algorithm of a configuration works for its task.

    Raises:
        ConfigError: it works only for a classification. The error has the reason.
    """
    reason = find_entry(config.algorithm).needs_classes
    if reason and not config.task.is_classification:
        fitting = ", ".join(sorted(name for name, entry in REGISTRY.items() if not entry.needs_classes))
        raise ConfigError(
            f"[algorithm] name is {config.algorithm!r} with kind = {config.task.kind!r} of [task], "
            f"expected a classification: {reason}; use one of {fitting}"
        )


def build_objectives(name: str, network: "Network", options: Mapping[str, Any]) -> tuple["Objective", ...]:
    """Return the objectives of an algorithm's plan. Needs TensorFlow.

    Args:
        name: see `find_entry`.

    Raises:
        ConfigError: as in `make_options`, or the network does not fit the options.
    """
    return find_entry(name).objectives(network, make_options(name, options))

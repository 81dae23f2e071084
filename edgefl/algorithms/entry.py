"""What the registry holds of an algorithm.

A module of `edgefl.algorithms.papers`, or any other module, offers algorithms by `ENTRIES`, a mapping from
names to entries.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from edgefl.algorithms.base import Algorithm
from edgefl.config import FederationConfig
from edgefl.learner.base import Learner

if TYPE_CHECKING:
    from edgefl.compiler.network import Network
    from edgefl.compiler.objective import Objective


def keep_options(options: Any, config: FederationConfig) -> Any:
    """Return the options: the algorithm derives none of them from the configuration."""
    return options


@dataclass(frozen=True)
class Entry:
    """An algorithm: its options, its factory, and what the plan needs for it.

    Attributes:
        options: frozen dataclass of the options. Each field has a default, whose type is the option's type.
            The docstring's `Attributes` explain the options
        factory: makes the algorithm from a learner and the options. The aggregator has no learner
        objectives: returns what the plan holds for a network and the options. It needs TensorFlow and runs
            where the plan is built, never on a device
        source: the paper
        models: the option that counts the algorithm's models, each of which starts from its own first
            weights; empty: one model
        resolve: returns the options with a value for each option that is derived from the configuration,
            such as a number of rounds. `build_plan` calls it once, and the plan holds what it returns
    """

    options: type[Any]
    factory: Callable[[Learner | None, Any], Algorithm]
    objectives: Callable[["Network", Any], tuple["Objective", ...]]
    source: str
    models: str = ""
    resolve: Callable[[Any, FederationConfig], Any] = keep_options

    def __post_init__(self) -> None:
        as_mapping(self.options())  # a TypeError where this is no dataclass, or a field has no default

    @property
    def defaults(self) -> dict[str, Any]:
        """The options with their defaults, in order."""
        return as_mapping(self.options())


def as_mapping(options: Any) -> dict[str, Any]:
    """Return the fields of an options dataclass by name, in order."""
    return {field.name: getattr(options, field.name) for field in fields(options)}

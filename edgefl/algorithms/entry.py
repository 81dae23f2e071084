"""What the registry holds of an algorithm: its factory, its options, its source, and what the plan needs for
it.

A module of this package, or anybody's, offers algorithms by `ENTRIES`, a mapping from names to entries.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgefl.algorithms.base import Algorithm

if TYPE_CHECKING:
    from edgefl.compiler.network import Network
    from edgefl.compiler.objective import Objective

Objectives = Callable[["Network", Mapping[str, Any]], tuple["Objective", ...]]


@dataclass(frozen=True)
class Entry:
    """`factory(learner, **options)`, its options with their defaults, its source, and `objectives(network,
    options)`.

    Only `objectives` needs TensorFlow; it runs where the plan is built, never on a device. models: the option
    that counts the algorithm's models, each of which starts from weights of its own; empty: one model.
    """

    factory: Callable[..., Algorithm]
    objectives: Objectives
    source: str
    defaults: Mapping[str, Any]
    models: str = ""


def entry(
    factory: Callable[..., Algorithm],
    objectives: Objectives,
    source: str,
    *bases: Callable[..., Any],
    models: str = "",
) -> Entry:
    """Return an entry whose options are the keyword-only arguments of the factory and of what it passes the
    rest on to.

    What a `functools.partial` has set already is no option.
    """
    defaults = {
        parameter.name: parameter.default
        for each in (*bases, factory)
        for parameter in inspect.signature(each).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
        and parameter.default is not parameter.empty
        and parameter.name not in getattr(each, "keywords", {})
    }
    return Entry(factory, objectives, source, defaults, models)

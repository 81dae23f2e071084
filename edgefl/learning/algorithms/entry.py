"""The record that registers an algorithm.

A module of `edgefl.learning.algorithms.papers`, or any other module, provides its algorithms in `ENTRIES`.
This is a mapping from names to entries.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from edgefl.base.config import FederationConfig
from edgefl.base.types import ClientState, ServerState
from edgefl.learning.algorithms.base import Algorithm
from edgefl.learning.algorithms.mixtures.marginal_gate import ParticipantGate
from edgefl.program.learner.base import Learner

if TYPE_CHECKING:
    from edgefl.program.compiler.network import Network
    from edgefl.program.compiler.objective import Objective


def keep_options(options: Any, config: FederationConfig) -> Any:
    """Return the options unchanged, for an algorithm whose options do not depend on the configuration.

    Args:
        options: the options of the algorithm.
        config: not used. It is an argument of every `Entry.resolve`.
    """
    return options


@dataclass(frozen=True)
class Entry:
    """An algorithm: its options, its factory, and the objectives that its plan needs.

    Raises:
        TypeError: `options` is not a dataclass, or one of its fields has no default.

    Attributes:
        options: frozen dataclass of the options. Each field has a default, whose type is the option's type.
            The `Attributes` section of its docstring explains the options.
        factory: makes the algorithm from a learner and the options. The aggregator passes None as the
            learner.
        objectives: returns the plan's objectives for a network and the options. It needs TensorFlow and runs
            where the plan is built, never on a device.
        source: the paper.
        models: name of the option that counts the algorithm's models, each of which starts from different
            initial weights. Empty: one model.
        resolve: returns the options with a value for each option that is derived from the configuration, such
            as a number of rounds. `build_plan` calls it once and stores the result in the plan.
        needs_classes: why the algorithm works only for a classification. Empty if it works for every task.
        list_gates: returns the gates of the participants, with which a client without labels predicts. Its
            arguments are the options, the last server state, the client states of the participants, and the
            number of training samples of each participant. None if the algorithm has no such gates.
        trains_one_model: whether each client trains one model by the signature `train`, with the option
            `learning_rate` as step size. A range test can then find the rate.
    """

    options: type[Any]
    factory: Callable[[Learner | None, Any], Algorithm]
    objectives: Callable[["Network", Any], tuple["Objective", ...]]
    source: str
    models: str = ""
    resolve: Callable[[Any, FederationConfig], Any] = keep_options
    needs_classes: str = ""
    list_gates: (
        Callable[
            [Any, ServerState, Mapping[str, ClientState], Mapping[str, float]], Sequence[ParticipantGate]
        ]
        | None
    ) = None
    trains_one_model: bool = True

    def __post_init__(self) -> None:
        as_mapping(self.options())  # fails early if this is not a dataclass or a field has no default

    @property
    def defaults(self) -> dict[str, Any]:
        """The options with their defaults, in the order of the dataclass."""
        return as_mapping(self.options())


def as_mapping(options: Any) -> dict[str, Any]:
    """Return the fields of an options dataclass by name, in the order of the dataclass."""
    return {field.name: getattr(options, field.name) for field in fields(options)}

"""The interface of an engine, and the one that runs all clients in this process."""

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Protocol

from edgefl.client.runner import WorkItem
from edgefl.learner.base import Learner
from edgefl.simulation.clients import ClientFunction, OpenFederation, SimulatedFederation, T


class Engine(Protocol):
    """Runs a function of the clients over work items."""

    def run(self, function: ClientFunction[T], items: Iterable[WorkItem]) -> Iterator[T]:
        """Yield the function's result for each work item, in the order of the items.

        Items are read as they are needed. The function is one of a module, so that a process can import it.
        """

    def __enter__(self) -> "Engine":
        """Open the engine."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End its processes."""


class SerialEngine:
    """Runs all clients in this process. See `Engine`."""

    def __init__(self, federation: SimulatedFederation, learner: Learner | None = None) -> None:
        self._federation = OpenFederation(federation, learner)

    def run(self, function: ClientFunction[T], items: Iterable[WorkItem]) -> Iterator[T]:
        """See `Engine.run`."""
        return (function(self._federation, item) for item in items)

    def __enter__(self) -> "SerialEngine":
        """Nothing to open."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to end."""

"""The interface of an engine, and the engine that runs all clients in this process."""

from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Protocol

from edgefl.learning.client.runner import WorkItem
from edgefl.simulation.clients import ClientFunction, OpenFederation, SimulatedFederation, T


class Engine(Protocol):
    """Runs client functions on work items. An engine is a context manager."""

    def run(self, function: ClientFunction[T], items: Iterable[WorkItem]) -> Iterator[T]:
        """Yield the function's result for each work item, in the order of the items.

        Args:
            function: a function of a module, so that another process can import it.
            items: work items. The engine reads an item only when it is about to run it.
        """

    def __enter__(self) -> "Engine":
        """Open the engine."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the processes of the engine."""


OpenEngine = Callable[[SimulatedFederation], Engine]
"""Returns the engine that runs the clients of a federation."""


class SerialEngine:
    """Runs all clients in this process, see `Engine`."""

    def __init__(self, federation: SimulatedFederation) -> None:
        self._federation = OpenFederation(federation)

    def run(self, function: ClientFunction[T], items: Iterable[WorkItem]) -> Iterator[T]:
        """Yield the function's result for each work item, see `Engine.run`.

        Args:
            function: a client function. It need not belong to a module, because it runs in this process.
            items: work items. Each is read only when it is about to run.
        """
        return (function(self._federation, item) for item in items)

    def __enter__(self) -> "SerialEngine":
        """Return the engine. There is nothing to open."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing, because no process was started."""

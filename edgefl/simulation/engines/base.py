"""The interface of an engine, and the one that runs all clients in this process."""

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Protocol

from edgefl.learner.base import Learner
from edgefl.simulation.engines.site import Ending, Federation, Row, Site
from edgefl.types import ClientState, Scalars, Update


class Engine(Protocol):
    """Runs clients. Results come in the rows' order, whoever ran them; rows are read as they are needed."""

    def update(self, rows: Iterable[Row]) -> Iterator[tuple[Update, ClientState]]:
        """Train each row's client."""

    def personalize(self, rows: Iterable[Row]) -> Iterator[tuple[Ending, ClientState]]:
        """Have each row's client make and measure its mixture."""

    def evaluate(self, rows: Iterable[Row]) -> Iterator[Scalars]:
        """Have each row's client measure the mixture that it would make now; nothing is kept."""

    def __enter__(self) -> "Engine":
        """Open the engine."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End its processes."""


class Serial:
    """All clients in this process; see `Engine`."""

    def __init__(self, federation: Federation, learner: Learner | None = None) -> None:
        self._site = Site(federation, learner)

    def update(self, rows: Iterable[Row]) -> Iterator[tuple[Update, ClientState]]:
        """See `Engine.update`."""
        return (self._site.update(*row) for row in rows)

    def personalize(self, rows: Iterable[Row]) -> Iterator[tuple[Ending, ClientState]]:
        """See `Engine.personalize`."""
        return (self._site.personalize(*row) for row in rows)

    def evaluate(self, rows: Iterable[Row]) -> Iterator[Scalars]:
        """See `Engine.evaluate`."""
        return (self._site.evaluate(*row) for row in rows)

    def __enter__(self) -> "Serial":
        """Nothing to open."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to end."""

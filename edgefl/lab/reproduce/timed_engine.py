"""An engine that measures the processor time of each client."""

import json
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType

from edgefl.lab.reproduce.cached_learner import CachedLearner
from edgefl.learning.client.runner import WorkItem
from edgefl.simulation.clients import ClientFunction, OpenFederation, T
from edgefl.simulation.engines.base import Engine


class TimedEngine:
    """Runs clients in another engine, and appends their processor times to a file. See `Engine`.

    Args:
        engine: runs the clients.
        path: the file, with a line `[client, round, seconds]` for each work item. Personalization is the
            round after the last one.
    """

    def __init__(self, engine: Engine, path: Path) -> None:
        self._engine = engine
        self._path = path

    def run(self, function: ClientFunction[T], items: Iterable[WorkItem]) -> Iterator[T]:
        """Yield the function's result for each work item. See `Engine.run`.

        The processor time of an item is appended to the file before its result is yielded.

        Args:
            function: a function of a module, so that another process can import it.
            items: work items. The engine reads an item only when it is about to run it.
        """
        pending: deque[WorkItem] = deque()

        def record_items() -> Iterator[WorkItem]:
            for item in items:
                pending.append(item)
                yield item

        for seconds, result in self._engine.run(partial(time_function, function), record_items()):
            item = pending.popleft()
            line = json.dumps([item.client_id, item.broadcast.round, round(seconds, 4)])
            with self._path.open("a") as file:
                file.write(line + "\n")
            yield result

    def __enter__(self) -> "TimedEngine":
        """Open the engine. End a line that a power failure cut off, so that the next one is whole."""
        if self._path.exists() and self._path.read_bytes()[-1:] not in (b"", b"\n"):
            with self._path.open("a") as file:
                file.write("\n")
        self._engine.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the engine."""
        self._engine.__exit__(kind, error, trace)


def time_function(function: ClientFunction[T], federation: OpenFederation, item: WorkItem) -> tuple[float, T]:
    """Return the processor time of a function for one work item in seconds, and its result.

    A model that a `CachedLearner` read counts with the time of its training.

    Args:
        function: the client function to measure.
        item: the work of the client.
    """

    def read_clock() -> float:
        learner = federation.runner.learner
        return time.process_time() + (learner.saved_s if isinstance(learner, CachedLearner) else 0.0)

    began = read_clock()
    result = function(federation, item)
    return read_clock() - began, result


def read_seconds(path: Path) -> dict[str, dict[int, float]]:
    """Return the seconds of each client in each round.

    An interrupted run plays its last rounds again, and the later line counts. A line that a power failure cut
    off is ignored.
    """
    seconds: dict[str, dict[int, float]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        with suppress(ValueError):
            client_id, number, value = json.loads(line)
            seconds.setdefault(client_id, {})[number] = value
    return seconds

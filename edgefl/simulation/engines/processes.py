"""N processes on this machine. Each opens the plan once and shares the data's pages with the others."""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.queues import Queue
from types import TracebackType
from typing import TypeVar

from edgefl.errors import EdgeflError
from edgefl.simulation.engines.site import Ending, Federation, Row, Site
from edgefl.system.signals import Stopped, deaf_children
from edgefl.types import Broadcast, ClientState, Scalars, Update

T = TypeVar("T")
AHEAD = 2
"""Rows in flight for each process: one runs, one waits. More would hold more broadcasts in memory."""

_site: Site


def _end_with_parent() -> None:
    """A parent that is killed cannot end its children, and these would wait for its next row for good."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _open(federations: "Queue[Federation]") -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    global _site
    _site = Site(federations.get())


def _update(broadcast: Broadcast, state: ClientState, client_id: str) -> tuple[Update, ClientState]:
    return _site.update(broadcast, state, client_id)


def _personalize(broadcast: Broadcast, state: ClientState, client_id: str) -> tuple[Ending, ClientState]:
    return _site.personalize(broadcast, state, client_id)


def _evaluate(broadcast: Broadcast, state: ClientState, client_id: str) -> Scalars:
    return _site.evaluate(broadcast, state, client_id)


class Processes:
    """See `Engine`. EdgeflError when one of the processes is killed."""

    def __init__(self, federation: Federation, count: int) -> None:
        self._count = count
        # spawn, not fork: a forked child would inherit the interpreter's threads in an unknown state
        context = get_context("spawn")
        # through a queue: what a spawned child is given as an argument blocks this process for good when the
        # child dies early
        self._federations: Queue[Federation] = context.Queue()
        for _ in range(count):
            self._federations.put(federation)
        self._started = False
        self._others = active_children()
        self._pool = ProcessPoolExecutor(count, context, _open, (self._federations,))

    def _run(self, function: Callable[..., T], rows: Iterable[Row]) -> Iterator[T]:
        pending: deque[Future[T]] = deque()
        try:
            for row in rows:
                with nullcontext() if self._started else deaf_children():
                    pending.append(self._pool.submit(function, *row))
                self._started = True
                if len(pending) >= AHEAD * self._count:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except BrokenProcessPool as error:
            raise EdgeflError(
                "a process of the simulation was killed, most often for want of memory; run fewer processes"
            ) from error
        finally:
            for future in pending:
                future.cancel()

    def update(self, rows: Iterable[Row]) -> Iterator[tuple[Update, ClientState]]:
        """See `Engine.update`."""
        return self._run(_update, rows)

    def personalize(self, rows: Iterable[Row]) -> Iterator[tuple[Ending, ClientState]]:
        """See `Engine.personalize`."""
        return self._run(_personalize, rows)

    def evaluate(self, rows: Iterable[Row]) -> Iterator[Scalars]:
        """See `Engine.evaluate`."""
        return self._run(_evaluate, rows)

    def __enter__(self) -> "Processes":
        """Processes start with the first rows."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the processes; rows that have not begun are left, and when this process is interrupted those
        that have, too.
        """
        if isinstance(error, KeyboardInterrupt | Stopped):
            for child in active_children():
                if child not in self._others:
                    child.terminate()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._federations.cancel_join_thread()
        self._federations.close()

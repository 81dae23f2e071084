"""N processes on this machine. Each opens the plan once and shares the data's pages with the others."""

import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.queues import Queue
from types import TracebackType

from edgefl.client.runner import WorkItem
from edgefl.errors import EdgeflError
from edgefl.simulation.clients import ClientFunction, OpenFederation, SimulatedFederation, T
from edgefl.system.signals import Stopped, ignore_ctrl_c

MAX_ITEMS_PER_PROCESS = 2
"""Work items in flight for each process: one runs, one waits. More would hold more broadcasts in memory."""

_federation: OpenFederation


def _end_with_parent() -> None:
    """End with the parent: a killed parent cannot end its children, which would wait for work forever."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _open(federations: "Queue[SimulatedFederation]") -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    global _federation
    _federation = OpenFederation(federations.get())


def _call(function: ClientFunction[T], item: WorkItem) -> T:
    return function(_federation, item)


class ProcessEngine:
    """See `Engine`. EdgeflError when one of the processes is killed."""

    def __init__(self, federation: SimulatedFederation, count: int) -> None:
        self._count = count
        # spawn, not fork: a forked child would inherit the interpreter's threads in an unknown state
        context = get_context("spawn")
        # through a queue: what a spawned child is given as an argument blocks this process for good when the
        # child dies early
        self._federations: Queue[SimulatedFederation] = context.Queue()
        for _ in range(count):
            self._federations.put(federation)
        self._started = False
        self._others = active_children()
        self._pool = ProcessPoolExecutor(count, context, _open, (self._federations,))

    def run(self, function: ClientFunction[T], items: Iterable[WorkItem]) -> Iterator[T]:
        """See `Engine.run`."""
        pending: deque[Future[T]] = deque()
        try:
            for item in items:
                with nullcontext() if self._started else ignore_ctrl_c():
                    pending.append(self._pool.submit(_call, function, item))
                self._started = True
                if len(pending) >= MAX_ITEMS_PER_PROCESS * self._count:
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

    def __enter__(self) -> "ProcessEngine":
        """Processes start with the first work items."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the processes.

        Work items that have not begun are dropped, and when this process is interrupted those that have begun
        are dropped too.
        """
        if isinstance(error, KeyboardInterrupt | Stopped):
            for child in active_children():
                if child not in self._others:
                    child.terminate()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._federations.cancel_join_thread()
        self._federations.close()

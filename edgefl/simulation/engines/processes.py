"""Runs clients in several processes on this machine.

Each process opens the plan once. The processes share the memory pages of a memory-mapped data set.
"""

import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from functools import partial
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.queues import Queue
from multiprocessing.reduction import ForkingPickler
from types import TracebackType

from edgefl.base.errors import ConfigError, EdgeflError
from edgefl.base.system.signals import Stopped, ignore_ctrl_c
from edgefl.learning.client.runner import WorkItem
from edgefl.simulation.clients import ClientFunction, OpenFederation, SimulatedFederation, T
from edgefl.simulation.engines.base import OpenEngine, SerialEngine

MAX_ITEMS_PER_PROCESS = 2
"""Work items for each process: one runs and one waits. More items would need more memory for broadcasts."""

_federation: OpenFederation


def _end_with_parent() -> None:
    """End this process when its parent ends.

    A killed parent cannot end its children, which would wait for work forever.
    """
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
    """Runs clients in processes of this machine, see `Engine`.

    Raises:
        ConfigError: `open_learner` of the federation cannot be sent to a process.
    """

    def __init__(self, federation: SimulatedFederation, count: int) -> None:
        self._count = count
        try:
            ForkingPickler.dumps(federation.open_learner)
            if getattr(federation.open_learner, "__module__", "") == "__main__":
                raise TypeError("it is a function of the script or notebook itself")
        except Exception as error:  # An object that cannot be sent raises one of many types
            raise ConfigError(
                f"open_learner cannot be sent to {count} processes ({error}), expected a function of a "
                "module; pass such a function, or run in this process"
            ) from error
        # A forked child would inherit locks that other threads of this process hold.
        context = get_context("spawn")
        # As an argument, the federation would block this process forever if a spawned child died early.
        self._federations: Queue[SimulatedFederation] = context.Queue()
        for _ in range(count):
            self._federations.put(federation)
        self._started = False
        self._others = active_children()
        self._pool = ProcessPoolExecutor(count, context, _open, (self._federations,))

    def run(self, function: ClientFunction[T], items: Iterable[WorkItem]) -> Iterator[T]:
        """Yield the results, see `Engine.run`.

        Args:
            function: a function of a module.

        Raises:
            EdgeflError: a process was killed.
        """
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
                "a process of the simulation was killed, probably because memory ran out; run fewer processes"
            ) from error
        finally:
            for future in pending:
                future.cancel()

    def __enter__(self) -> "ProcessEngine":
        """Return the engine. The processes start with the first work items."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the processes.

        Work items that wait are dropped. If this process is interrupted, running work items are dropped too.
        """
        if isinstance(error, KeyboardInterrupt | Stopped):
            for child in active_children():
                if child not in self._others:
                    child.terminate()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._federations.cancel_join_thread()
        self._federations.close()


def choose_local_engine(processes: int) -> OpenEngine:
    """Return a function that opens an engine of this machine. With one process, clients run in this one.

    Args:
        processes: number of processes that run clients.

    Raises:
        ConfigError: the number is below 1.
    """
    if processes < 1:
        raise ConfigError(f"the number of processes is {processes}, expected at least 1")
    return SerialEngine if processes == 1 else partial(ProcessEngine, count=processes)

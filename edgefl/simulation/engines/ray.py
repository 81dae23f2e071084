"""Runs clients in actors on a Ray cluster or a local Ray, see `ray_session`.

Each actor opens the plan once. The samples are put into Ray's object store once, because another host cannot
read the files of this machine. Each host gets one copy, which its actors read in place. A model that several
work items of a round share is also stored once.

The results are the same, bit for bit, as with the other engines if all hosts have the same kind of CPU.
LiteRT chooses its kernels by the features of the CPU.
"""

import copy
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from edgefl.base.errors import EdgeflError
from edgefl.base.types import Weights
from edgefl.data.mapped_shards import MappedShards
from edgefl.learning.client.runner import WorkItem
from edgefl.simulation.clients import ClientFunction, OpenFederation, SimulatedFederation, T
from edgefl.simulation.engines.ray_session import open_ray_session

MAX_ITEMS_PER_ACTOR = 2
"""Work items for each actor: running, or complete and waiting until earlier results are returned."""
_MAX_STORED_MODELS = 64
"""Maximum number of models in the object store. The oldest are removed first."""


class _Actor:
    """Runs clients. Models are separate arguments, because Ray reads only whole arguments in place."""

    def open(self, federation: SimulatedFederation) -> None:
        self._federation = OpenFederation(federation)

    def run(self, function: ClientFunction[T], item: WorkItem, names: list[str], *models: Weights) -> T:
        broadcast = replace(item.broadcast, models=dict(zip(names, models, strict=True)))
        return function(self._federation, replace(item, broadcast=broadcast))


class RayEngine:
    """Runs clients in Ray actors, see `Engine`.

    Args:
        count: number of actors, each with one CPU.
        start_s: maximum time in seconds until all actors have started.
    """

    def __init__(self, federation: SimulatedFederation, count: int, *, start_s: float = 120.0) -> None:
        self._federation = federation
        self._count = count
        self._start_s = start_s
        self._actors: list[Any] = []
        self._stack = ExitStack()

    def _start(self) -> None:
        shards = self._federation.shards
        resident = replace(
            self._federation, shards=shards.to_resident() if isinstance(shards, MappedShards) else shards
        )
        kind = ray.remote(num_cpus=1, scheduling_strategy="SPREAD")(_Actor)
        federation = ray.put(resident)
        self._actors = [kind.remote() for _ in range(self._count)]
        opened = [actor.open.remote(federation) for actor in self._actors]
        ready, late = ray.wait(opened, num_returns=self._count, timeout=self._start_s)
        if late:
            cpus = int(ray.cluster_resources().get("CPU", 0))
            raise EdgeflError(
                f"{len(ready)} of {self._count} actors started within {self._start_s:g} s, Ray has {cpus} "
                "CPUs in total; run fewer processes, or add hosts"
            )
        for reference in ready:
            _fetch_result(reference)

    def run(self, function: ClientFunction[T], items: Iterable[WorkItem]) -> Iterator[T]:
        """Yield the results, see `Engine.run`.

        Args:
            function: a function of a module.

        Raises:
            EdgeflError: an actor was killed, or the connection to Ray was lost.
        """
        idle = list(self._actors)
        running = dict[Any, Any]()
        order = deque[Any]()
        stored: dict[int, tuple[Weights, Any]] = {}

        def take_first() -> T:
            reference = order.popleft()
            result: T = _fetch_result(reference)
            if reference in running:
                idle.append(running.pop(reference))
            return result

        for item in items:
            if len(order) >= MAX_ITEMS_PER_ACTOR * self._count:
                yield take_first()
            while not idle:
                (done,), _ = ray.wait(list(running), num_returns=1)
                idle.append(running.pop(done))
            models = item.broadcast.models
            references = [_store_model(stored, weights) for weights in models.values()]
            without_models = replace(item, broadcast=replace(item.broadcast, models={}))
            actor = idle.pop()
            result = actor.run.remote(function, without_models, list(models), *references)
            running[result] = actor
            order.append(result)
        while order:
            yield take_first()

    def __enter__(self) -> "RayEngine":
        """Connect to Ray and start the actors.

        Raises:
            EdgeflError: Ray cannot be reached, or the actors do not start in time.
        """
        with ExitStack() as stack:
            stack.enter_context(open_ray_session(self._count))
            stack.callback(self._end)
            self._start()
            self._stack = stack.pop_all()
        return self

    def _end(self) -> None:
        for actor in self._actors:
            ray.kill(actor)
        self._actors = []

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the actors, and the local Ray if this engine started it."""
        self._stack.close()


def _store_model(stored: dict[int, tuple[Weights, Any]], weights: Weights) -> Any:
    # The weights are stored with their reference, because an id is unique only while its object exists.
    if id(weights) not in stored:
        while len(stored) >= _MAX_STORED_MODELS:
            del stored[next(iter(stored))]
        stored[id(weights)] = (weights, ray.put(weights))
    return stored[id(weights)][1]


def _fetch_result(reference: Any) -> Any:
    try:
        # The result lies in Ray's object store, which would fill up, and which ends with Ray.
        return copy.deepcopy(ray.get(reference))
    except RayTaskError as error:
        if isinstance(error.cause, EdgeflError):
            raise error.cause from None  # without the actor's traceback
        raise
    except RayActorError as error:
        raise EdgeflError(
            "an actor of the simulation was killed, probably because memory ran out; run fewer processes"
        ) from error
    except RayError as error:
        raise EdgeflError(f"Ray failed: {error}; check that the cluster is still running") from error

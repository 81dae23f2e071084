"""Runs clients in actors on a Ray cluster, or on a local Ray. See `ray_session`. Each actor opens the plan
once.

The data set is put into Ray's object store once, in its form on disk. A host gets one copy, which its
actors read in place. A file on this machine's disk may not exist on another machine. A model for many work
items of a round is put into the store once too. The results have the same bits as with the other engines if
the hosts' CPUs are alike, because LiteRT chooses its kernels by the features of the CPU.
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

from edgefl.client.runner import WorkItem
from edgefl.data.mapped_shards import MappedShards
from edgefl.errors import EdgeflError
from edgefl.simulation.clients import ClientFunction, OpenFederation, SimulatedFederation, T
from edgefl.simulation.engines.ray_session import open_ray_session
from edgefl.types import Weights

MAX_ITEMS_PER_ACTOR = 2
"""Work items for each actor that are running or wait for an earlier one to be returned."""
_MAX_STORED_MODELS = 64
"""Models in the object store at a time, the newest."""


class _Actor:
    """Runs clients. Models are arguments of their own, because only arguments are read in place."""

    def open(self, federation: SimulatedFederation) -> None:
        self._federation = OpenFederation(federation)

    def run(self, function: ClientFunction[T], item: WorkItem, names: list[str], *models: Weights) -> T:
        broadcast = replace(item.broadcast, models=dict(zip(names, models, strict=True)))
        return function(self._federation, replace(item, broadcast=broadcast))


class RayEngine:
    """See `Engine`.

    EdgeflError when Ray cannot be reached, when actors do not start within `start_s`, or when one is killed.
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
                "CPUs in all; ask for fewer processes, or add hosts"
            )
        for reference in ready:
            _fetch_result(reference)

    def run(self, function: ClientFunction[T], items: Iterable[WorkItem]) -> Iterator[T]:
        """See `Engine.run`."""
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
        """Connect to Ray and start the actors."""
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
        """End the actors, and a Ray that was started for them."""
        self._stack.close()


def _store_model(stored: dict[int, tuple[Weights, Any]], weights: Weights) -> Any:
    # the weights are kept beside their reference: an id is only unique while its object lives
    if id(weights) not in stored:
        while len(stored) >= _MAX_STORED_MODELS:
            del stored[next(iter(stored))]
        stored[id(weights)] = (weights, ray.put(weights))
    return stored[id(weights)][1]


def _fetch_result(reference: Any) -> Any:
    try:
        # a copy: what Ray gives lies in its object store, which would fill up and ends with Ray
        return copy.deepcopy(ray.get(reference))
    except RayTaskError as error:
        if isinstance(error.cause, EdgeflError):
            raise error.cause from None  # the message without the actor's traceback
        raise
    except RayActorError as error:
        raise EdgeflError(
            "an actor of the simulation was killed, most often for want of memory; run fewer processes"
        ) from error
    except RayError as error:
        raise EdgeflError(f"Ray gave up: {error}; is the cluster still up?") from error

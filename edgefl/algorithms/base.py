"""An algorithm is cut at the wire: five pure functions in a frozen record."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from edgefl.algorithms.names import GLOBAL
from edgefl.types import Broadcast, ClientState, Mixture, Peer, ServerState, Shard, Update, Weights

PHASE_PRETRAIN = "pretrain"
PHASE_CLUSTER = "cluster"
PHASE_FEDERATE = "federate"
PHASE_PERSONALIZE = "personalize"
PHASE_DONE = "done"


CurrentModel = Callable[[Broadcast, ClientState, Shard], Peer | None]
"""Returns the model that a client would use now."""


def use_global_model(broadcast: Broadcast, state: ClientState, shard: Shard) -> Peer | None:
    """Return the received model `global`; None when the broadcast has no such model."""
    return Peer("predict", broadcast.models[GLOBAL]) if GLOBAL in broadcast.models else None


@dataclass(frozen=True)
class Algorithm:
    """What runs at the aggregator (init, broadcast, aggregate) and on a device (local_update, personalize).

    `aggregate` takes any iterable and reads it once, one update at a time: an iterator over files keeps
    memory at O(models), not O(clients). It needs the updates sorted by client id and without duplicates:
    `canonical` gives that.

    takes_late: a round is a mean of deltas to one global model, so that it may hold a delta to that model's
    version before.
    current: returns the model that a client would use if the federation ended now, without any training, or
    None. The client measures this model on its validation samples in each round.
    by_sums: whether `aggregate` uses nothing of the updates but weighted means of each model's deltas, so
    that one update that holds these means has the same effect. Only then can the means alone be released with
    noise (`edgefl.privacy`).
    """

    name: str
    init: Callable[[Weights, np.random.Generator], ServerState]
    broadcast: Callable[[ServerState, str], Broadcast]
    local_update: Callable[
        [Broadcast, ClientState, Shard, str, np.random.Generator], tuple[Update, ClientState]
    ]
    aggregate: Callable[[ServerState, Iterable[Update]], ServerState]
    personalize: Callable[[Broadcast, ClientState, Shard, np.random.Generator], tuple[Mixture, ClientState]]
    current: CurrentModel = use_global_model
    takes_late: bool = False
    by_sums: bool = False


def canonicalize_updates(state: ServerState, updates: Iterable[Update]) -> list[Update]:
    """Sort by client id; drop updates of another round and all but the first of a client."""
    seen: dict[str, Update] = {}
    for update in updates:
        if update.round == state.round:
            seen.setdefault(update.client_id, update)
    return [seen[client_id] for client_id in sorted(seen)]


_CLUSTER_PREFIX = "cluster/"


def read_assignments(state: ServerState) -> dict[str, int]:
    """Return the cluster of each client that has been placed, by client id; empty before the clustering."""
    return {
        key.removeprefix(_CLUSTER_PREFIX): int(value)
        for key, value in state.scalars.items()
        if key.startswith(_CLUSTER_PREFIX)
    }


def with_assignments(state: ServerState, clusters: Mapping[str, int]) -> ServerState:
    """Return the state with these clusters in place of those before."""
    others = {key: value for key, value in state.scalars.items() if not key.startswith(_CLUSTER_PREFIX)}
    return replace(
        state,
        scalars={
            **others,
            **{f"{_CLUSTER_PREFIX}{client_id}": float(cluster) for client_id, cluster in clusters.items()},
        },
    )


def is_arriving(state: ServerState, client_id: str) -> bool:
    """Return whether the clients have been clustered without this one: its first update places it."""
    return f"{_CLUSTER_PREFIX}{client_id}" not in state.scalars and any(
        key.startswith(_CLUSTER_PREFIX) for key in state.scalars
    )


def find_largest_cluster(clusters: Iterable[int]) -> int:
    """Return the cluster that most clients are in, the lowest of several."""
    ordered = sorted(clusters)
    return max(dict.fromkeys(ordered), key=ordered.count)

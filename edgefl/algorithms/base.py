"""An algorithm is cut at the wire: five pure functions in a frozen record."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from edgefl.types import Broadcast, ClientState, Mixture, ServerState, Shard, Update, Weights

FEDERATE = "federate"
PERSONALIZE = "personalize"
DONE = "done"


@dataclass(frozen=True)
class Algorithm:
    """What runs at the aggregator (init, broadcast, aggregate) and on a device (local_update, personalize).

    `aggregate` takes any iterable and reads it once, one update at a time: an iterator over files keeps memory at
    O(models), not O(clients). It needs the updates sorted by client id and without duplicates: `canonical` gives that.
    """

    name: str
    init: Callable[[Weights, np.random.Generator], ServerState]
    broadcast: Callable[[ServerState, str], Broadcast]
    local_update: Callable[[Broadcast, ClientState, Shard, str, np.random.Generator], tuple[Update, ClientState]]
    aggregate: Callable[[ServerState, Iterable[Update]], ServerState]
    personalize: Callable[[Broadcast, ClientState, Shard, np.random.Generator], tuple[Mixture, ClientState]]


def canonical(state: ServerState, updates: Iterable[Update]) -> list[Update]:
    """Sort by client id; drop updates of another round and all but the first of a client."""
    seen: dict[str, Update] = {}
    for update in updates:
        if update.round == state.round:
            seen.setdefault(update.client_id, update)
    return [seen[client_id] for client_id in sorted(seen)]

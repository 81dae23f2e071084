"""The record of an algorithm, which is five pure functions split at the network.

The aggregator runs `init`, `broadcast` and `aggregate`. A device runs `local_update` and `personalize`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from edgefl.base.types import (
    Broadcast,
    ClientState,
    Mixture,
    Peer,
    ServerState,
    Shard,
    StateRecord,
    Update,
    Weights,
)
from edgefl.learning.algorithms.names import GLOBAL

PHASE_MEASURE = "measure"
PHASE_PRETRAIN = "pretrain"
PHASE_CLUSTER = "cluster"
PHASE_FEDERATE = "federate"
PHASE_PERSONALIZE = "personalize"
PHASE_DONE = "done"


CurrentModel = Callable[[Broadcast, ClientState, Shard], Peer | None]
"""Returns the model that a client would use now, or None if it has no complete model."""


def use_global_model(broadcast: Broadcast, state: ClientState, shard: Shard) -> Peer | None:
    """Return the received model `global`, or None if the broadcast has no such model.

    Args:
        broadcast: the broadcast that the client received.
        state: not used. It is an argument of every `CurrentModel`.
        shard: not used. It is an argument of every `CurrentModel`.
    """
    return Peer("predict", broadcast.models[GLOBAL]) if GLOBAL in broadcast.models else None


@dataclass(frozen=True)
class TrainedModels:
    """The models whose deltas an update holds.

    A broadcast may have further models, such as the start of a local model. The aggregator rejects an update
    that breaks these rules before it stores the update, so `aggregate` can rely on them.

    Attributes:
        required: names of the models that every update holds.
        choices: names of further models. An update holds some of them.
        min_choices: minimum number of `choices` in an update.
        max_choices: maximum number of `choices` in an update.
    """

    required: tuple[str, ...] = (GLOBAL,)
    choices: tuple[str, ...] = ()
    min_choices: int = 0
    max_choices: int = 0

    def allows(self, name: str) -> bool:
        """Return whether an update may hold a delta of a model.

        Args:
            name: name of the model.
        """
        return name in self.required or name in self.choices

    def find_problem(self, names: Collection[str]) -> str:
        """Return why the models of an update break the rules, or an empty string.

        Args:
            names: names of the models whose deltas the update holds.
        """
        if unexpected := sorted(name for name in names if not self.allows(name)):
            return f"it holds the model {unexpected[0][:100]!r}, expected {self._describe()}"
        chosen = sum(name in self.choices for name in names)
        has_required = all(name in names for name in self.required)
        if has_required and self.min_choices <= chosen <= self.max_choices:
            return ""
        return f"it holds {', '.join(sorted(names)) or 'no model'}, expected {self._describe()}"

    def _describe(self) -> str:
        counts = str(self.min_choices)
        if self.max_choices != self.min_choices:
            counts = f"{self.min_choices} to {self.max_choices}"
        parts = [", ".join(self.required), f"{counts} of {', '.join(self.choices)}" if self.choices else ""]
        return " and ".join(filter(None, parts)) or "no model"


NO_MODELS = TrainedModels(required=())
"""An update without deltas."""


@dataclass(frozen=True)
class Algorithm:
    """The functions of an algorithm at the aggregator and on a device.

    `aggregate` accepts any iterable and reads it once, one update at a time. An iterator over files therefore
    keeps memory at O(models) instead of O(clients). The updates must be sorted by client id and have no
    duplicates. `canonicalize_updates` returns such a list.

    Attributes:
        name: name of the algorithm.
        init: makes the server state before round 1 from the initial weights.
        broadcast: returns the broadcast of a client in the state's round. The second argument is the client's
            id.
        local_update: trains a client and returns its update and its new state.
        aggregate: returns the server state of the next round.
        personalize: makes a client's mixture after the last round and returns it with the client's new state.
        current: the model that a client would use if the federation ended now, without any training, or None.
            The client measures this model on its validation samples in each round.
        takes_late: whether a round may include a delta to an earlier version of the model. This requires that
            a round is a mean of deltas to one global model.
        by_sums: whether `aggregate` uses only weighted means of each model's deltas. One update that holds
            these means then has the same effect. Only such means can be released with noise
            (`edgefl.learning.privacy`).
        trained: the models whose deltas an update holds. By default it is the model `global`.
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
    trained: TrainedModels = TrainedModels()


def canonicalize_updates(state: ServerState, updates: Iterable[Update]) -> list[Update]:
    """Return the updates of the state's round, sorted by client id.

    Updates of another round are dropped. Of several updates from one client, the first is used.

    Args:
        state: the server state before the round.
        updates: the received updates in any order, read once.
    """
    seen: dict[str, Update] = {}
    for update in updates:
        if update.round == state.round:
            seen.setdefault(update.client_id, update)
    return [seen[client_id] for client_id in sorted(seen)]


@dataclass(frozen=True)
class ClusterAssignments(StateRecord):
    """The clusters of the clients.

    Attributes:
        clusters: the cluster of each assigned client by client id. Empty before the clustering.
    """

    clusters: Mapping[str, int] = field(default_factory=dict)


def read_assignments(state: ServerState) -> Mapping[str, int]:
    """Return the cluster of each assigned client by client id, which is empty before the clustering."""
    return state.read_record(ClusterAssignments).clusters


def find_assignment(state: ServerState, client_id: str) -> int | None:
    """Return the cluster of a client, or None if the client is not assigned to one.

    Args:
        state: the server state.
        client_id: the client.
    """
    return read_assignments(state).get(client_id)


def with_assignments(state: ServerState, clusters: Mapping[str, int]) -> ServerState:
    """Return the state with these assignments in place of the earlier ones.

    Args:
        state: the server state. It is not changed.
        clusters: the cluster of each assigned client by client id. A client that is left out loses its
            assignment.
    """
    return state.with_record(ClusterAssignments(dict(clusters)))


def is_arriving(state: ServerState, client_id: str) -> bool:
    """Return whether the other clients have been clustered without this client.

    The first update of such a client assigns it to a cluster.

    Args:
        state: the server state.
        client_id: the client.
    """
    clusters = read_assignments(state)
    return bool(clusters) and client_id not in clusters


def find_largest_cluster(clusters: Iterable[int]) -> int:
    """Return the cluster with the most clients, the lowest number among equals.

    Args:
        clusters: the cluster of each client. At least one client.
    """
    ordered = sorted(clusters)
    return max(dict.fromkeys(ordered), key=ordered.count)

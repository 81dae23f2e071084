"""Which worker serves which client: an expert group at one worker where that leaves none with more than its
share.
"""

import math
from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from edgefl.algorithms.base import assignments
from edgefl.algorithms.mixtures.expert_averages import known
from edgefl.algorithms.names import EXPERT, experts
from edgefl.types import ServerState


class Groups:
    """Each client's expert group in a round's state, None for one that is in none or not known to be in one.

    It is the cluster that the client was placed in, the expert that it has most of by what it told last
    (FedMix), or the one that it chose last (IFCA, AEM): `picked` is the metric `expert` of its last update,
    by client.
    """

    def __init__(self, state: ServerState, picked: Mapping[str, float]) -> None:
        self._state = state
        self._picked = picked
        self._clusters = assignments(state)
        self._experts = len(experts(state.models))

    def of(self, client_id: str) -> int | None:
        """Return a client's group."""
        if client_id in self._clusters:
            return self._clusters[client_id]
        told = known(self._state, client_id, self._experts) if self._experts else None
        if told is not None:
            return int(np.argmax(told))
        pick = self._picked.get(client_id, math.nan)
        return int(pick) if self._experts and 0 <= pick < self._experts else None


def picked_of(metrics: Mapping[str, float]) -> float:
    """Return the expert that an update says it was trained from, NaN when it says none."""
    return metrics.get(EXPERT, math.nan)


Place = tuple[int, int | None]
"""A client's worker, 0 to their number less one, and the group for which it was put there."""


def placed(before: Mapping[str, Place], groups: Mapping[str, int | None], count: int) -> dict[str, Place]:
    """Return the place of each client of `before` and `groups` at `count` workers.

    A client stays where it was put until its group is another one. It goes to the worker that has most of its
    group and less than a fair share of all clients, else to the one with the fewest; of several, to the
    first.
    """
    places = {
        client_id: place for client_id, place in before.items() if groups.get(client_id, place[1]) == place[1]
    }
    share = math.ceil(len(before.keys() | groups.keys()) / count)
    loads = [0] * count
    members = defaultdict[int | None, list[int]](lambda: [0] * count)
    for number, group in places.values():
        loads[number] += 1
        members[group][number] += 1
    for _, client_id in sorted(
        (-1 if (group := groups[each]) is None else group, each) for each in groups.keys() - places.keys()
    ):
        group = groups[client_id]
        of_group = members[group]
        fits = [
            number
            for number in range(count)
            if group is not None and of_group[number] and loads[number] < share
        ]
        number = max(fits, key=lambda each: of_group[each]) if fits else loads.index(min(loads))
        places[client_id] = (number, group)
        loads[number] += 1
        of_group[number] += 1
    return places

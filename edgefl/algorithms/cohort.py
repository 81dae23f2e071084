"""Which clients train in a round."""

import math
from collections.abc import Iterable

from edgefl.algorithms.base import CLUSTER, PERSONALIZE, assignments
from edgefl.config import FederationConfig
from edgefl.rng import rng_for
from edgefl.types import ServerState


def choose_cohort(seed: int, state: ServerState, clients: Iterable[str], count: int) -> tuple[str, ...]:
    """Draw `count` of the clients without replacement (0, or more than there are: all), sorted by id.

    Once clients are assigned to clusters, `count` of each cluster. In the clustering round all take part,
    since each has to be placed, and later each client that arrives, until it is placed. Pure: the same seed,
    state and set of ids give the same cohort in the simulator and at the aggregator.
    """
    ids = sorted(set(clients))
    if state.phase == CLUSTER:
        return tuple(ids)
    placed = assignments(state)
    if not placed:
        return tuple(_draw(seed, state.round, "cohort", ids, count))
    groups: dict[int, list[str]] = {}
    for client_id in ids:
        if client_id in placed:
            groups.setdefault(placed[client_id], []).append(client_id)
    drawn = [client_id for client_id in ids if client_id not in placed]
    drawn += [
        each
        for cluster in sorted(groups)
        for each in _draw(seed, state.round, f"cohort:{cluster}", groups[cluster], count)
    ]
    return tuple(sorted(drawn))


def selected(config: FederationConfig, state: ServerState, online: Iterable[str]) -> tuple[str, ...]:
    """Return who is given a task in a round over MQTT: `over_selection` times as many as `choose_cohort`
    would draw of them.
    """
    # a share such as 1.1 x 10 comes out a hair above 11 in binary and must not ask for a twelfth client
    return choose_cohort(
        config.seed, state, online, math.ceil(config.over_selection * config.clients_per_round - 1e-9)
    )


def enough_of(config: FederationConfig, state: ServerState, cohort: Iterable[str]) -> int:
    """Return how many updates close a round of this cohort, 0 for all of it."""
    if state.phase == PERSONALIZE:
        return 0
    if config.mode == "async":
        return config.buffer
    return (
        len(choose_cohort(config.seed, state, cohort, config.clients_per_round))
        if config.over_selection > 1
        else 0
    )


def _draw(seed: int, round: int, purpose: str, ids: list[str], count: int) -> list[str]:
    if count == 0 or count >= len(ids):
        return ids
    chosen = rng_for(seed, round, purpose).choice(len(ids), size=count, replace=False)
    return sorted(ids[i] for i in chosen)

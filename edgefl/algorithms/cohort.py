"""Which clients train in a round."""

import math
from collections.abc import Iterable

from edgefl.algorithms.base import PHASE_CLUSTER, PHASE_PERSONALIZE, read_assignments
from edgefl.config import FederationConfig
from edgefl.rng import derive_rng
from edgefl.types import ServerState


def choose_cohort(seed: int, state: ServerState, clients: Iterable[str], count: int) -> tuple[str, ...]:
    """Draw `count` of the clients without replacement (0, or more than there are: all), sorted by id.

    Once clients are assigned to clusters, `count` of each cluster. In the clustering round all take part,
    since each has to be placed, and later each client that arrives, until it is placed. Pure: the same seed,
    state and set of ids give the same cohort in the simulator and at the aggregator.
    """
    ids = sorted(set(clients))
    if state.phase == PHASE_CLUSTER:
        return tuple(ids)
    clusters = read_assignments(state)
    if not clusters:
        return tuple(_draw(seed, state.round, "cohort", ids, count))
    groups: dict[int, list[str]] = {}
    for client_id in ids:
        if client_id in clusters:
            groups.setdefault(clusters[client_id], []).append(client_id)
    drawn = [client_id for client_id in ids if client_id not in clusters]
    drawn += [
        member
        for cluster in sorted(groups)
        for member in _draw(seed, state.round, f"cohort:{cluster}", groups[cluster], count)
    ]
    return tuple(sorted(drawn))


def choose_task_clients(
    config: FederationConfig, state: ServerState, online: Iterable[str]
) -> tuple[str, ...]:
    """Return who is given a task in a round over MQTT: `over_selection` times as many as `choose_cohort`
    would draw of them.
    """
    # a share such as 1.1 x 10 comes out a hair above 11 in binary and must not ask for a twelfth client
    return choose_cohort(
        config.seed, state, online, math.ceil(config.over_selection * config.clients_per_round - 1e-9)
    )


def count_required_updates(config: FederationConfig, state: ServerState, cohort: Iterable[str]) -> int:
    """Return how many updates close a round of this cohort, 0 for all of it."""
    if state.phase == PHASE_PERSONALIZE:
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
    chosen = derive_rng(seed, round, purpose).choice(len(ids), size=count, replace=False)
    return sorted(ids[i] for i in chosen)

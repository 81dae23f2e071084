"""Selection of the clients that train in a round."""

import math
from collections.abc import Iterable

from edgefl.base.config import FederationConfig
from edgefl.base.rng import derive_rng
from edgefl.base.types import ServerState
from edgefl.learning.algorithms.base import PHASE_CLUSTER, PHASE_PERSONALIZE, read_assignments


def choose_cohort(seed: int, state: ServerState, clients: Iterable[str], count: int) -> tuple[str, ...]:
    """Draw the cohort of a round without replacement.

    Once clients are assigned to clusters, `count` clients of each cluster are drawn. All clients take part in
    the clustering round, because each one needs an assignment. A client that arrives later takes part until
    it is assigned. The function is pure, so the simulator and the aggregator choose the same cohort.

    Args:
        state: the server state before the round.
        clients: ids of the available clients.
        count: number of clients to draw. 0, or more than are available, selects all.

    Returns:
        The ids of the cohort, sorted.
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
    """Return the clients that receive a task in a round over MQTT.

    These are `over_selection` times as many clients as a cohort has.

    Args:
        state: the server state before the round.
        online: ids of the clients that are online.
    """
    # A product such as 1.1 x 10 is slightly above 11 in binary and must not select a twelfth client.
    return choose_cohort(
        config.seed, state, online, math.ceil(config.over_selection * config.clients_per_round - 1e-9)
    )


def count_required_updates(config: FederationConfig, state: ServerState, cohort: Iterable[str]) -> int:
    """Return how many updates close a round, or 0 if the round waits for its whole cohort.

    Args:
        state: the server state before the round.
        cohort: ids of the clients that have a task.
    """
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

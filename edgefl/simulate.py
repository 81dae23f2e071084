"""The federation on one machine, in one process or N, with the same bits as over MQTT."""

from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context

from edgefl.algorithms import DONE, PERSONALIZE, canonical, make_algorithm
from edgefl.client import client_rng, personalize_and_measure
from edgefl.cohort import choose_cohort
from edgefl.config import FederationConfig
from edgefl.errors import ConfigError
from edgefl.learner.base import Learner
from edgefl.learner.litert import LiteRTLearner
from edgefl.plan.spec import Plan
from edgefl.rng import rng_for
from edgefl.types import Broadcast, ClientState, Mixture, ServerState, Shard, Update, Weights

Progress = Callable[[ServerState, Mapping[str, float]], None]
"""Called after each round with the new state and the round's metrics (mean training loss over its samples)."""


@dataclass(frozen=True)
class Federation:
    """What every process of a simulation holds: the same plan, seed and shards."""

    plan: Plan
    config: FederationConfig
    shards: Mapping[str, Shard]


@dataclass(frozen=True)
class Simulation:
    """The end of a simulated federation: the server's last state, and each client's mixture and metrics."""

    state: ServerState
    mixtures: Mapping[str, Mixture]
    metrics: Mapping[str, Mapping[str, float]]


Row = tuple[Broadcast, ClientState, str]
Personal = tuple[Mixture, ClientState, Mapping[str, float]]


class _Site:
    """One process: a learner, made once, and all clients' shards."""

    def __init__(self, federation: Federation, learner: Learner | None = None) -> None:
        self.federation = federation
        self.learner = learner or LiteRTLearner(federation.plan)
        spec = federation.plan.spec
        self.algorithm = make_algorithm(spec.algorithm, self.learner, spec.options)

    def update(self, broadcast: Broadcast, state: ClientState, client_id: str) -> tuple[Update, ClientState]:
        rng = client_rng(self.federation.config.seed, broadcast, client_id)
        return self.algorithm.local_update(broadcast, state, self.federation.shards[client_id], client_id, rng)

    def personalize(self, broadcast: Broadcast, state: ClientState, client_id: str) -> Personal:
        rng = client_rng(self.federation.config.seed, broadcast, client_id)
        shard = self.federation.shards[client_id]
        return personalize_and_measure(self.algorithm, self.learner, broadcast, state, shard, rng)


_site: _Site


def _open_site(federation: Federation) -> None:
    global _site
    _site = _Site(federation)


def _update(broadcast: Broadcast, state: ClientState, client_id: str) -> tuple[Update, ClientState]:
    return _site.update(broadcast, state, client_id)


def _personalize(broadcast: Broadcast, state: ClientState, client_id: str) -> Personal:
    return _site.personalize(broadcast, state, client_id)


def simulate(
    plan: Plan,
    initial: Weights,
    shards: Mapping[str, Shard],
    config: FederationConfig,
    *,
    processes: int = 1,
    learner: Learner | None = None,
    progress: Progress | None = None,
) -> Simulation:
    """Run the federation of `config` over the shards (client id -> shard) and return its end.

    The result does not depend on `processes`. A learner of one's own needs processes=1. Raises ConfigError when there is
    no client.
    """
    if not shards:
        raise ConfigError("no shards to simulate, expected one a client; give at least one")
    if learner is not None and processes != 1:
        raise ConfigError(f"a learner cannot be shared by {processes} processes; leave one of the two out")
    federation = Federation(plan, config, shards)
    if processes == 1:
        site = _Site(federation, learner)
        return _run(
            federation, initial, lambda rows: [site.update(*r) for r in rows], lambda rows: [site.personalize(*r) for r in rows], progress
        )
    # spawn, not fork: a forked child would inherit the interpreter's threads in an unknown state
    with ProcessPoolExecutor(processes, get_context("spawn"), _open_site, (federation,)) as pool:

        def update(rows: list[Row]) -> list[tuple[Update, ClientState]]:
            return list(pool.map(_update, *zip(*rows, strict=True)))

        def personalize(rows: list[Row]) -> list[Personal]:
            return list(pool.map(_personalize, *zip(*rows, strict=True)))

        return _run(federation, initial, update, personalize, progress)


def _run(
    federation: Federation,
    initial: Weights,
    update: Callable[[list[Row]], list[tuple[Update, ClientState]]],
    personalize: Callable[[list[Row]], list[Personal]],
    progress: Progress | None,
) -> Simulation:
    config, spec = federation.config, federation.plan.spec
    algorithm = make_algorithm(spec.algorithm, None, spec.options)
    state = algorithm.init(initial, rng_for(config.seed, 0, "init"))
    clients = {client_id: ClientState() for client_id in sorted(federation.shards)}
    for _ in range(config.rounds):
        cohort = choose_cohort(config.seed, state, clients, config.clients_per_round)
        results = update([(algorithm.broadcast(state, c), clients[c], c) for c in cohort])
        clients.update({c: own for c, (_, own) in zip(cohort, results, strict=True)})
        updates = canonical(state, [each for each, _ in results])
        state = algorithm.aggregate(state, updates)
        if progress:
            samples = sum(each.num_samples for each in updates)
            progress(state, {"loss": sum(each.metrics["loss"] * each.num_samples for each in updates) / samples})
    state = replace(state, phase=PERSONALIZE)
    ends = dict(zip(clients, personalize([(algorithm.broadcast(state, c), clients[c], c) for c in clients]), strict=True))
    return Simulation(replace(state, phase=DONE), {c: end[0] for c, end in ends.items()}, {c: end[2] for c, end in ends.items()})

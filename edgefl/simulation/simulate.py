"""The federation on one machine, in one process or N, or on a Ray cluster, with the same bits as over
MQTT.
"""

import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any

from edgefl.algorithms import DONE, PERSONALIZE, make_algorithm
from edgefl.algorithms.base import Algorithm
from edgefl.config import FederationConfig
from edgefl.errors import ConfigError
from edgefl.learner.base import Learner
from edgefl.learner.litert import LiteRTLearner
from edgefl.plan.spec import Plan
from edgefl.privacy.accountant import within_budget
from edgefl.privacy.mechanism import draw_cohort, private
from edgefl.privacy.noise import key_of_seed
from edgefl.rng import rng_for
from edgefl.security.secagg.summing import extra_traffic, summed
from edgefl.server.plausible import guarded, left_out
from edgefl.simulation.communication_cost import Traffic
from edgefl.simulation.diagnostics import Watch, evaluated, models_on_test
from edgefl.simulation.engines.base import Engine, Serial
from edgefl.simulation.engines.processes import Processes
from edgefl.simulation.engines.site import Ending, Federation, Row
from edgefl.types import Array, ClientState, Labels, Mixture, Scalars, ServerState, Shard, Update, Weights

__all__ = ["Ending", "Record", "Simulation", "simulate"]


@dataclass(frozen=True)
class Record:
    """What a round gave. loss: mean over samples; bytes: as they would cross MQTT; updates: each client's
    samples and metrics.

    measured, likeness: see `snapshot`.
    """

    round: int
    phase: str
    loss: float
    seconds: float
    bytes_up: int
    bytes_down: int
    updates: Mapping[str, Scalars] = field(default_factory=dict)
    measured: Mapping[str, Any] = field(default_factory=dict)
    likeness: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Simulation:
    """The end of a simulated federation: the server's last state, and each client's ending."""

    state: ServerState
    endings: Mapping[str, Ending]

    @property
    def mixtures(self) -> Mapping[str, Mixture]:
        """Each client's mixture."""
        return {client_id: ending.mixture for client_id, ending in self.endings.items()}

    @property
    def metrics(self) -> Mapping[str, Scalars]:
        """Each client's metrics."""
        return {client_id: ending.metrics for client_id, ending in self.endings.items()}


Progress = Callable[[ServerState, Record], None]
Ended = Callable[[str, Ending], Ending]
States = MutableMapping[str, ClientState]


def simulate(
    plan: Plan,
    initial: Weights,
    shards: Mapping[str, Shard],
    config: FederationConfig,
    *,
    processes: int = 1,
    learner: Learner | None = None,
    open_engine: Callable[[Federation], Engine] | None = None,
    test: tuple[Array, Labels] | None = None,
    start: ServerState | None = None,
    states: States | None = None,
    traffic: Traffic | None = None,
    progress: Progress | None = None,
    ended: Ended | None = None,
    noise_key: bytes | None = None,
    evaluate_every: int = 0,
    note: Callable[[str], None] = lambda _: None,
) -> Simulation:
    """Run the federation of `config` over the shards (client id -> shard) and return its end.

    The result depends neither on `processes` nor on `open_engine`, which makes another engine. A learner of
    one's own needs processes=1. test: samples on which every ending is measured too. start: go on from this
    state, with what the clients keep in `states` and were sent in `traffic`; one whose rounds are over is
    only personalized. progress: called after each round with the new state. ended: called with each client's
    ending, and may return a lighter one to keep (without the mixture's arrays, say). noise_key: 32 bytes that
    the noise and the cohorts of `[privacy]` come from; None makes them of the seed, and they hide nothing
    from those who know it. evaluate_every: after so many rounds, and after the last, every client and the
    server's models are evaluated, see `snapshot`; 0: never. note: gets a line about each round that is
    skipped, see `plausible`.
    over_selection, late and budget_s are of devices that differ in speed, and change nothing here.
    Raises ConfigError when there is no client or the mode is async, DataError that names client and round
    when a loss is no number, EdgeflError when a process is killed.
    """
    if not shards:
        raise ConfigError("no shards to simulate, expected one a client; give at least one")
    if config.mode == "async":
        raise ConfigError(
            "the simulator has no clock to play mode 'async' by; simulate mode 'sync', or run it over MQTT"
        )
    if processes < 1:
        raise ConfigError(f"{processes} processes, expected at least 1")
    if learner is not None and processes != 1:
        raise ConfigError(f"a learner cannot be shared by {processes} processes; leave one of the two out")
    federation = Federation(plan, config.seed, shards, test, config.codec)
    if config.privacy.is_on and config.privacy.population != len(shards):
        raise ConfigError(
            f"[privacy] population is {config.privacy.population}, expected {len(shards)}, as many as there "
            "are clients"
        )
    config = within_budget(config) if config.privacy.max_epsilon else config
    key = key_of_seed(config.seed) if noise_key is None else noise_key
    algorithm = private(make_algorithm(plan.spec.algorithm, None, plan.spec.options), config, plan.spec, key)
    state = algorithm.init(initial, rng_for(config.seed, 0, "init")) if start is None else start
    own: States = {} if states is None else states
    if open_engine is not None:
        made = open_engine(federation)
    else:
        made = Serial(federation, learner) if processes == 1 else Processes(federation, processes)
    counted = Traffic(codec=config.codec) if traffic is None else traffic
    local: Learner | None = None
    with made as engine:
        while state.round <= config.rounds and state.phase not in (PERSONALIZE, DONE):
            cohort = draw_cohort(config, key, state, shards.keys() - left_out(state))
            round_algorithm = guarded(summed(algorithm, config, state, cohort), config, note)
            more = extra_traffic(config, algorithm, state, cohort)
            watch = Watch(plan, state)
            state, record = _play(engine, round_algorithm, state, own, cohort, counted, watch)
            record = replace(
                record, bytes_up=record.bytes_up + more[0], bytes_down=record.bytes_down + more[1]
            )
            measured = watch.measured(state)
            if evaluate_every and (record.round % evaluate_every == 0 or record.round == config.rounds):
                measured["clients"] = evaluated(engine, algorithm, state, own, shards)
                if test is not None:
                    local = local or learner or LiteRTLearner(plan)
                    measured["models"] = models_on_test(plan, local, state, *test)
            record = replace(record, measured=measured, likeness=watch.likeness(state))
            if progress:
                progress(state, record)
        state = replace(state, phase=PERSONALIZE)
        endings = {}
        clients = sorted(shards)
        rows = ((algorithm.broadcast(state, c), own.get(c, ClientState()), c) for c in clients)
        for client_id, (ending, kept) in zip(clients, engine.personalize(rows), strict=True):
            own[client_id] = kept
            endings[client_id] = ended(client_id, ending) if ended else ending
    return Simulation(replace(state, phase=DONE), endings)


def _play(
    engine: Engine,
    algorithm: Algorithm,
    state: ServerState,
    own: States,
    cohort: tuple[str, ...],
    traffic: Traffic,
    watch: Watch,
) -> tuple[ServerState, Record]:
    """Play one round. Updates are folded in as they come, so that memory does not grow with the cohort."""
    began = time.perf_counter()
    told: dict[str, dict[str, float]] = {}
    bytes_up = 0
    bytes_down = 0

    def rows() -> Iterator[Row]:
        nonlocal bytes_down
        for client_id in cohort:
            broadcast = algorithm.broadcast(state, client_id)
            bytes_down += traffic.down(broadcast, client_id)
            yield broadcast, own.get(client_id, ClientState()), client_id

    def updates() -> Iterator[Update]:
        nonlocal bytes_up
        for update, kept in engine.update(rows()):
            own[update.client_id] = kept
            bytes_up += traffic.up(update)
            watch.take(update)
            told[update.client_id] = {"num_samples": float(update.num_samples), **update.metrics}
            yield update

    after = algorithm.aggregate(state, updates())
    traffic.close_round(after.models)
    samples = sum(each["num_samples"] for each in told.values())
    loss = (
        sum(each["loss"] * each["num_samples"] for each in told.values()) / samples
        if samples
        else float("nan")
    )
    return after, Record(
        state.round, state.phase, loss, time.perf_counter() - began, bytes_up, bytes_down, told
    )

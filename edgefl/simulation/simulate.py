"""The federation on one machine, in one process or N, or on a Ray cluster, with the same bits as over
MQTT.
"""

import logging
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from edgefl.algorithms import DONE, PERSONALIZE, make_algorithm
from edgefl.algorithms.base import Algorithm
from edgefl.client.evaluation import ACCURACY
from edgefl.client.runner import WorkItem
from edgefl.config import FederationConfig
from edgefl.errors import ConfigError
from edgefl.learner.base import Learner
from edgefl.learner.litert import LiteRTLearner
from edgefl.plan.spec import Plan
from edgefl.privacy.accountant import within_budget
from edgefl.privacy.mechanism import draw_cohort
from edgefl.privacy.noise import key_of_seed
from edgefl.rng import rng_for
from edgefl.security.secagg.summing import extra_traffic
from edgefl.server.divergence import FederationDivergedError, explain_no_progress, find_divergence
from edgefl.server.plausible import left_out
from edgefl.server.spread import spread_of
from edgefl.server.stack import server_stack
from edgefl.simulation.clients import ClientResult, Federation, personalize, train, work_items
from edgefl.simulation.communication_cost import Traffic
from edgefl.simulation.diagnostics import Watch, evaluated, models_on_test
from edgefl.simulation.engines.base import Engine, Serial
from edgefl.simulation.engines.processes import Processes
from edgefl.types import Array, ClientState, Labels, Mixture, Scalars, ServerState, Shard, Update, Weights

LOGGER = logging.getLogger(__name__)

__all__ = ["ClientResult", "Record", "Simulation", "simulate"]


@dataclass(frozen=True)
class Record:
    """What happened in one round.

    Args:
        round: the number of the round, from 1.
        phase: the phase of the round.
        loss: mean training loss over samples.
        seconds: wall-clock time.
        bytes_up: payload bytes from the clients, as they would cross MQTT.
        bytes_down: payload bytes to the clients.
        updates: number of samples and metrics by client id.
        accuracy_mean: mean over clients of the accuracy that they report; NaN when none does.
        accuracy_p10: the 10th percentile over clients.
        accuracy_p90: the 90th percentile over clients.
        measured: see `diagnostics`.
        likeness: see `diagnostics`.
        hours: the virtual time at which the round closed, in hours; NaN in a simulation without a clock. The
            seconds are virtual too in a simulation with a clock.
    """

    round: int
    phase: str
    loss: float
    seconds: float
    bytes_up: int
    bytes_down: int
    updates: Mapping[str, Scalars] = field(default_factory=dict)
    accuracy_mean: float = math.nan
    accuracy_p10: float = math.nan
    accuracy_p90: float = math.nan
    measured: Mapping[str, Any] = field(default_factory=dict)
    likeness: Mapping[str, Any] | None = None
    hours: float = math.nan


@dataclass(frozen=True)
class Simulation:
    """The end of a simulated federation.

    Args:
        state: the last state of the server.
        results: what personalization returned, by client id.
        bytes_down: payload bytes to the clients for the personalization, after all rounds.
    """

    state: ServerState
    results: Mapping[str, ClientResult]
    bytes_down: int = 0

    @property
    def mixtures(self) -> Mapping[str, Mixture]:
        """Each client's mixture."""
        return {client_id: result.mixture for client_id, result in self.results.items()}

    @property
    def metrics(self) -> Mapping[str, Scalars]:
        """Each client's metrics."""
        return {client_id: result.metrics for client_id, result in self.results.items()}


Progress = Callable[[ServerState, Record], None]
KeepResult = Callable[[str, ClientResult], ClientResult]
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
    keep_result: KeepResult = lambda client_id, result: result,
    noise_key: bytes | None = None,
    evaluate_every: int = 0,
    losses: Sequence[float | None] = (),
    without_rounds: Collection[str] = (),
) -> Simulation:
    """Run the rounds of a federation and the personalization of all clients.

    The result depends neither on `processes` nor on `open_engine`. `over_selection`, `late` and `budget_s`
    of the configuration are about devices of different speed and change nothing here.

    Args:
        plan: the plan of the federation.
        initial: the plan's initial weights.
        shards: samples by client id.
        config: the federation.
        processes: number of processes that run clients.
        learner: runs the plan, with one process only; None makes a LiteRTLearner in each process.
        open_engine: makes another engine than those of this machine.
        test: samples that stand for all clients. Every mixture is measured on them too.
        start: continue from this state. A state whose rounds are over is personalized only.
        states: what the clients keep between rounds, by client id; updated in place.
        traffic: communication cost up to `start`; updated in place.
        progress: called after each round with the new state and the record of the round.
        keep_result: called with each client's result. Returns the result to keep, perhaps a smaller one, see
            `without_mixture`.
        noise_key: 32 bytes from which the noise and the cohorts of `[privacy]` are drawn. None derives them
            from the seed; they then hide nothing from anyone who knows the seed.
        evaluate_every: evaluate every client and the server's models after this many rounds and after the
            last one, see `diagnostics`; 0 never evaluates.
        losses: mean training loss of each round before `start`, None or NaN for a round without one.
        without_rounds: ids of clients that take part in no round and are personalized.

    Raises:
        FederationDivergedError: training diverged, see `divergence`.
        ConfigError: there is no client, the mode is async, or the algorithm cannot be masked or made private.
        DataError: a client cannot train. Names client and round.
        EdgeflError: a process was killed.
    """
    _check(config, len(shards), processes, learner)
    if config.privacy.max_epsilon:
        config = within_budget(config)
    key = key_of_seed(config.seed) if noise_key is None else noise_key
    clients = shards.keys() - set(without_rounds)

    def cohort_of(state: ServerState) -> tuple[str, ...]:
        return draw_cohort(config, key, state, clients - left_out(state))

    algorithm = server_stack(
        make_algorithm(plan.spec.algorithm, None, plan.spec.options),
        config,
        plan.spec,
        key=key,
        cohort_of=cohort_of,
    )
    state = algorithm.init(initial, rng_for(config.seed, 0, "init")) if start is None else start
    states = {} if states is None else states
    traffic = Traffic(codec=config.codec, settings=config.task_settings) if traffic is None else traffic
    federation = Federation(plan, config.seed, shards, test)
    known = list(losses)
    with _engine(federation, processes, learner, open_engine) as engine:
        while state.round <= config.rounds and state.phase not in (PERSONALIZE, DONE):
            watch = Watch(plan, state)
            state, record = _play_round(
                engine, algorithm, config, state, states, cohort_of(state), traffic, watch
            )
            measured = watch.measured(state)
            if evaluate_every and (record.round % evaluate_every == 0 or record.round == config.rounds):
                measured["clients"] = evaluated(engine, algorithm, state, states, shards, config.codec)
                if test is not None:
                    learner = learner or LiteRTLearner(plan)
                    measured["models"] = models_on_test(plan, learner, state, *test)
            if progress:
                progress(state, replace(record, measured=measured, likeness=watch.likeness(state)))
            known.append(record.loss)
            if config.privacy.is_on:
                continue
            classes, accuracy = plan.spec.num_classes, record.accuracy_mean
            if found := find_divergence(known, classes, accuracy, rounds=config.rounds):
                raise FederationDivergedError(found)
            is_last = state.round > config.rounds or state.phase in (PERSONALIZE, DONE)
            if is_last and (warning := explain_no_progress(known, classes, accuracy)):
                LOGGER.warning(warning)
        state = replace(state, phase=PERSONALIZE)
        results, bytes_down = _personalize_all(
            engine, algorithm, config, state, states, sorted(shards), traffic, keep_result
        )
    return Simulation(replace(state, phase=DONE), results, bytes_down)


def check_simulated(config: FederationConfig) -> None:
    """Raise ConfigError when the simulator cannot play a configuration."""
    if config.mode == "async" and config.fleet is None:
        raise ConfigError(
            "mode 'async' needs a clock; add the table [fleet] to simulate it in virtual time, or run it "
            "over MQTT"
        )


def _check(config: FederationConfig, clients: int, processes: int, learner: Learner | None) -> None:
    """Raise ConfigError when a federation cannot be simulated in this way."""
    if not clients:
        raise ConfigError("no shards to simulate, expected one a client; give at least one")
    check_simulated(replace(config, fleet=None))
    if processes < 1:
        raise ConfigError(f"{processes} processes, expected at least 1")
    if learner is not None and processes != 1:
        raise ConfigError(f"a learner cannot be shared by {processes} processes; leave one of the two out")
    if config.privacy.is_on and config.privacy.population != clients:
        raise ConfigError(
            f"[privacy] population is {config.privacy.population}, expected {clients}, as many as there are "
            "clients"
        )


def _engine(
    federation: Federation,
    processes: int,
    learner: Learner | None,
    open_engine: Callable[[Federation], Engine] | None,
) -> Engine:
    if open_engine is not None:
        return open_engine(federation)
    return Serial(federation, learner) if processes == 1 else Processes(federation, processes)


def _play_round(
    engine: Engine,
    algorithm: Algorithm,
    config: FederationConfig,
    state: ServerState,
    states: States,
    cohort: tuple[str, ...],
    traffic: Traffic,
    watch: Watch,
) -> tuple[ServerState, Record]:
    """Play one round. Updates are aggregated as they arrive, so that memory does not grow with the cohort."""
    bytes_up, bytes_down = extra_traffic(config, algorithm, state, cohort)
    start = time.perf_counter()
    figures: dict[str, dict[str, float]] = {}

    def items() -> Iterator[WorkItem]:
        nonlocal bytes_down
        for item in work_items(
            algorithm, state, cohort, states, config.codec, evaluate=config.reports_accuracy
        ):
            bytes_down += traffic.down(item.broadcast, item.client_id)
            yield item

    def updates() -> Iterator[Update]:
        nonlocal bytes_up
        for update, client_state in engine.run(train, items()):
            states[update.client_id] = client_state
            bytes_up += traffic.up(update)
            watch.take(update)
            figures[update.client_id] = {"num_samples": float(update.num_samples), **update.metrics}
            yield update

    after = algorithm.aggregate(state, updates())
    traffic.close_round(after.models)
    seconds = time.perf_counter() - start
    accuracy = spread_of(ACCURACY, figures.values())
    return after, Record(
        state.round,
        state.phase,
        _mean_loss(figures.values()),
        seconds,
        bytes_up,
        bytes_down,
        figures,
        accuracy.mean,
        accuracy.p10,
        accuracy.p90,
    )


def _mean_loss(figures: Collection[Scalars]) -> float:
    samples = sum(client["num_samples"] for client in figures)
    if not samples:
        return float("nan")
    return sum(client["loss"] * client["num_samples"] for client in figures) / samples


def _personalize_all(
    engine: Engine,
    algorithm: Algorithm,
    config: FederationConfig,
    state: ServerState,
    states: States,
    clients: list[str],
    traffic: Traffic,
    keep_result: KeepResult,
) -> tuple[dict[str, ClientResult], int]:
    """Personalize every client. Return what `keep_result` keeps of their results, and the bytes sent to
    them.
    """
    results = {}
    bytes_down = 0

    def items() -> Iterator[WorkItem]:
        nonlocal bytes_down
        for item in work_items(algorithm, state, clients, states, config.codec):
            bytes_down += traffic.down(item.broadcast, item.client_id)
            yield item

    for client_id, (result, client_state) in zip(clients, engine.run(personalize, items()), strict=True):
        states[client_id] = client_state
        results[client_id] = keep_result(client_id, result)
    return results, bytes_down

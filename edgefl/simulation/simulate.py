"""Simulates a federation with an engine: in one process, in several processes, or on a Ray cluster.

The results are the same, bit for bit, as in a federation over MQTT.
"""

import logging
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from edgefl.base.config import FederationConfig
from edgefl.base.errors import ConfigError
from edgefl.base.rng import derive_rng
from edgefl.base.types import (
    Array,
    ClientState,
    Labels,
    Mixture,
    Scalars,
    ServerState,
    Shard,
    Update,
    Weights,
)
from edgefl.learning.algorithms import PHASE_DONE, PHASE_PERSONALIZE, make_algorithm
from edgefl.learning.algorithms.base import Algorithm
from edgefl.learning.client.runner import WorkItem
from edgefl.learning.privacy.accountant import limit_to_budget
from edgefl.learning.privacy.mechanism import draw_cohort
from edgefl.learning.privacy.noise import derive_noise_key
from edgefl.program.learner.base import Learner
from edgefl.program.learner.litert import LiteRTLearner
from edgefl.program.plan.spec import Plan, read_num_classes
from edgefl.protocol.security.secagg.masked_aggregation import count_secagg_bytes
from edgefl.protocol.server.divergence import explain_no_progress, find_divergence
from edgefl.protocol.server.plausibility import list_left_out_clients
from edgefl.protocol.server.reported_figures import limit_figures
from edgefl.protocol.server.rounds import count_needed_updates
from edgefl.protocol.server.server_algorithm import build_server_algorithm
from edgefl.protocol.server.spread import measure_loss, summarize_accuracy
from edgefl.protocol.wire.divergence_message import Divergence, FederationDivergedError
from edgefl.simulation.clients import (
    ClientResult,
    DivergedClient,
    SimulatedFederation,
    make_work_items,
    personalize_client,
    train_unless_diverged,
)
from edgefl.simulation.communication_cost import CommunicationCost
from edgefl.simulation.diagnostics import RoundDiagnostics, evaluate_clients, evaluate_models
from edgefl.simulation.engines.base import Engine, OpenEngine, SerialEngine

LOGGER = logging.getLogger(__name__)

__all__ = ["Checkpoint", "ClientResult", "FleetFigures", "Record", "Simulation", "simulate"]


@dataclass(frozen=True)
class Record:
    """The record of one round.

    Attributes:
        round: number of the round, from 1.
        phase: phase of the round.
        loss: median training loss over clients. NaN if fewer than half of them report a loss.
        seconds: duration of the round in seconds: wall-clock time, or virtual time for a fleet.
        bytes_up: payload bytes that the clients would send over MQTT. For a fleet, accepted updates only.
        bytes_down: payload bytes that the clients would receive over MQTT. For a fleet, models only.
        updates: number of samples (`num_samples`) and metrics by client id.
        accuracy_mean: mean accuracy over clients, or R2 for another task than classification. NaN if no
            client reports it. `edgefl.base.verdict.read_round_metric` returns the metric.
        accuracy_p10: 10th percentile of the accuracy over clients.
        accuracy_p90: 90th percentile of the accuracy over clients.
        measured: diagnostics of the round, see `edgefl.simulation.diagnostics`.
        similarity: similarity of the clients, see `RoundDiagnostics.measure_similarity`.
        hours: virtual time at the end of the round in hours. NaN in a simulation without virtual time.
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
    similarity: Mapping[str, Any] | None = None
    hours: float = math.nan


@dataclass
class FleetFigures:
    """The number of events in a federation in virtual time.

    Attributes:
        hours: virtual time at the end of the last closed round, in hours.
        acknowledged: number of updates for which the client received the outcome `ok`.
        accepted: number of updates that closed rounds accepted.
        late: number of accepted updates that answer an earlier round.
        dropped: number of updates that were missing when their round closed.
        trained: number of times that a client trained.
        lost_messages: number of messages that were lost.
        outages: number of times that a client went offline, at the end of its daily hours too.
        lost_clients: number of clients that left for good.
        events: number of events that the server handled.
    """

    hours: float = 0.0
    acknowledged: int = 0
    accepted: int = 0
    late: int = 0
    dropped: int = 0
    trained: int = 0
    lost_messages: int = 0
    outages: int = 0
    lost_clients: int = 0
    events: int = 0


@dataclass(frozen=True)
class Simulation:
    """The result of a simulated federation.

    Attributes:
        state: the last server state.
        results: client results by client id.
        bytes_down: payload bytes that the clients received for the personalization.
        fleet: the events of the fleet. None in a simulation without virtual time.
    """

    state: ServerState
    results: Mapping[str, ClientResult]
    bytes_down: int = 0
    fleet: FleetFigures | None = None

    @property
    def mixtures(self) -> Mapping[str, Mixture]:
        """The mixtures by client id."""
        return {client_id: result.mixture for client_id, result in self.results.items()}

    @property
    def metrics(self) -> Mapping[str, Scalars]:
        """The metrics of the personalization by client id."""
        return {client_id: result.metrics for client_id, result in self.results.items()}


RoundCallback = Callable[[ServerState, Record], None]
"""Receives the server state after a round, and the record of the round."""
KeepResult = Callable[[str, ClientResult], ClientResult]
"""Receives a client id and its client result. Returns the result to keep, perhaps a smaller one."""
ClientStates = MutableMapping[str, ClientState]


@dataclass(frozen=True)
class Checkpoint:
    """Where a simulation begins or continues.

    Attributes:
        server: the server state. After the last round, clients are only personalized. None starts with
            round 1.
        clients: client states by client id, updated in place.
        traffic: communication cost of the rounds before, updated in place. None starts with no bytes.
        losses: median training loss of each round before. None or NaN for a round without a loss.
    """

    server: ServerState | None = None
    clients: ClientStates = field(default_factory=dict)
    traffic: CommunicationCost | None = None
    losses: Sequence[float | None] = ()


def simulate(
    plan: Plan,
    initial: Weights,
    shards: Mapping[str, Shard],
    config: FederationConfig,
    *,
    open_learner: Callable[[Plan], Learner] = LiteRTLearner,
    open_engine: OpenEngine = SerialEngine,
    test: tuple[Array, Labels] | None = None,
    checkpoint: Checkpoint | None = None,
    progress: RoundCallback | None = None,
    keep_result: KeepResult = lambda client_id, result: result,
    noise_key: bytes | None = None,
    evaluate_every: int = 0,
    without_rounds: Collection[str] = (),
    can_lower_rate: bool = False,
) -> Simulation:
    """Run the rounds of a federation, and personalize all clients.

    A client whose loss is not finite is missing from the round, as over MQTT.

    The results do not depend on `open_engine`. `over_selection`, `late` and `budget_s`
    of the configuration have no effect, because no simulated client is slower than another.

    Args:
        plan: the plan of the federation.
        initial: the plan's initial weights.
        shards: samples by client id.
        config: the configuration of the federation.
        open_learner: makes the learner that runs the plan, see `SimulatedFederation`.
        open_engine: opens the engine that runs clients. The default runs them in this process.
        test: common test samples: samples of shape (n, *input_shape), float32, and labels of shape (n,),
            int64. Every mixture is measured on them too. None measures nothing on common samples.
        checkpoint: where to begin. None starts with round 1 and new clients.
        progress: called after each round with the new state and the record of the round.
        keep_result: called with each client result, see `drop_mixture`. Its return value is kept.
        noise_key: 32 bytes from which the noise and the cohorts of `[privacy]` are drawn. None derives them
            from the seed. Anyone with the seed can then remove the noise.
        evaluate_every: number of rounds after which every client and the server's models are evaluated
            again. They are also evaluated after the last round. 0 never evaluates.
        without_rounds: ids of clients that take part in no round and are only personalized.
        can_lower_rate: see `edgefl.protocol.server.divergence.find_divergence`.

    Returns:
        The last server state and the client results.

    Raises:
        FederationDivergedError: training diverged, see `edgefl.protocol.server.divergence`.
        ConfigError: there is no client, the mode is async, or `[privacy]` does not fit the algorithm or the
            clients.
        ModuleNotFoundError: `max_epsilon` is set, and the extra `dp` is not installed.
        DataError: a client cannot train. The error names client and round.
        DivergedError: a client has no model to personalize or to evaluate with a finite loss. The error names
            the client.
        EdgeflError: a process that runs clients was killed, or Ray cannot be reached.
    """
    _check(config, len(shards))
    if config.privacy.max_epsilon:
        config = limit_to_budget(config)
    key = derive_noise_key(config.seed) if noise_key is None else noise_key
    clients = shards.keys() - set(without_rounds)

    def draw_round_cohort(state: ServerState) -> tuple[str, ...]:
        return draw_cohort(config, key, state, clients - list_left_out_clients(state))

    algorithm = build_server_algorithm(
        make_algorithm(plan.spec.algorithm, None, plan.spec.options),
        config,
        plan.spec,
        key=key,
        draw_cohort=draw_round_cohort,
    )
    checkpoint = checkpoint or Checkpoint()
    state = checkpoint.server or algorithm.init(initial, derive_rng(config.seed, 0, "init"))
    states = checkpoint.clients
    traffic = checkpoint.traffic or CommunicationCost(codec=config.codec, settings=config.task_settings)
    federation = SimulatedFederation(
        plan=plan, seed=config.seed, shards=shards, test=test, open_learner=open_learner
    )
    all_losses = list(checkpoint.losses)
    learner: Learner | None = None
    with open_engine(federation) as engine:
        while state.round <= config.rounds and state.phase not in (PHASE_PERSONALIZE, PHASE_DONE):
            diagnostics = RoundDiagnostics(plan, state)
            state, record = _play_round(
                engine, algorithm, config, state, states, draw_round_cohort(state), traffic, diagnostics
            )
            measured = diagnostics.summarize(state)
            if evaluate_every and (record.round % evaluate_every == 0 or record.round == config.rounds):
                measured["clients"] = evaluate_clients(engine, algorithm, state, states, shards, config.codec)
                if test is not None:
                    learner = learner or open_learner(plan)
                    measured["models"] = evaluate_models(plan, learner, state, *test)
            if progress:
                progress(
                    state,
                    replace(record, measured=measured, similarity=diagnostics.measure_similarity(state)),
                )
            all_losses.append(record.loss)
            if config.privacy.is_on:
                continue
            classes = read_num_classes(plan.spec) or 0
            accuracy = summarize_accuracy(record.updates.values()).median
            divergence = find_divergence(
                all_losses,
                classes,
                accuracy,
                rounds=config.rounds,
                can_lower_rate=can_lower_rate,
            )
            if divergence:
                raise FederationDivergedError(divergence)
            is_last = state.round > config.rounds or state.phase in (PHASE_PERSONALIZE, PHASE_DONE)
            if is_last and (warning := explain_no_progress(all_losses, classes, accuracy)):
                LOGGER.warning(warning)
        state = replace(state, phase=PHASE_PERSONALIZE)
        results, bytes_down = _personalize_all(
            engine, algorithm, config, state, states, sorted(shards), traffic, keep_result
        )
    return Simulation(state=replace(state, phase=PHASE_DONE), results=results, bytes_down=bytes_down)


def check_simulated(config: FederationConfig) -> None:
    """Check that the simulator can run a configuration.

    Args:
        config: the configuration of the federation.

    Raises:
        ConfigError: the mode is async and there is no table `[fleet]`.
    """
    if config.mode == "async" and config.fleet is None:
        raise ConfigError(
            "mode 'async' needs a clock, which this simulation lacks; add the table [fleet] to simulate in "
            "virtual time, or run the federation over MQTT"
        )


def _check(config: FederationConfig, clients: int) -> None:
    """Raise ConfigError if a federation cannot be simulated with these arguments."""
    if not clients:
        raise ConfigError("there are no shards to simulate, expected one for each client; pass at least one")
    check_simulated(replace(config, fleet=None))
    if config.privacy.is_on and config.privacy.population != clients:
        raise ConfigError(
            f"[privacy] population is {config.privacy.population}, expected {clients}, the number of "
            "clients; change it"
        )


def _check_diverged(diverged: Sequence[DivergedClient], number: int, size: int, quorum: float) -> None:
    """Warn about diverged clients, and raise FederationDivergedError if the round misses its quorum."""
    for client in diverged:
        LOGGER.warning(f"no update of {client.client_id} in this round; {client.reason}")
    if diverged and size - len(diverged) < count_needed_updates(quorum, size):
        raise FederationDivergedError(Divergence(round=number, clients=len(diverged), cohort=size))


def _play_round(
    engine: Engine,
    algorithm: Algorithm,
    config: FederationConfig,
    state: ServerState,
    states: ClientStates,
    cohort: tuple[str, ...],
    traffic: CommunicationCost,
    diagnostics: RoundDiagnostics,
) -> tuple[ServerState, Record]:
    """Run one round.

    Updates are aggregated as they arrive, so that memory does not grow with the cohort.
    """
    bytes_up, bytes_down = count_secagg_bytes(config, algorithm, state, cohort)
    start = time.perf_counter()
    figures: dict[str, dict[str, float]] = {}
    diverged: list[DivergedClient] = []

    def make_items() -> Iterator[WorkItem]:
        nonlocal bytes_down
        for item in make_work_items(
            algorithm, state, cohort, states, config.codec, evaluate=config.reports_accuracy
        ):
            bytes_down += traffic.count_bytes_down(item.broadcast, item.client_id)
            yield item

    def iterate_updates() -> Iterator[Update]:
        nonlocal bytes_up
        for answer in engine.run(train_unless_diverged, make_items()):
            if isinstance(answer, DivergedClient):
                diverged.append(answer)
                continue
            trained, client_state = answer
            states[trained.client_id] = client_state
            update = replace(trained, metrics=limit_figures(trained.metrics, config.max_samples))
            bytes_up += traffic.count_bytes_up(update)
            diagnostics.add(update)
            figures[update.client_id] = {**update.metrics, "num_samples": float(update.num_samples)}
            yield update
        _check_diverged(diverged, state.round, len(cohort), config.quorum)

    after = algorithm.aggregate(state, iterate_updates())
    traffic.close_round(after.models)
    seconds = time.perf_counter() - start
    accuracy = summarize_accuracy(figures.values())
    return after, Record(
        round=state.round,
        phase=state.phase,
        loss=measure_loss(figures.values()),
        seconds=seconds,
        bytes_up=bytes_up,
        bytes_down=bytes_down,
        updates=figures,
        accuracy_mean=accuracy.mean,
        accuracy_p10=accuracy.p10,
        accuracy_p90=accuracy.p90,
    )


def _personalize_all(
    engine: Engine,
    algorithm: Algorithm,
    config: FederationConfig,
    state: ServerState,
    states: ClientStates,
    clients: list[str],
    traffic: CommunicationCost,
    keep_result: KeepResult,
) -> tuple[dict[str, ClientResult], int]:
    """Personalize every client.

    Returns:
        The results that `keep_result` returned, and the number of bytes that were sent to the clients.
    """
    results = {}
    bytes_down = 0

    def make_items() -> Iterator[WorkItem]:
        nonlocal bytes_down
        for item in make_work_items(algorithm, state, clients, states, config.codec):
            bytes_down += traffic.count_bytes_down(item.broadcast, item.client_id)
            yield item

    for client_id, (result, client_state) in zip(
        clients, engine.run(personalize_client, make_items()), strict=True
    ):
        states[client_id] = client_state
        results[client_id] = keep_result(client_id, result)
    return results, bytes_down

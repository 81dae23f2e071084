"""Simulates a federation in virtual time, with devices that are slow, offline or lost.

Clients train as on a device, and the round server decides as over MQTT. The table `[fleet]` defines what is
simulated: how long a client trains, when it is online, how long a message takes, and which messages are lost.
Without delays and losses, the result has the same bits as the result of `edgefl.simulation.simulate`.

A status, a chunk and a blob are never lost, because MQTT delivers them at least once. A task, an announcement
and a receipt are sent at most once, so they can be lost.
"""

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np

from edgefl.base.config import FederationConfig, FleetConfig
from edgefl.base.errors import ConfigError, RoundError
from edgefl.base.rng import derive_rng
from edgefl.base.types import Broadcast, ClientState, ServerState, Weights
from edgefl.learning.algorithms import (
    PHASE_PERSONALIZE,
    Algorithm,
    complete_algorithm_options,
    make_algorithm,
)
from edgefl.learning.algorithms.cohort import choose_task_clients
from edgefl.learning.client.runner import WorkItem
from edgefl.program.plan.spec import Plan, encode_plan
from edgefl.protocol.device.events import (
    BlobChunkReceived,
    BlobManifestReceived,
    ClientAction,
    ClientEvent,
    ReceiptReceived,
    Subscribe,
    TaskReceived,
    Train,
    Unsubscribe,
)
from edgefl.protocol.server.events import (
    Action,
    AggregateUpdates,
    BeginReceived,
    ChunkReceived,
    CloseRound,
    Event,
    SaveState,
    StateAggregated,
    Stop,
    WriteLog,
)
from edgefl.protocol.server.faulty_updates import aggregate_usable
from edgefl.protocol.server.round_server import RoundServer
from edgefl.protocol.server.server_algorithm import build_server_algorithm
from edgefl.protocol.server.spread import summarize_accuracy
from edgefl.protocol.wire.machine_events import LinkLoad, Publish, TimePassed
from edgefl.protocol.wire.messages import Manifest, Receipt, Task
from edgefl.protocol.wire.tensors import decode_subset, encode_models
from edgefl.protocol.wire.topics import FederationTopics, parse_topic
from edgefl.simulation.clients import ClientResult, personalize_client, train_client
from edgefl.simulation.engines.base import Engine
from edgefl.simulation.in_memory_store import InMemoryStore
from edgefl.simulation.simulate import FleetFigures, KeepResult, Record, RoundCallback
from edgefl.simulation.simulated_client import SimulatedClient, TrainedUpdate

DAY_S = 86_400.0
HOUR_S = 3600.0
MAX_BATCH_CLIENTS = 64
"""Maximum number of clients that are trained together, so that memory does not grow with the fleet."""


@dataclass(frozen=True)
class TrainingJob:
    """The training of one client for one task.

    Attributes:
        client_id: the client.
        task: the task.
        models: the models of the task by name.
    """

    client_id: str
    task: Task
    models: Mapping[str, Weights]


class Trainer(Protocol):
    """Trains the clients of a simulation."""

    def count_samples(self, client_id: str) -> int:
        """Return the number of training samples of a client."""

    def count_samples_seen(self, job: TrainingJob) -> float:
        """Return how many samples a client processes in a job: its training samples times the epochs."""

    def run(self, jobs: Sequence[TrainingJob]) -> Iterator[TrainedUpdate]:
        """Yield the update of each job, in order.

        Args:
            jobs: the trainings. No client occurs twice.
        """

    def complete(self, client_id: str) -> None:
        """Store the state of a client that has finished its last job."""


class EngineTrainer:
    """Trains clients with the client runner in an engine.

    Args:
        engine: runs the client functions.
        num_samples: number of training samples by client id.
        keep_result: called with each client result. Its return value is kept.

    Attributes:
        states: client states by client id.
        results: client results by client id.
    """

    def __init__(
        self,
        plan: Plan,
        engine: Engine,
        num_samples: Mapping[str, int],
        keep_result: KeepResult = lambda client_id, result: result,
    ) -> None:
        self._engine = engine
        self._num_samples = num_samples
        self._keep_result = keep_result
        options = complete_algorithm_options(plan.spec.algorithm, plan.spec.options)
        self._epochs = float(options.get("epochs", 1))
        self._pending: dict[str, ClientState] = {}
        self.states: dict[str, ClientState] = {}
        self.results: dict[str, ClientResult] = {}

    def count_samples(self, client_id: str) -> int:
        """See `Trainer`."""
        return self._num_samples[client_id]

    def count_samples_seen(self, job: TrainingJob) -> float:
        """See `Trainer`."""
        return self._epochs * self._num_samples[job.client_id]

    def run(self, jobs: Sequence[TrainingJob]) -> Iterator[TrainedUpdate]:
        """See `Trainer`."""
        for phase_is_last, group in itertools.groupby(jobs, lambda job: job.task.phase == PHASE_PERSONALIZE):
            phase_jobs = list(group)
            yield from (self._personalize(phase_jobs) if phase_is_last else self._train(phase_jobs))

    def _train(self, jobs: Sequence[TrainingJob]) -> Iterator[TrainedUpdate]:
        for job, (update, state) in zip(
            jobs, self._engine.run(train_client, self._make_items(jobs)), strict=True
        ):
            self._pending[job.client_id] = state
            blob = encode_models(update.deltas, job.task.codec)
            yield TrainedUpdate(blob, update.num_samples, update.metrics)

    def _personalize(self, jobs: Sequence[TrainingJob]) -> Iterator[TrainedUpdate]:
        for job, (result, state) in zip(
            jobs, self._engine.run(personalize_client, self._make_items(jobs)), strict=True
        ):
            self._pending[job.client_id] = state
            self.results[job.client_id] = self._keep_result(job.client_id, result)
            blob = encode_models({}, job.task.codec)
            yield TrainedUpdate(blob, self._num_samples[job.client_id], result.metrics)

    def _make_items(self, jobs: Iterable[TrainingJob]) -> Iterator[WorkItem]:
        for job in jobs:
            task = job.task
            broadcast = Broadcast(round=task.round, phase=task.phase, models=job.models, scalars=task.scalars)
            state = self.states.get(job.client_id, ClientState())
            evaluate = task.settings.get("evaluate", 0.0) > 0
            yield WorkItem(
                broadcast=broadcast, state=state, client_id=job.client_id, codec=task.codec, evaluate=evaluate
            )

    def complete(self, client_id: str) -> None:
        """See `Trainer`."""
        self.states[client_id] = self._pending.pop(client_id)


def simulate_fleet(
    plan: Plan,
    initial: Weights,
    config: FederationConfig,
    client_ids: Iterable[str],
    trainer: Trainer,
    *,
    log: Callable[[float, str], None] = lambda hours, line: None,
    progress: RoundCallback = lambda state, record: None,
    can_lower_rate: bool = False,
) -> tuple[ServerState, FleetFigures]:
    """Simulate a federation in virtual time.

    Args:
        initial: the plan's initial weights.
        config: the configuration of the federation, with the table `[fleet]`.
        trainer: trains the clients.
        log: receives the virtual time in hours and a line of the round server's log.
        progress: receives the state after each round and the record of the round. Its seconds are virtual.
        can_lower_rate: see `edgefl.protocol.server.divergence.find_divergence`.

    Returns:
        The last server state, and the events of the fleet.

    Raises:
        ConfigError: there is no table `[fleet]`, or `[privacy]` or `budget_s` is set.
        RoundError: no device came online in time, a round missed its quorum too often, all devices are lost,
            or the federation did not end within `max_days`.
        FederationDivergedError: training diverged, see `edgefl.protocol.server.divergence`.
        DataError: a client cannot train. The error names client and round.
        EdgeflError: a process that runs clients was killed.
    """
    if config.fleet is None:
        raise ConfigError("virtual time needs the table [fleet]; add it to the configuration")
    if config.privacy.is_on or config.privacy.secure_aggregation:
        raise ConfigError("virtual time does not support [privacy]; remove [fleet] or [privacy]")
    if config.budget_s:
        raise ConfigError("virtual time does not support budget_s; remove [fleet] or budget_s")
    clients = sorted(client_ids)
    return _VirtualFleet(
        plan=plan,
        initial=initial,
        config=config,
        fleet=config.fleet,
        client_ids=clients,
        trainer=trainer,
        log=log,
        progress=progress,
        can_lower_rate=can_lower_rate,
    ).run()


class _VirtualFleet:
    def __init__(
        self,
        plan: Plan,
        initial: Weights,
        config: FederationConfig,
        fleet: FleetConfig,
        client_ids: Sequence[str],
        trainer: Trainer,
        log: Callable[[float, str], None],
        progress: RoundCallback,
        can_lower_rate: bool,
    ) -> None:
        self._plan = plan
        self._config = config
        self._fleet = fleet
        self._trainer = trainer
        self._log = log
        self._progress = progress
        self._rng = derive_rng(config.seed, 0, "fleet")
        algorithm = make_algorithm(plan.spec.algorithm, None, plan.spec.options)
        self._algorithm: Algorithm = build_server_algorithm(algorithm, config, plan.spec, key=b"")
        state = self._algorithm.init(initial, derive_rng(config.seed, 0, "init"))
        self._store = InMemoryStore(state)
        self._topics = FederationTopics(config.name)
        self._clients = {
            client_id: SimulatedClient(
                topics=self._topics,
                client_id=client_id,
                num_samples=trainer.count_samples(client_id),
                find_blob=self._find_blob,
                observe_action=partial(self._apply_client_action, client_id),
            )
            for client_id in client_ids
        }
        spread = self._rng.standard_normal(len(client_ids))
        speeds = fleet.samples_per_s * np.exp(fleet.speed_spread * spread)
        self._speeds = dict(zip(client_ids, speeds.tolist(), strict=True))
        self._lost: set[str] = set()
        self._jobs: dict[str, TrainingJob] = {}
        self._trained: dict[str, TrainedUpdate] = {}
        self._manifests: dict[str, Manifest] = {}
        self._chunks: dict[str, dict[int, bytes]] = {}
        self._is_acknowledged = True
        self._decoded: dict[str, Weights] = {}
        self._joined: dict[str, bytes] = {}
        """The encoded blobs, by sha256. All clients share them."""
        self._subscribers: dict[str, dict[str, None]] = {}
        """The clients that fetch a blob, by the filter of its topics."""
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._now = 0.0
        self._figures = FleetFigures()
        self._record: Record | None = None
        self._bytes_down = 0
        self._server = RoundServer(
            config=config,
            spec=plan.spec,
            plan=(plan.id, encode_plan(plan)),
            algorithm=self._algorithm,
            state=state,
            session="virtual",
            started=1,
            draw_cohort=lambda state, available: choose_task_clients(config, state, available),
            new_nonce=lambda: f"{next(self._order):016x}",
            can_lower_rate=can_lower_rate,
        )

    @property
    def _hours(self) -> float:
        return self._now / HOUR_S

    def run(self) -> tuple[ServerState, FleetFigures]:
        """Run the federation to its end."""
        self._apply_actions(self._server.start(self._now))
        for client_id in self._clients:
            self._plan_availability(client_id)
        while not self._server.is_done:
            change = self._server.get_timer()
            if self._heap and self._heap[0][0] <= change:
                self._now, _, callback = heapq.heappop(self._heap)
                callback()
            elif change < math.inf:
                self._now = max(self._now, change)
                self._handle(TimePassed())
            else:
                raise RoundError(
                    f"all devices are lost after {self._hours:.1f} virtual hours, and no update can arrive; "
                    "lower lost_per_day of [fleet]"
                )
            if self._now > self._fleet.max_days * DAY_S:
                raise RoundError(
                    f"the federation did not end within {self._fleet.max_days:g} virtual days; raise "
                    "max_days or hours_per_day of [fleet]"
                )
        last_s = self._now + self._compute_travel_s(0)
        while self._heap and self._heap[0][0] <= last_s:  # The last receipts are still in transit.
            self._now, _, callback = heapq.heappop(self._heap)
            callback()
        return self._store.state, self._figures

    def _schedule(self, seconds: float, callback: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self._now + seconds, next(self._order), callback))

    # Devices go online and offline

    def _plan_availability(self, client_id: str) -> None:
        online_s = self._fleet.hours_per_day * HOUR_S
        if self._fleet.lost_per_day:
            lost_s = DAY_S * self._rng.exponential(1 / self._fleet.lost_per_day)
            self._schedule(lost_s, lambda: self._lose_client(client_id))
        if online_s >= DAY_S:
            self._connect(client_id, math.inf)
            return
        # A device that is online at time 0 may have gone online up to online_s earlier.
        begin_s = self._rng.uniform(-online_s, DAY_S - online_s)
        first_s = online_s + min(begin_s, 0.0)
        self._schedule(max(begin_s, 0.0), lambda: self._connect(client_id, first_s))

    def _connect(self, client_id: str, online_s: float) -> None:
        """Connect a device. It leaves after `online_s` seconds, outages included."""
        client = self._clients[client_id]
        if client_id in self._lost:
            return
        self._send(client_id, client.connect(self._now))
        outage_s = (
            DAY_S * self._rng.exponential(1 / self._fleet.outages_per_day)
            if self._fleet.outages_per_day
            else math.inf
        )
        if outage_s < online_s:
            away_s = float(self._rng.exponential(self._fleet.outage_s))
            self._schedule(
                outage_s, lambda: self._disconnect(client_id, away_s, online_s - outage_s - away_s)
            )
        elif online_s < math.inf:
            day_s = DAY_S - self._fleet.hours_per_day * HOUR_S
            next_s = self._fleet.hours_per_day * HOUR_S
            self._schedule(online_s, lambda: self._disconnect(client_id, day_s, next_s))

    def _disconnect(self, client_id: str, away_s: float, online_s: float) -> None:
        """Disconnect a device for `away_s` seconds. `online_s` is the rest of its online time after that."""
        if client_id in self._lost:
            return
        self._figures.outages += 1
        self._send(client_id, self._clients[client_id].disconnect())
        if online_s > 0:
            self._schedule(away_s, lambda: self._connect(client_id, online_s))
            return
        # The outage ends after the daily hours.
        rest_s = max(0.0, DAY_S - self._fleet.hours_per_day * HOUR_S + online_s)
        full_s = self._fleet.hours_per_day * HOUR_S
        self._schedule(away_s + rest_s, lambda: self._connect(client_id, full_s))

    def _lose_client(self, client_id: str) -> None:
        self._lost.add(client_id)
        self._figures.lost_clients += 1
        self._jobs.pop(client_id, None)
        self._trained.pop(client_id, None)
        if self._clients[client_id].is_online:
            self._send(client_id, self._clients[client_id].disconnect())

    # Messages

    def _send(self, client_id: str, events: Sequence[Event]) -> None:
        """Send a client's messages to the server, then begin its training and set its timer."""
        for event in events:
            if isinstance(event, BeginReceived) and self._is_message_lost():
                continue
            size = len(event.payload) if isinstance(event, ChunkReceived) else 0
            self._schedule(self._compute_travel_s(size), lambda event=event: self._handle(event))  # type: ignore[misc]
        self._look_after(client_id)

    def _is_message_lost(self) -> bool:
        is_lost = self._fleet.message_loss > 0 and self._rng.random() < self._fleet.message_loss
        self._figures.lost_messages += is_lost
        return bool(is_lost)

    def _compute_travel_s(self, size: int) -> float:
        speed = self._fleet.bytes_per_s
        return self._fleet.latency_s + (size / speed if speed else 0.0)

    def _handle(self, event: Event) -> None:
        self._figures.events += 1
        self._apply_actions(self._server.handle(event, self._now))
        if not self._is_acknowledged:
            self._is_acknowledged = True
            self._schedule(self._compute_travel_s(0), lambda: self._handle(LinkLoad(0)))

    def _apply_actions(self, actions: Iterable[Action]) -> None:
        for action in actions:
            self._store.apply(action)
            match action:
                case AggregateUpdates(state):
                    after = aggregate_usable(
                        self._algorithm, state, self._store.list_clients(), self._store.iterate_updates
                    )
                    self._apply_actions(self._server.handle(StateAggregated(after), self._now))
                case CloseRound():
                    self._close(action)
                case SaveState(state) if self._record:
                    self._progress(state, self._record)
                case Stop(error):
                    raise error
                case Publish():
                    self._publish(action)
                case WriteLog(line):
                    self._log(self._hours, line)

    def _close(self, action: CloseRound) -> None:
        begins = action.begins
        number = action.opened.number
        accuracy = summarize_accuracy(begin.metrics for begin in begins)
        self._figures.accepted += len(begins)
        self._figures.late += sum(begin.round < number for begin in begins)
        self._figures.dropped += len(action.dropped)
        self._figures.hours = self._hours
        for begin in begins:  # This server never restarts, so it does not request an update again.
            self._clients[begin.client_id].forget_answer()
        self._record = Record(
            round=number,
            phase=action.opened.phase,
            loss=action.loss,
            seconds=action.seconds,
            bytes_up=sum(begin.size for begin in begins),
            bytes_down=self._bytes_down,
            updates={
                begin.client_id: {**begin.metrics, "num_samples": float(begin.num_samples)}
                for begin in begins
            },
            accuracy_mean=accuracy.mean,
            accuracy_p10=accuracy.p10,
            accuracy_p90=accuracy.p90,
            hours=self._hours,
        )
        self._bytes_down = 0

    def _publish(self, action: Publish) -> None:
        address = parse_topic(action.topic)
        self._is_acknowledged &= action.qos == 0
        match address.kind, action.message:
            case "blob", bytes() as content if content:
                self._chunks.setdefault(address.sha256, {})[address.index] = content
                self._deliver_blob(address.sha256, BlobChunkReceived(address.sha256, address.index, content))
            case "manifest", Manifest() as manifest:
                self._manifests[address.sha256] = manifest
                self._deliver_blob(address.sha256, BlobManifestReceived(manifest))
            case "manifest", b"":
                self._manifests.pop(address.sha256, None)
                self._chunks.pop(address.sha256, None)
                self._decoded.pop(address.sha256, None)
                self._joined.pop(address.sha256, None)
            case _, Task() as task:
                size = sum(self._manifests[sha256].size for sha256 in set(task.models.values()))
                self._bytes_down += size
                if not self._is_message_lost():
                    self._schedule(
                        self._compute_travel_s(size), lambda: self._deliver_task(address.client_id, task)
                    )
            case _, Receipt() as receipt:
                if not self._is_message_lost():
                    self._schedule(
                        self._compute_travel_s(0), lambda: self._deliver_receipt(address.client_id, receipt)
                    )

    def _deliver_task(self, client_id: str, task: Task) -> None:
        self._deliver(client_id, TaskReceived(task))

    def _deliver_receipt(self, client_id: str, receipt: Receipt) -> None:
        machine = self._clients[client_id].machine
        is_answered = receipt.outcome == "ok" and machine.uploading_sha256 == receipt.sha256
        self._deliver(client_id, ReceiptReceived(receipt))
        self._figures.acknowledged += is_answered and machine.uploading_sha256 != receipt.sha256

    def _deliver(self, client_id: str, event: ClientEvent) -> None:
        client = self._clients[client_id]
        if client.is_online:
            self._send(client_id, client.handle(event, self._now))

    def _deliver_blob(self, sha256: str, event: ClientEvent) -> None:
        for client_id in self._subscribers.get(self._topics.format_blob(sha256, "+"), ()):
            self._schedule(0.0, partial(self._deliver, client_id, event))

    def _apply_client_action(self, client_id: str, action: ClientAction) -> None:
        """Keep track of the blobs that a client fetches."""
        match action:
            case Subscribe(filters):
                for topic_filter in filters:
                    self._subscribers.setdefault(topic_filter, {})[client_id] = None
                    for event in self._list_retained(topic_filter):
                        self._schedule(0.0, partial(self._deliver, client_id, event))
            case Unsubscribe(filters):
                for topic_filter in filters:
                    self._subscribers[topic_filter].pop(client_id)

    def _list_retained(self, topic_filter: str) -> Iterator[ClientEvent]:
        """Yield the messages about a blob that the broker sends to a new subscriber."""
        address = (
            parse_topic(topic_filter.removesuffix("+") + "manifest") if topic_filter[-1] == "+" else None
        )
        if address and (manifest := self._manifests.get(address.sha256)):
            yield BlobManifestReceived(manifest)
            for index, content in self._chunks.get(address.sha256, {}).items() if manifest.retained else ():
                yield BlobChunkReceived(address.sha256, index, content)

    # Training

    def _look_after(self, client_id: str) -> None:
        """Begin the training of a client that has a task, and set its timer."""
        client = self._clients[client_id]
        job = self._jobs.get(client_id)
        training = client.training
        if training and (job is None or job.task is not training.task) and client_id not in self._lost:
            self._begin(client_id, training)
        wake = client.machine.get_timer()
        if wake < math.inf:
            self._schedule(max(0.0, wake - self._now), lambda: self._wake(client_id))

    def _wake(self, client_id: str) -> None:
        client = self._clients[client_id]
        if client.is_online and client.machine.get_timer() <= self._now:
            self._send(client_id, client.handle_timer(self._now))

    def _find_blob(self, sha256: str) -> bytes | None:
        """Return a blob that the server has sent to any client, or None.

        The download of the plan takes no time.
        """
        if sha256 == self._plan.id:
            return b""
        manifest = self._manifests.get(sha256)
        chunks = self._chunks.get(sha256, {})
        if manifest is None or len(chunks) < manifest.count:
            return None
        if sha256 not in self._joined:
            self._joined[sha256] = b"".join(chunks[index] for index in sorted(chunks))
        return self._joined[sha256]

    def _begin(self, client_id: str, training: Train) -> None:
        models = {
            name: self._decode_weights(training.task.models[name], blob)
            for name, blob in training.models.items()
        }
        # The encoded models are not needed any more, and thousands of clients may train at the same time
        self._clients[client_id].training = replace(training, models={})
        job = self._jobs[client_id] = TrainingJob(client_id, training.task, models)
        self._trained.pop(client_id, None)
        seconds = self._trainer.count_samples_seen(job) / self._speeds[client_id]
        self._schedule(seconds, lambda: self._finish(job))

    def _decode_weights(self, sha256: str, blob: bytes) -> Weights:
        if sha256 not in self._decoded:
            self._decoded[sha256] = decode_subset(blob, self._plan.spec.weights, "the server")
        return self._decoded[sha256]

    def _finish(self, job: TrainingJob) -> None:
        """Complete the training of a client. Clients that train at the same time are computed together."""
        if self._jobs.get(job.client_id) is not job:
            return  # The client was lost.
        if job.client_id not in self._trained:
            waiting = [batch_job for name, batch_job in self._jobs.items() if name not in self._trained]
            waiting.remove(job)
            jobs = [job, *waiting[: MAX_BATCH_CLIENTS - 1]]
            jobs.sort(key=lambda batch_job: (batch_job.task.phase == PHASE_PERSONALIZE, batch_job.client_id))
            for batch_job, update in zip(jobs, self._trainer.run(jobs), strict=True):
                self._trained[batch_job.client_id] = update
        del self._jobs[job.client_id]
        self._trainer.complete(job.client_id)
        self._figures.trained += 1
        update = self._trained.pop(job.client_id)
        client = self._clients[job.client_id]
        self._send(job.client_id, client.finish_training(update, self._now))

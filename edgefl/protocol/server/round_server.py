"""The round server: leads a federation from its first client to its result, without I/O and without a clock.

The MQTT service and the simulator drive the same class. `handle` takes an event and the time, and returns the
actions that the driver carries out in order. Everything that a driver must store is an action too. A driver
that was killed at any point starts a new server from its stored data (`Resume`).

The design is sans-I/O, as h11 does it for HTTP (https://sans-io.readthedocs.io).
"""

import logging
import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from edgefl.base.config import FederationConfig
from edgefl.base.errors import EdgeflError, RoundError
from edgefl.base.tasks.config import CLASSIFICATION, TASK_KINDS
from edgefl.base.types import ServerState
from edgefl.learning.algorithms import PHASE_DONE, PHASE_PERSONALIZE, Algorithm
from edgefl.learning.algorithms.clustering.cluster_models import explain_clusters, is_newly_clustered
from edgefl.learning.algorithms.cohort import count_required_updates
from edgefl.learning.algorithms.mixtures.gate_utilization import count_local_experts
from edgefl.learning.privacy import accountant
from edgefl.learning.privacy.mechanism import count_expected_cohort
from edgefl.program.plan.measured_values import encode_measured_values
from edgefl.program.plan.spec import PlanSpec, read_num_classes, read_task
from edgefl.protocol.security.secagg.masking import MIN_MASKED_CLIENTS
from edgefl.protocol.security.trust import Trust
from edgefl.protocol.server import rounds
from edgefl.protocol.server.comparison import should_compare_models
from edgefl.protocol.server.divergence import explain_no_progress, find_divergence
from edgefl.protocol.server.events import (
    Action,
    AggregateUpdates,
    ClientExcluded,
    CloseRound,
    CommitUpdates,
    DroppedClient,
    Event,
    Finish,
    ForgetRound,
    OpenedRound,
    OpenRound,
    SaveMaskedSum,
    SaveState,
    StateAggregated,
    Stop,
    StoreUpdate,
    WriteLog,
)
from edgefl.protocol.server.personalization_time import RoundTime, estimate_personalization_s
from edgefl.protocol.server.plausibility import list_left_out_clients
from edgefl.protocol.server.rounds import Round, UpdateKey
from edgefl.protocol.server.secagg.checks import UnsettledError
from edgefl.protocol.server.spread import measure_loss, summarize_accuracy
from edgefl.protocol.server.tasks import ExpectedTensors, RoundTasks
from edgefl.protocol.server.update_collector import UpdateCollector
from edgefl.protocol.wire.divergence_message import FederationDivergedError
from edgefl.protocol.wire.messages import JOINING_PHASE, STOPPED_PHASE, Begin, State
from edgefl.protocol.wire.tensors import decode_models
from edgefl.protocol.wire.topics import FederationTopics

RETAINED_WAIT_S = 0.5
"""How long retained messages take to arrive after a subscription."""
MAX_IDLE_DEADLINES = 4
"""Maximum number of deadlines that a round without available clients waits."""
MAX_TIMED_ROUNDS = 10
"""Number of rounds whose training times are used to estimate the duration of a personalization."""
DrawCohort = Callable[[ServerState, Iterable[str]], tuple[str, ...]]
"""Draws the cohort of a round from the clients that are available."""
TimedGenerator = Generator[float, None, None]
"""A generator that yields the time in seconds at which it has to be resumed."""


@dataclass(frozen=True)
class Resume:
    """The stored data of a federation that was interrupted.

    Attributes:
        state: the server state after the last aggregated round.
        opened: the round of that state. None when it was not opened.
        begins: the updates that it accepted and whose bytes are intact.
        nonces: the nonces of earlier rounds of the same phase that late updates may answer, by round.
        settled: sha256 of the updates that earlier rounds accepted, by round and client.
        losses: the median loss of each closed round. None for a round that has no loss.
        times: the training times of the last rounds.
        masked_sum: the last content of `SaveMaskedSum`.
        following: the round after `opened`. None when it was not opened. It has accepted no update, because
            the state that it begins with was not saved yet.
        masked_sum_origin: where `masked_sum` was stored, for errors.
    """

    state: ServerState
    opened: OpenedRound | None = None
    begins: Sequence[Begin] = ()
    nonces: Mapping[int, str] = field(default_factory=dict)
    settled: Mapping[UpdateKey, str] = field(default_factory=dict)
    losses: Sequence[float | None] = ()
    times: Sequence[RoundTime] = ()
    masked_sum: bytes = b""
    following: OpenedRound | None = None
    masked_sum_origin: str = "the sum of a masked round"


def choose_phase(config: FederationConfig, state: ServerState) -> str:
    """Return the phase of the round that begins with a server state.

    Args:
        state: the server state before the round.
    """
    is_over = state.round > config.rounds or state.phase in (PHASE_PERSONALIZE, PHASE_DONE)
    return PHASE_PERSONALIZE if is_over else state.phase


class RoundServer:
    """Leads one federation, from the first client to the last model.

    Args:
        plan: the sha256 of the plan in hexadecimal, and its bytes.
        algorithm: the algorithm as the server aggregates with it, see `build_server_algorithm`.
        state: the server state that a new federation begins with.
        session: the name of this start of the federation.
        started: orders the runs of an aggregator, in milliseconds since 1970, see
            `edgefl.protocol.wire.messages`.
        new_nonce: returns a fresh nonce that cannot be guessed.
        trust: checks the signatures of clients in masked rounds.
        introduce: returns a client's signing key and the authority's voucher for it, in masked rounds. None
            where clients are not enrolled.
        resume: the data that an earlier run stored. None for a new federation.
        personalizes: whether clients make their models after the rounds. Without it the server is done after
            the last round and emits no `Finish`, and a round takes in clients that come online meanwhile.
        admits_arrivals: whether clients that come online while a round is open take part in it.
        gathers_online: whether the first round waits for all clients that are online already. Without it, the
            first `min_clients` of their statuses open the round.
        can_lower_rate: see `find_divergence`.

    Attributes:
        is_done: whether the federation is complete.
    """

    def __init__(
        self,
        config: FederationConfig,
        spec: PlanSpec,
        plan: tuple[str, bytes],
        algorithm: Algorithm,
        state: ServerState,
        *,
        session: str,
        started: int,
        draw_cohort: DrawCohort,
        new_nonce: Callable[[], str],
        trust: Trust | None = None,
        introduce: Callable[[str], tuple[str, str]] | None = None,
        resume: Resume | None = None,
        personalizes: bool = True,
        admits_arrivals: bool = False,
        gathers_online: bool = False,
        can_lower_rate: bool = False,
    ) -> None:
        self._config = config
        self._spec = spec
        self._plan, self._plan_blob = plan
        self._algorithm = algorithm
        self._session = session
        self._started = started
        self._draw_cohort = draw_cohort
        self._new_nonce = new_nonce
        self._trust = trust or Trust(federation=config.name)
        self._introduce = introduce
        self._masked_sum = resume.masked_sum if resume else b""
        self._masked_sum_origin = resume.masked_sum_origin if resume else ""
        self._resume = resume
        self._personalizes = personalizes
        self._admits_arrivals = admits_arrivals
        self._gathers_online = gathers_online
        self._can_lower_rate = can_lower_rate
        self._following = resume.following if resume else None
        self._actions: list[Action] = []
        self._personalization_s = config.deadline_s
        self._aggregated: ServerState | None = None
        self._has_gathered = False
        self._was_resumed = resume is not None
        self._nonces: dict[int, str] = dict(resume.nonces) if resume else {}
        self._settled: dict[UpdateKey, str] = dict(resume.settled) if resume else {}
        self._losses: list[float | None] = list(resume.losses) if resume else []
        self._times: deque[tuple[RoundTime, ...]] = deque(maxlen=MAX_TIMED_ROUNDS)
        if resume:
            self._times.append(tuple(resume.times))
        self._collector = UpdateCollector(
            FederationTopics(config.name),
            self._make_state(JOINING_PHASE, 0, 0),
            self._actions.append,
            upload_slots=config.upload_slots,
            max_samples=config.max_samples,
            chunk_bytes=config.chunk_bytes,
            clients=config.clients,
        )
        self._generator = self._lead(resume.state if resume else state)
        self._resume_at = -math.inf
        self.is_done = False

    def start(self, now: float, excluded: Mapping[str, str] | None = None) -> list[Action]:
        """Return the first actions. Call it once, before `handle`.

        Args:
            now: the time in seconds, of any clock that does not go back.
            excluded: the clients of `list_clients_to_check` that are not enrolled, with the reasons.

        Returns:
            The actions to carry out, in order.
        """
        self._collector.now = now
        self._collector.publish_state(self._collector.state)
        for client_id, reason in (excluded or {}).items():
            self._collector.handle(ClientExcluded(client_id, reason), now)
        self._collector.blobs.offer(self._plan, self._plan_blob)
        return self._advance()

    def handle(self, event: Event, now: float) -> list[Action]:
        """Return the actions that follow from an event.

        An error that ends the federation is returned as a `Stop` action and not raised.

        Args:
            now: the time in seconds. It must not be before the time of the last event.

        Returns:
            The actions to carry out, in order.
        """
        if isinstance(event, StateAggregated):
            self._aggregated = event.state
        self._collector.handle(event, now)
        return self._advance()

    def _advance(self) -> list[Action]:
        if not self.is_done:
            try:
                self._resume_at = next(self._generator)
            except StopIteration:
                self.is_done = True
                self._resume_at = math.inf
            except EdgeflError as error:
                self._actions.append(Stop(error))
                self._resume_at = math.inf
        return self._take_actions()

    def _take_actions(self) -> list[Action]:
        actions = list(self._actions)
        self._actions.clear()
        return actions

    def stop(self, settings: Mapping[str, float] | None = None) -> list[Action]:
        """Return the actions that end a federation before it is complete.

        Args:
            settings: added to the settings of the last state, see `edgefl.protocol.wire.messages.State`.

        Returns:
            The actions to carry out, in order.
        """
        self._actions.clear()  # What an exception kept from being returned was not stored either
        self._collector.blobs.keep_only(())
        self._collector.publish_state(self.make_stopped_state(settings))
        return self._take_actions()

    def make_stopped_state(self, settings: Mapping[str, float] | None = None) -> State:
        """Return the state which says that no aggregator leads this federation now.

        Args:
            settings: added to the settings of the state.
        """
        state = self._make_state(STOPPED_PHASE, 0, 0)
        return replace(state, settings={**state.settings, **(settings or {})})

    def make_done_state(self) -> State:
        """Return the state which says that this federation is complete."""
        return self._make_state(PHASE_DONE, self._config.rounds + 1, 0)

    def get_timer(self) -> float:
        """Return the time at which `handle` is due even without an event, in seconds. Infinity means
        never.
        """
        return min(self._resume_at, self._collector.get_timer())

    @property
    def open_round(self) -> Round | None:
        """The round that collects updates. None between rounds."""
        return self._collector.round

    def list_clients_to_check(self) -> tuple[str, ...]:
        """Return the clients whose enrolment matters now: online clients and those that the round waits
        for.
        """
        waiting = rounds.list_missing(self.open_round) if self.open_round else ()
        if self._resume and self._resume.opened:
            waiting = self._resume.opened.cohort
        return tuple(sorted({*self._collector.presence.statuses, *waiting}))

    @property
    def _now(self) -> float:
        return self._collector.now

    def _log(self, line: str, level: int = logging.INFO) -> None:
        self._actions.append(WriteLog(line, level=level))

    def _make_state(self, phase: str, number: int, cohort_size: int) -> State:
        config = self._config
        kind = read_task(self._spec).kind
        return State(
            federation=config.name,
            session=self._session,
            phase=phase,
            round=number,
            rounds=config.rounds,
            cohort_size=cohort_size,
            deadline_s=self._choose_deadline_s(phase, number),
            plan=self._plan,
            ts=0.0,
            started=self._started,
            settings={
                "min_clients": float(config.min_clients),
                "own_experts": float(count_local_experts(self._spec)),
                **({"differential_privacy": 1.0} if config.privacy.is_on else {}),
                **({"task": float(TASK_KINDS.index(kind))} if kind != CLASSIFICATION else {}),
                **encode_measured_values(self._spec, config.range_test),
            },
        )

    def _choose_deadline_s(self, phase: str, number: int) -> float:
        """Return the seconds after which a round closes. Clients may compare their models in the last
        round.
        """
        if phase == PHASE_PERSONALIZE:
            return self._personalization_s
        if number == self._config.rounds and should_compare_models(self._config, self._spec):
            return self._estimate_personalization_s()
        return self._config.deadline_s

    def _estimate_personalization_s(self) -> float:
        times = [time for times_of_round in self._times for time in times_of_round]
        return estimate_personalization_s(self._config, self._spec, times)

    def _lead(self, state: ServerState) -> TimedGenerator:
        config = self._config
        if self._resume:
            self._log(f"continuing at round {state.round} of {config.rounds} (session {self._session[:8]})")
        while choose_phase(config, state) != PHASE_PERSONALIZE:
            state = yield from self._federate(state)
        if not self._personalizes:
            self._collector.blobs.keep_only(())
            return
        state = replace(state, phase=PHASE_PERSONALIZE)
        # A client that sent an implausible update gets a model too
        self._collector.left_out_clients = frozenset()
        self._personalization_s = self._estimate_personalization_s()
        self._log(
            "personalize: devices make their personal models, which takes longer than a round; the "
            f"aggregator waits at most {self._personalization_s:.0f} s"
        )
        opened, _ = yield from self._play(
            state,
            lambda: self._collector.presence.list_for_personalization(self._collector.unavailable),
            is_open_to_all=True,
        )
        self._actions.append(Finish(opened, replace(state, phase=PHASE_DONE)))
        self._collector.blobs.keep_only(())
        self._collector.publish_state(self._make_state(PHASE_DONE, state.round, 0))

    def _federate(self, state: ServerState) -> Generator[float, None, ServerState]:
        """Play one round and return the state after it."""
        self._collector.left_out_clients = list_left_out_clients(state)

        def draw_cohort() -> tuple[str, ...]:
            return self._draw_cohort(
                state, self._collector.presence.list_available(self._collector.unavailable)
            )

        is_open_to_all = self._config.mode == "async" or self._admits_arrivals
        _, accuracy = yield from self._play(state, draw_cohort, is_open_to_all=is_open_to_all)
        self._aggregated = None
        self._actions.append(AggregateUpdates(state))
        while self._aggregated is None:
            yield math.inf
        after = self._aggregated
        for line in filter(None, explain_clusters(after) if is_newly_clustered(after) else ()):
            self._log(line)
        self._actions.append(SaveState(after))
        if self._config.privacy.is_on:
            self._log(accountant.describe_spending(self._config, after.round - 1))
        if not self._config.privacy.is_on and accuracy is not None:
            classes = read_num_classes(self._spec) or 0
            divergence = find_divergence(
                self._losses,
                classes,
                accuracy,
                rounds=self._config.rounds,
                can_lower_rate=self._can_lower_rate,
            )
            if divergence:
                raise FederationDivergedError(divergence)
            is_last = choose_phase(self._config, after) == PHASE_PERSONALIZE
            if is_last and (warning := explain_no_progress(self._losses, classes, accuracy)):
                self._log(warning, logging.WARNING)
        return after

    def _gather(self) -> TimedGenerator:
        """Wait for enough clients to open a round. The first round needs `min_clients`."""
        if not self._has_gathered:
            if self._was_resumed or self._gathers_online:
                # Retained statuses of clients that were online before arrive together
                until = self._now + RETAINED_WAIT_S
                while self._now < until:
                    yield until
            # Paused clients took part before the restart. They count, so that no pause delays the federation.
            yield from self._wait_for_clients(self._config.min_clients, math.inf, self._was_resumed)
            self._has_gathered = True
        least = MIN_MASKED_CLIENTS if self._config.privacy.secure_aggregation else 1
        yield from self._wait_for_clients(least, MAX_IDLE_DEADLINES * self._config.deadline_s)

    def _wait_for_clients(self, count: int, timeout_s: float, counts_paused: bool = False) -> TimedGenerator:
        """Wait until `count` clients are online and not paused.

        The timeout does not run while a client is paused, because that client will return. A client that
        refuses the plan may not return.

        Raises:
            RoundError: no client came online in time.
        """
        until = self._now + timeout_s
        last_line = ""
        while True:
            presence = self._collector.presence
            available = len(presence.list_available(self._collector.unavailable))
            paused = len(presence.list_online()) - available
            if available + (paused if counts_paused else 0) >= count:
                return
            line = f"waiting for devices: {available} of {count} online"
            if paused:
                line += f", {paused} paused"
            if line != last_line:
                self._log(line)
                last_line = line
            if paused > len(presence.list_refusing()):
                until = self._now + timeout_s
            if self._now > until:
                raise RoundError(
                    f"no device came online within {timeout_s:g} s, expected {count}; look at the devices' "
                    "logs"
                )
            yield math.nextafter(until, math.inf)

    def _play(
        self, state: ServerState, draw_cohort: Callable[[], tuple[str, ...]], *, is_open_to_all: bool = False
    ) -> Generator[float, None, tuple[OpenedRound, float | None]]:
        """Play a round, or the rest of it after a restart.

        Returns:
            The round as it was opened, and the median accuracy that its clients reported. It is None
            for a round that was closed before a restart.
        """
        resumed = self._resume
        self._resume = None
        opened = resumed.opened if resumed else self._take_following_round(state)
        if opened is None:
            yield from self._gather()
            opened = OpenedRound(
                number=state.round, phase=state.phase, nonce=self._new_nonce(), cohort=draw_cohort()
            )
            self._actions.append(OpenRound(opened))
        if opened.is_closed:
            assert resumed is not None, "only a round of an earlier process is closed before it is played"
            self._nonces[opened.number] = opened.nonce
            self._settle(resumed.begins)
            return opened, None
        config = self._config
        staleness = config.staleness if state.phase != PHASE_PERSONALIZE else 0
        oldest = state.round - staleness
        self._nonces = {number: n for number, n in self._nonces.items() if oldest <= number < state.round}
        self._nonces[state.round] = opened.nonce
        self._settled = {key: sha256 for key, sha256 in self._settled.items() if key[0] >= oldest}
        if not opened.cohort:  # A Poisson sample may be empty. The round then consists of its noise
            self._close(opened, None, ())
            return opened, math.nan
        tasks = RoundTasks(
            self._algorithm,
            state,
            config,
            session=self._session,
            plan=self._plan,
            nonces=dict(self._nonces),
            max_staleness=staleness,
            offer=self._collector.blobs.offer,
            started=self._started,
            deadline_s=self._choose_deadline_s(state.phase, state.round),
        )
        begins = {(begin.client_id, begin.round): begin for begin in (resumed.begins if resumed else ())}
        open_round = self._restore_updates(self._begin_round(state, opened, staleness), begins.values())
        is_sample = config.privacy.is_on and state.phase != PHASE_PERSONALIZE
        size = count_expected_cohort(config) if is_sample else len(opened.cohort)
        self._collector.publish_state(self._make_state(opened.phase, opened.number, size))

        def accept(accepted: tuple[Begin, ...]) -> None:
            self._actions.append(CommitUpdates(opened, accepted))
            begins.update({(begin.client_id, begin.round): begin for begin in accepted})

        if config.privacy.secure_aggregation and state.phase != PHASE_PERSONALIZE:
            try:
                closed, summed = yield from self._play_masked(open_round, tasks, accept)
            except UnsettledError:
                self._actions.append(ForgetRound(opened))
                enrolled = self._collector.remove_excluded(opened.cohort)
                if len(enrolled) >= MIN_MASKED_CLIENTS:
                    raise
                self._log(
                    f"round {state.round}: {len(enrolled)} of its clients are enrolled, "
                    f"{MIN_MASKED_CLIENTS} are needed; its cohort is drawn again",
                    logging.WARNING,
                )
                return (yield from self._play(state, draw_cohort, is_open_to_all=is_open_to_all))
        else:
            closed = yield from self._collector.collect(
                open_round, tasks, accept, is_open_to_all=is_open_to_all, is_sample=is_sample
            )
            summed = [begins[key] for key in sorted(begins)]
        accuracy = self._close(opened, closed, tuple(summed))
        # Slow clients still ask for the blobs of this round
        self._collector.blobs.keep_only(tasks.list_blobs() | {self._plan})
        return opened, accuracy

    def _take_following_round(self, state: ServerState) -> OpenedRound | None:
        """Return the round of this state if an earlier process opened it."""
        following = self._following
        self._following = None
        is_same = following is not None and (following.number, following.phase) == (state.round, state.phase)
        return following if is_same else None

    def _settle(self, begins: Iterable[Begin]) -> None:
        self._settled.update({(begin.round, begin.client_id): begin.sha256 for begin in begins})

    def _play_masked(
        self, open_round: Round, tasks: RoundTasks, accept: Callable[[tuple[Begin, ...]], None]
    ) -> Generator[float, None, tuple[Round, list[Begin]]]:
        """Play a masked round, see `edgefl.protocol.server.secagg.rounds`."""
        # These modules load cryptography, which a federation without masks does not need
        from edgefl.protocol.server.secagg.attempt import SecAggServices
        from edgefl.protocol.server.secagg.masked_sum import MaskedSum, decode_masked_sum, encode_masked_sum
        from edgefl.protocol.server.secagg.rounds import MaskedRounds

        def save(masked_sum: MaskedSum | None) -> None:
            self._actions.append(SaveMaskedSum(encode_masked_sum(masked_sum) if masked_sum else b""))

        def load(session: str, number: int, size: int) -> MaskedSum | None:
            stored = self._masked_sum
            self._masked_sum = b""
            origin = self._masked_sum_origin
            return decode_masked_sum(stored, origin, session, number, size) if stored else None

        def keep_means(begin: Begin, expected: ExpectedTensors, blob: bytes) -> None:
            deltas = decode_models(blob, expected, "the sum", "fp32")
            self._actions.append(
                StoreUpdate(begin=begin, blob=blob, expected=expected, codec="fp32", deltas=deltas)
            )
            accept((begin,))

        def remove_excluded(round: Round) -> Round:
            enrolled = self._collector.remove_excluded(round.cohort)
            for client_id in set(rounds.list_missing(round)) - set(enrolled):
                round = rounds.remove_client(round, client_id)
            return round

        services = SecAggServices(
            trust=self._trust,
            introduce=self._introduce,
            offer=self._collector.blobs.offer,
            is_gone=self._collector.presence.is_gone,
            remove_excluded=remove_excluded,
            new_nonce=self._new_nonce,
            save=save,
            load=load,
            keep_means=keep_means,
            now=lambda: self._now,
            log=self._log,
        )
        generator = MaskedRounds(services).play(open_round, tasks)
        try:
            request = next(generator)
            while True:
                try:
                    closed = yield from self._collector.collect(request.round, request.steps, request.accept)
                except RoundError as error:
                    request = generator.throw(error)
                else:
                    request = generator.send(closed)
        except StopIteration as end:
            result: tuple[Round, list[Begin]] = end.value
            return result

    def _begin_round(self, state: ServerState, opened: OpenedRound, staleness: int) -> Round:
        config = self._config
        return rounds.open_round(
            state.round,
            opened.cohort,
            quorum=config.quorum,
            deadline_s=self._choose_deadline_s(state.phase, state.round),
            extension_s=config.deadline_s,
            grace_s=config.grace_s,
            now=self._now,
            enough=count_required_updates(config, state, opened.cohort),
            max_staleness=staleness,
            late_count=config.mode == "async",
            settled=dict(self._settled),
        )

    @staticmethod
    def _restore_updates(open_round: Round, begins: Iterable[Begin]) -> Round:
        """Return the round with the updates that it accepted before a restart."""
        for begin in begins:
            if begin.round == open_round.number:
                open_round = rounds.admit_client(open_round, begin.client_id)
            open_round, _ = rounds.receive_update(open_round, begin.round, begin.client_id, begin.sha256)
        return open_round

    def _close(self, opened: OpenedRound, closed: Round | None, begins: tuple[Begin, ...]) -> float:
        """Emit the closing of a round, and return the median accuracy that its clients reported."""
        figures = [begin.metrics for begin in begins]
        loss = measure_loss(figures)
        seconds = self._now - closed.opened if closed else 0.0
        dropped = tuple(self._list_dropped(opened, closed)) if closed else ()
        if closed and not closed.cohort and not begins:
            self._log(
                f"round {opened.number}: all clients of its sample were revoked; it counts as an empty "
                f"sample",
                logging.WARNING,
            )
        self._actions.append(
            CloseRound(
                opened=opened, closed=closed, begins=begins, dropped=dropped, loss=loss, seconds=seconds
            )
        )
        if opened.phase != PHASE_PERSONALIZE:
            self._losses.append(loss if math.isfinite(loss) else None)
            self._settle(begins)
            self._times.append(tuple(read_round_times(self._config, self._spec, begins)))
        return summarize_accuracy(figures).median

    def _list_dropped(self, opened: OpenedRound, closed: Round) -> Iterator[DroppedClient]:
        presence = self._collector.presence
        paused = presence.list_paused()
        for client_id in rounds.list_missing(closed):
            if closed.max_staleness and client_id not in {*closed.failed, *closed.away}:
                continue  # Its update may still come
            away = f"paused ({paused[client_id]})" if client_id in paused else "offline"
            reason = closed.failed.get(client_id) or (away if client_id in closed.away else "too late")
            yield DroppedClient(closed.number, client_id, reason)
        if opened.phase == PHASE_PERSONALIZE:
            for client_id, reason in sorted(presence.list_refusing().items()):
                if client_id not in closed.cohort:
                    yield DroppedClient(closed.number, client_id, f"paused ({reason})")


def read_round_times(
    config: FederationConfig, spec: PlanSpec, begins: Iterable[Begin]
) -> Iterator[RoundTime]:
    """Yield the training time that each client reported. Times are capped at the deadline of a round.

    Args:
        spec: the plan's specification, for the default number of epochs.
        begins: the announcements of the round's updates.
    """
    epochs = float(spec.options.get("epochs", 1))
    for begin in begins:
        seconds = min(begin.metrics.get("seconds", math.nan), config.deadline_s)
        trained = begin.metrics.get("epochs", epochs)
        yield RoundTime(client_id=begin.client_id, seconds=seconds, epochs=trained, samples=begin.num_samples)

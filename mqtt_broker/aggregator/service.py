"""The aggregator service: waits for devices, leads the rounds, has them personalize, and writes the result.

Killed at any moment and started again with the same directory, it goes on where it was: the server state is
that after the last aggregated round, and the journal knows the open round with the updates that were
accepted.
"""

import math
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from edgefl.algorithms import CLUSTER, DONE, PERSONALIZE, make_algorithm
from edgefl.algorithms.clustering.clusters import explain_clusters
from edgefl.algorithms.cohort import enough_of, selected
from edgefl.algorithms.mixtures.gate_utilization import count_own_experts
from edgefl.config import FederationConfig
from edgefl.errors import RoundError
from edgefl.plan.spec import Plan, encode_plan
from edgefl.privacy import accountant
from edgefl.privacy.mechanism import check_privacy, draw_cohort, expected_cohort
from edgefl.rng import rng_for
from edgefl.security.enrolment import load_enrolment, tls_context
from edgefl.security.secagg.masking import LEAST_CLIENTS
from edgefl.security.trust import Enrolments, Trust
from edgefl.server import rounds
from edgefl.server.comparison import compares_models
from edgefl.server.divergence import (
    Divergence,
    FederationDivergedError,
    divergence_settings,
    explain_no_progress,
    find_divergence,
)
from edgefl.server.personalization_time import RoundTime, personalization_deadline_s
from edgefl.server.plausible import left_out
from edgefl.server.secagg.checks import UnsettledError, check_masked
from edgefl.server.stack import server_stack
from edgefl.server.staleness import check_rounds
from edgefl.server.tasks import Tasks
from edgefl.storage.aggregator_directory import AggregatorFiles
from edgefl.transport.link import KEEPALIVE_S, Link, Message
from edgefl.types import ServerState, Weights
from edgefl.verdict import Verdict, as_dict, lines
from edgefl.wire.messages import JOINING, STOPPED, Begin, State, Summary
from edgefl.wire.strict_json import encode_json
from edgefl.wire.topics import Topics
from mqtt_broker.aggregator import results
from mqtt_broker.aggregator.cluster_telemetry import ToldClusters
from mqtt_broker.aggregator.exchange import Exchange
from mqtt_broker.aggregator.journal import Journal, Opened
from mqtt_broker.aggregator.masked import MaskedExchange
from mqtt_broker.aggregator.noise_key import noise_key
from mqtt_broker.aggregator.older_devices import OlderDevices
from mqtt_broker.aggregator.pauses import paused_clients
from mqtt_broker.aggregator.results import (
    client_rows,
    dropped_of,
    judge_clients,
    load_result,
    load_state,
    publish_verdict,
    result_of,
    save_result,
    save_state,
    summarize,
)
from mqtt_broker.aggregator.resume import SETTLE_S, check_alone, enter, rejoin
from mqtt_broker.aggregator.run_log import keep_round
from mqtt_broker.aggregator.saving import Saving
from mqtt_broker.aggregator.spool import Spool

LONELY_DEADLINES = 4
MEASURED_ROUNDS = 10
"""The last rounds, whose training times say how long a personalization may take."""


class Aggregator:
    """One federation, from the first device to the result. `note` gets a line for a person now and then.

    `security`: the directory of `edgefl broker init`; without it nothing is signed and nobody's signature is
    asked for.
    `doing`: gets what is done now, rounds done, and rounds in all. `closed` is told what each round gave.
    """

    def __init__(
        self,
        config: FederationConfig,
        plan: Plan,
        initial: Weights,
        out: Path,
        note: Callable[[str], None],
        security: Path | None = None,
        doing: Callable[[str, int, int], None] = lambda *_: None,
        closed: Callable[[Summary], None] = lambda _: None,
    ) -> None:
        check_rounds(config)
        self._security = security
        self._closed = closed
        self._config = config
        self._initial = initial
        self._out = out
        self._note = note
        self._doing = doing
        own = self._own = load_enrolment(security / "aggregator.enrol") if security else None
        self._enrolments = Enrolments(security) if security else None
        key_of = self._enrolments.key_of if self._enrolments else None
        self._trust = Trust(
            config.name, own.signing_key if own else "", key_of, clients=frozenset(config.clients)
        )
        self._algorithm = make_algorithm(plan.spec.algorithm, None, plan.spec.options)
        check_privacy(self._algorithm, config)
        check_masked(self._algorithm, config)
        self._config = accountant.within_budget(config, note)
        self._spec = plan.spec
        self._plan = plan.id
        self._plan_blob = encode_plan(plan)
        self._topics = Topics(config.name)
        self._gathered = False
        self._left_out: frozenset[str] = frozenset()
        self._personalization_s = config.deadline_s
        self._accuracy: float | None = None
        self._saving = Saving(lambda: self._journal.sync())
        self._clusters = ToldClusters(config, plan.spec, out)

    def run(self, broker: str, *, take_over: bool = False, fresh: bool = False) -> dict[str, Any]:
        """Lead the federation to its end and return the result.

        Raises LinkError, RoundError, StateError, ConfigError.

        `fresh`: begin a new federation although the directory holds one; else one that is done is only told
        of again.
        """
        with Journal(self._out) as self._journal:
            self._started, self._resumed = enter(self._journal, self._config, self._plan, self._out, fresh)
            self._session = self._started.session
            self._run_started = self._journal.begin_run(time.time_ns() // 10**6)
            self._key = noise_key(self._out, self._session) if self._config.privacy.is_on else b""
            self._algorithm = server_stack(
                self._algorithm, self._config, self._spec, key=self._key, note=self._note
            )
            will = Message(self._topics.state, self._trust.encode(self._state(STOPPED, 0, 0)), retained=True)
            # not the session, which every device reads: who knows a client id can throw its owner out of the
            # broker
            name = f"edgefl-aggregator-{secrets.token_hex(8)}"
            context = tls_context(self._own) if self._own else None
            self._link = Link(broker, name, will=will, keepalive_s=KEEPALIVE_S, context=context)
            leading = False
            stop: dict[str, float] = {}
            try:
                check_alone(self._link, self._topics, self._session, take_over)
                if self._started.done:
                    return self._tell_again()
                self._link.publish(self._topics.verdict, b"", retain=True)  # of an earlier federation
                self._spool = Spool(AggregatorFiles(self._out).spool(session=self._session))
                self._older = OlderDevices(
                    self._link, self._config.name, self._session, self._trust, self._note
                )
                self._exchange = Exchange(
                    self._link,
                    self._topics,
                    self._state(JOINING, 0, 0),
                    upload_slots=self._config.upload_slots,
                    max_samples=self._config.max_samples,
                    spool=self._spool,
                    trust=self._trust,
                    note=self._note,
                    held=self._held,
                    ready=self._saving.wait,
                    chunk_bytes=self._config.chunk_bytes,
                    older=self._older,
                )
                introduce = self._enrolments.introduction_of if self._enrolments else None
                self._masked = MaskedExchange(
                    self._exchange, self._spool, self._trust, introduce, self._out, self._note
                )
                self._exchange.start()
                leading = True
                result = self._lead(load_state(self._out) if self._resumed else None)
                leading = False
                return result
            except FederationDivergedError as error:
                stop = divergence_settings(self._shown(error.divergence))
                raise
            finally:
                if leading:
                    self._exchange.blobs.keep_only(set())
                    self._older.clear()
                    stopped = self._state(STOPPED, 0, 0)
                    stopped = replace(stopped, settings={**stopped.settings, **stop})
                    self._link.publish(self._topics.state, self._trust.encode(stopped), retain=True)
                self._link.close()

    def _state(self, phase: str, round: int, cohort_size: int) -> State:
        config = self._config
        return State(
            config.name,
            self._session,
            phase,
            round,
            config.rounds,
            cohort_size,
            self._deadline_of(phase, round),
            self._plan,
            time.time(),
            started=self._run_started,
            settings={
                "min_clients": float(config.min_clients),
                "own_experts": float(count_own_experts(self._spec)),
                **({"differential_privacy": 1.0} if config.privacy.is_on else {}),
            },
        )

    def _deadline_of(self, phase: str, number: int) -> float:
        """Return the seconds after which a round closes. In the last one clients may compare their models."""
        if phase == PERSONALIZE:
            return self._personalization_s
        if number == self._config.rounds and compares_models(self._config, self._spec):
            return personalization_deadline_s(self._config, self._spec, self._round_times())
        return self._config.deadline_s

    def _round_times(self) -> Iterator[RoundTime]:
        """Yield what clients reported of the time of the last rounds.

        A time above the deadline of a round counts as the deadline.
        """
        epochs = float(self._spec.options.get("epochs", 1))
        for begin in self._journal.latest_updates(MEASURED_ROUNDS, PERSONALIZE):
            seconds = min(begin.metrics.get("seconds", math.nan), self._config.deadline_s)
            trained = begin.metrics.get("epochs", epochs)
            yield RoundTime(begin.client_id, seconds, trained, begin.num_samples)

    def _shown(self, divergence: Divergence) -> Divergence:
        """Return what everybody may read of a divergence: with `[privacy]` not the size of the sample."""
        if not (self._config.privacy.is_on and divergence.cohort):
            return divergence
        size = expected_cohort(self._config)
        return replace(divergence, cohort=size, clients=min(divergence.clients, size))

    def _lead(self, state: ServerState | None) -> dict[str, Any]:
        config = self._config
        if state is None:
            state = self._algorithm.init(self._initial, rng_for(config.seed, 0, "init"))
        else:
            self._note(f"going on at round {state.round} of {config.rounds} (session {self._session[:8]})")
        self._exchange.blobs.offer(self._plan, self._plan_blob)
        while state.round <= config.rounds and state.phase not in (PERSONALIZE, DONE):
            state = self._federate(state)
        state = replace(state, phase=PERSONALIZE)
        self._left_out = frozenset()  # whoever took part badly may still have a model of its own
        self._personalization_s = personalization_deadline_s(config, self._spec, self._round_times())
        self._note(
            "personalize: devices make models of their own; this takes longer than a round; the aggregator "
            f"waits {self._personalization_s:.0f} s at most"
        )
        # whoever is online when the round opens, not now: after a restart nobody may be known yet
        opened = self._play(state, lambda: self._exchange.presence.askable(self._held()), open_to_all=True)
        # all that counts is in the journal, and what was said of hundreds is not kept twice
        self._spool.remove()
        rows = client_rows(self._journal.accepted(opened))
        seconds = time.time() - self._started.started
        result = result_of(
            config,
            self._plan,
            self._session,
            rows,
            self._journal.dropped(),
            self._journal.losses(PERSONALIZE),
            seconds,
            judge_clients(self._spec, rows),
        )
        path = save_result(result, self._out)
        save_state(replace(state, phase=DONE), self._out)
        self._journal.finish()
        self._masked.forget()
        self._exchange.blobs.keep_only(set())
        self._older.clear()
        verdict = self._publish_verdict(rows)
        self._exchange.publish_state(self._state(DONE, state.round, 0))
        self._note(f"done in {result['seconds']:.1f} s; the result is {path}")
        for line in lines(verdict):
            self._note(line)
        return result

    def _publish_verdict(self, clients: Sequence[Mapping[str, Any]]) -> Verdict:
        verdict = judge_clients(self._spec, clients)
        publish_verdict(self._link, self._topics, self._session, self._config, verdict)
        return verdict

    def _tell_again(self) -> dict[str, Any]:
        """Say once more that the federation is done, for who was away or when this service was killed before
        it had said so.
        """
        result = load_result(self._out)
        verdict = self._publish_verdict(result["clients"])
        done = self._state(DONE, self._config.rounds + 1, 0)
        self._link.publish(self._topics.state, self._trust.encode(done), retain=True)
        path = AggregatorFiles(self._out).result
        self._note(
            f"this federation is done, its result is {path}; give another --out, or begin anew with --fresh"
        )
        for line in lines(verdict):
            self._note(line)
        return {**result, "verdict": as_dict(verdict)}  # older versions wrote none

    def _gather(self) -> None:
        """Wait for enough devices to open a round: before the first, as many as the configuration says."""
        if not self._gathered:
            # who was online before a restart says so in a retained message, and all of these come at once
            until = time.monotonic() + SETTLE_S
            while self._resumed and (left := until - time.monotonic()) > 0:
                self._exchange.pump(left)
            # who was paused meanwhile took part before: it counts, so that a restart waits for no pause to
            # end
            self._wait_for_devices(self._config.min_clients, None, with_paused=self._resumed)
            self._gathered = True
        least = LEAST_CLIENTS if self._config.privacy.secure_aggregation else 1
        self._wait_for_devices(least, LONELY_DEADLINES * self._config.deadline_s)

    def _wait_for_devices(self, count: int, timeout_s: float | None, *, with_paused: bool = False) -> None:
        """Wait until `count` devices are online and not paused; RoundError after `timeout_s`.

        The time does not run while an operator pauses a device, because that device comes back. A device that
        refuses the plan may not come back.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        last_line = ""
        while True:
            presence = self._exchange.presence
            available = len(presence.available(self._held()))
            paused = len(presence.online()) - available
            if available + paused * with_paused >= count:
                return
            line = f"waiting for devices: {available} of {count} online"
            if paused:
                line += f", {paused} paused"
            if line != last_line:
                self._note(line)
                last_line = line
            if timeout_s is not None and paused > len(presence.refusing()):
                until = time.monotonic() + timeout_s
            if until is not None and time.monotonic() > until:
                raise RoundError(
                    f"no device came online within {timeout_s:g} s, expected {count}; look at the devices' "
                    "logs"
                )
            self._exchange.pump(0.5)

    def _held(self) -> frozenset[str]:
        return paused_clients(self._out) | self._left_out

    def _play(
        self, state: ServerState, cohort: Callable[[], tuple[str, ...]], *, open_to_all: bool = False
    ) -> Opened:
        """Play a round, or what is left of it after a restart.

        Its updates are in the spool then, and it is closed in the journal.
        """
        config = self._config
        opened = self._journal.round(state.round, state.phase)
        if opened is None:
            self._gather()
            opened = self._journal.open_round(
                Opened(state.round, state.phase, secrets.token_hex(8), cohort())
            )
        else:
            self._saving.wait()
        staleness = config.staleness if state.phase != PERSONALIZE else 0
        oldest = state.round - staleness
        tasks = Tasks(
            self._algorithm,
            state,
            config,
            session=self._session,
            plan=self._plan,
            nonces=self._journal.nonces(opened, oldest),
            max_staleness=staleness,
            offer=self._exchange.blobs.offer,
            started=self._run_started,
            deadline_s=self._deadline_of(state.phase, state.round),
        )
        if not opened.cohort:  # a Poisson sample may be empty; the round is its noise
            self._saving.wait()
            self._journal.close_round(opened, None, [])
            return opened
        begun = rounds.open_round(
            state.round,
            opened.cohort,
            quorum=config.quorum,
            deadline_s=self._deadline_of(state.phase, state.round),
            extension_s=config.deadline_s,
            grace_s=config.grace_s,
            now=time.monotonic(),
            enough=enough_of(config, state, opened.cohort),
            max_staleness=staleness,
            late_count=config.mode == "async",
            settled=self._journal.settled(opened, oldest),
        )
        accepted = self._journal.accepted(opened)
        begun = rejoin(
            begun, accepted, self._spool, lambda client_id: tasks.brief(client_id).expected, config.codec
        )
        if opened.closed:
            return opened
        sent_before = self._link.bytes_up
        place = f", round {state.round}" if state.phase != PERSONALIZE else ""
        self._doing(
            f"{state.phase}{place}, {len(opened.cohort)} devices",
            state.round - 1,
            config.rounds,
        )
        accept = partial(self._journal.accept, opened)
        tasks_out = partial(self._tasks_out, opened)
        if config.privacy.secure_aggregation and state.phase != PERSONALIZE:
            tasks_out()
            try:
                closed, begins = self._masked.play(begun, tasks, accept)
            except UnsettledError:
                self._journal.forget_round(opened)  # the next start draws another cohort
                left = [client_id for client_id in opened.cohort if not self._trust.refusal(client_id)]
                if len(left) >= LEAST_CLIENTS:
                    raise
                self._note(
                    f"round {state.round}: {len(left)} of its clients are enrolled, {LEAST_CLIENTS} are "
                    "needed; it is drawn anew"
                )
                return self._play(state, cohort, open_to_all=open_to_all)
        else:
            is_sample = config.privacy.is_on and state.phase != PERSONALIZE
            closed = self._exchange.play(
                begun,
                tasks,
                lambda each: accept(*each),
                open_to_all=open_to_all,
                is_sample=is_sample,
                tasks_out=tasks_out,
            )
            begins = self._spool.begins()
        if closed.cohort or begins:
            self._close(closed, opened, begins, sent_before)
        else:
            self._note(f"round {state.round}: all whom it drew were revoked; it counts as an empty sample")
            self._journal.close_round(opened, None, [])
        # devices that are late still ask for the blobs of this round; those of the one before are gone
        self._exchange.blobs.keep_only(tasks.blobs() | {self._plan})
        return opened

    def _tasks_out(self, opened: Opened) -> None:
        # with `[privacy]` how many are asked on average, for who was drawn is a secret
        secret = self._config.privacy.is_on and opened.phase != PERSONALIZE
        size = expected_cohort(self._config) if secret else len(opened.cohort)
        self._exchange.publish_state(self._state(opened.phase, opened.number, size))
        self._saving.tasks_out()

    def _close(self, closed: rounds.Round, opened: Opened, begins: Sequence[Begin], sent_before: int) -> None:
        seconds = time.monotonic() - closed.opened
        up = sum(b.size for b in begins)
        down = self._link.bytes_up - sent_before
        presence = self._exchange.presence
        dropped = dropped_of(
            closed, presence.paused(), presence.refusing() if opened.phase == PERSONALIZE else {}
        )
        summary = summarize(closed, opened.phase, begins, dropped, up, down, seconds)
        self._journal.close_round(opened, summary.loss if math.isfinite(summary.loss) else None, dropped)
        self._accuracy = summary.accuracy_mean
        self._closed(summary)
        if not self._config.privacy.is_on:  # losses have no noise, and who is missing was drawn
            keep_round(summary, begins, self._out)
            self._link.publish(self._topics.summary(closed.number), encode_json(summary))
        self._note(results.told(summary, closed, opened.phase, self._config.rounds))

    def _federate(self, state: ServerState) -> ServerState:
        self._left_out = left_out(state)

        def cohort() -> tuple[str, ...]:
            draw = (
                partial(draw_cohort, self._config, self._key)
                if self._config.privacy.is_on
                else partial(selected, self._config)
            )
            return draw(state, self._exchange.presence.available(self._held()))

        self._accuracy = None
        self._play(state, cohort, open_to_all=self._config.mode == "async")
        after = self._algorithm.aggregate(state, self._clusters.noting(self._spool.updates()))
        self._clusters.tell(self._link, self._topics, self._session, state.round, after)
        for line in filter(None, explain_clusters(after) if state.phase == CLUSTER else ()):
            self._note(line)
        # what is spooled goes last: killed before, the round is aggregated again, to the same bits
        self._saving.begin(after, self._out, self._spool.clear)
        if self._config.privacy.is_on:
            self._note(accountant.told(self._config, after.round - 1))
        else:
            self._check_divergence(after)
        return after

    def _check_divergence(self, after: ServerState) -> None:
        """Raise FederationDivergedError when training diverged. The state of the round is saved before.

        After the last round, warn when training had no effect.
        """
        if self._accuracy is None:  # the round was closed before a restart
            return
        losses = self._journal.losses(PERSONALIZE)
        classes = self._spec.num_classes
        found = find_divergence(losses, classes, self._accuracy, rounds=self._config.rounds)
        if found:
            self._saving.wait()
            raise FederationDivergedError(found)
        is_last = after.round > self._config.rounds or after.phase in (PERSONALIZE, DONE)
        if is_last and (warning := explain_no_progress(losses, classes, self._accuracy)):
            self._note(warning)

"""The aggregator service: waits for devices, leads the rounds, has them personalize, and writes the result.

Killed at any moment and started again with the same directory, it goes on where it was: the server state is that after the last
aggregated round, and the journal knows the open round with the updates that were accepted.
"""

import math
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgefl import rounds
from edgefl.algorithms import CLUSTER, DONE, PERSONALIZE, make_algorithm
from edgefl.algorithms.clusters import explain_clusters
from edgefl.cohort import choose_cohort
from edgefl.config import FederationConfig
from edgefl.errors import LinkError, RoundError
from edgefl.mqtt import KEEPALIVE_S, Link, Message
from edgefl.plan.spec import Plan, encode_plan
from edgefl.rng import rng_for
from edgefl.security.enrolment import load_enrolment, tls_context
from edgefl.security.trust import Enrolments, Trust
from edgefl.types import ServerState, Weights
from edgefl.wire.messages import JOINING, STOPPED, State
from edgefl.wire.strict_json import decode_json, encode_json
from edgefl.wire.topics import Topics
from mqtt_broker.exchange import Exchange
from mqtt_broker.journal import Journal, Opened
from mqtt_broker.results import client_rows, dropped_of, load_state, result_of, save_result, save_state, summarize
from mqtt_broker.resume import enter
from mqtt_broker.spool import Spool
from mqtt_broker.tasks import Tasks

SETTLE_S = 0.5
LONELY_DEADLINES = 4


class Aggregator:
    """One federation, from the first device to the result. `note` gets a line for a person now and then.

    `security`: the directory of `edgefl broker init`; without it nothing is signed and nobody's signature is asked for.
    """

    def __init__(
        self, config: FederationConfig, plan: Plan, initial: Weights, out: Path, note: Callable[[str], None], security: Path | None = None
    ) -> None:
        self._config, self._initial, self._out, self._note = config, initial, out, note
        own = self._own = load_enrolment(security / "aggregator.enrol") if security else None
        self._trust = Trust(config.name, own.signing_key if own else "", Enrolments(security).key_of if security else None)
        self._algorithm = make_algorithm(plan.spec.algorithm, None, plan.spec.options)
        self._plan, self._plan_blob = plan.id, encode_plan(plan)
        self._topics = Topics(config.name)
        self._gathered = False

    def run(self, broker: str, *, take_over: bool = False, fresh: bool = False) -> dict[str, Any]:
        """Lead the federation to its end and return the result. Raises LinkError, RoundError, StateError, ConfigError.

        `fresh`: begin a new federation although the directory holds one that is not done.
        """
        with Journal(self._out) as self._journal:
            self._started, self._resumed = enter(self._journal, self._config, self._plan, self._out, fresh)
            self._session = self._started.session
            will = Message(self._topics.state, encode_json(self._trust.signed(self._state(STOPPED, 0, 0))), retained=True)
            # not the session, which every device reads: who knows a client id can throw its owner out of the broker
            name = f"edgefl-aggregator-{secrets.token_hex(8)}"
            context = tls_context(self._own) if self._own else None
            self._link = Link(broker, name, will=will, keepalive_s=KEEPALIVE_S, context=context)
            leading = False
            try:
                self._check_alone(take_over)
                self._spool = Spool(self._out / "spool" / self._session)
                self._exchange = Exchange(
                    self._link, self._topics, self._state(JOINING, 0, 0), upload_slots=self._config.upload_slots, spool=self._spool,
                    trust=self._trust, note=self._note,
                )  # fmt: skip
                self._exchange.start()
                leading = True
                result = self._lead(load_state(self._out) if self._resumed else None)
                leading = False
                return result
            finally:
                if leading:
                    self._exchange.keep_only(set())
                    self._link.publish(self._topics.state, encode_json(self._trust.signed(self._state(STOPPED, 0, 0))), retain=True)
                self._link.close()

    def _state(self, phase: str, round: int, cohort_size: int) -> State:
        config = self._config
        return State(config.name, self._session, phase, round, config.rounds, cohort_size, config.deadline_s, self._plan, time.time())

    def _check_alone(self, take_over: bool) -> None:
        self._link.subscribe(self._topics.state)
        message = self._link.get(SETTLE_S)
        if not isinstance(message, Message) or not message.payload or take_over:
            return
        state = decode_json(State, message.payload)
        if state.phase not in (STOPPED, DONE) and state.session != self._session:
            raise LinkError(
                f"the federation {self._config.name!r} has an aggregator on this broker (phase {state.phase}, round {state.round}); "
                "give this one another name, or start it with --take-over when the other one is dead"
            )

    def _lead(self, state: ServerState | None) -> dict[str, Any]:
        config = self._config
        if state is None:
            state = self._algorithm.init(self._initial, rng_for(config.seed, 0, "init"))
        else:
            self._note(f"going on at round {state.round} of {config.rounds} (session {self._session[:8]})")
        self._exchange.offer(self._plan, self._plan_blob)
        while state.round <= config.rounds and state.phase not in (PERSONALIZE, DONE):
            state = self._federate(state)
        state = replace(state, phase=PERSONALIZE)
        opened = self._play(state, self._exchange.presence.online, open_to_all=True)
        rows, seconds = client_rows(self._journal.accepted(opened)), time.time() - self._started.started
        result = result_of(config, self._plan, self._session, rows, self._journal.dropped(), self._journal.losses(PERSONALIZE), seconds)
        path = save_result(result, self._out)
        save_state(replace(state, phase=DONE), self._out)
        self._journal.finish()
        self._spool.remove()
        self._exchange.keep_only(set())
        self._exchange.publish_state(self._state(DONE, state.round, 0))
        self._note(f"done in {result['seconds']:.1f} s; the result is {path}")
        return result

    def _gather(self) -> None:
        """Wait for enough devices to open a round: before the first, as many as the configuration says."""
        if not self._gathered:
            # who was online before a restart says so in a retained message, and all of these come at once
            until = time.monotonic() + SETTLE_S
            while self._resumed and (left := until - time.monotonic()) > 0:
                self._exchange.pump(left)
            self._wait_for(self._config.min_clients, None)
            self._gathered = True
        self._wait_for(1, LONELY_DEADLINES * self._config.deadline_s)

    def _wait_for(self, count: int, timeout_s: float | None) -> None:
        """Wait until so many devices are online."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        told = -1
        while (online := len(self._exchange.presence.online())) < count:
            if online != told:
                self._note(f"waiting for devices: {online} of {count} online")
                told = online
            if until is not None and time.monotonic() > until:
                raise RoundError(f"no device came online within {timeout_s:g} s, expected {count}; look at the devices' logs")
            self._exchange.pump(0.5)

    def _play(self, state: ServerState, cohort: Callable[[], tuple[str, ...]], *, open_to_all: bool = False) -> Opened:
        """Play a round, or what is left of it after a restart; its updates are in the spool then, and it is closed in the journal."""
        config, opened = self._config, self._journal.round(state.round, state.phase)
        if opened is None:
            self._gather()
            opened = self._journal.open_round(Opened(state.round, state.phase, secrets.token_hex(8), cohort()))
        tasks = Tasks(
            self._algorithm, state, session=self._session, plan=self._plan, seed=config.seed, deadline_s=config.deadline_s,
            codec=config.codec, nonce=opened.nonce, offer=self._exchange.offer,
        )  # fmt: skip
        begun = rounds.open_round(
            state.round, opened.cohort, quorum=config.quorum, deadline_s=config.deadline_s, grace_s=config.grace_s, now=time.monotonic()
        )
        for begin in self._journal.accepted(opened):
            if self._spool.restore(begin, tasks.brief(begin.client_id).expected, config.codec):
                begun, _ = rounds.receive(rounds.admit(begun, begin.client_id), begin.round, begin.client_id, begin.sha256)
        if opened.closed:
            return opened
        sent_before = self._link.bytes_up
        self._exchange.publish_state(self._state(state.phase, state.round, len(opened.cohort)))
        closed = self._exchange.play(begun, tasks, lambda begins: self._journal.accept(opened, *begins), open_to_all=open_to_all)
        self._close(closed, opened, sent_before)
        # devices that are late still ask for the blobs of this round; those of the one before are gone
        self._exchange.keep_only(tasks.blobs() | {self._plan})
        return opened

    def _close(self, closed: rounds.Round, opened: Opened, sent_before: int) -> None:
        begins = self._spool.begins()
        seconds = time.monotonic() - closed.opened
        up, down = sum(b.size for b in begins), self._link.bytes_up - sent_before
        summary = summarize(closed, opened.phase, begins, up, down, seconds)
        self._journal.close_round(opened, summary.loss if math.isfinite(summary.loss) else None, dropped_of(closed))
        self._link.publish(self._topics.summary(closed.number), encode_json(summary))
        lost = f", without {', '.join(summary.dropped)}" if summary.dropped else ""
        measured = f"loss {summary.loss:.4f}" if opened.phase != PERSONALIZE else f"accuracy {summary.accuracy_mean:.4f}"
        which = f"round {closed.number}/{self._config.rounds} {opened.phase}" if opened.phase != PERSONALIZE else opened.phase
        self._note(f"{which}: {len(begins)} updates, {measured}, {seconds:.2f} s{lost}")

    def _federate(self, state: ServerState) -> ServerState:
        def cohort() -> tuple[str, ...]:
            return choose_cohort(self._config.seed, state, self._exchange.presence.online(), self._config.clients_per_round)

        self._play(state, cohort)
        after = self._algorithm.aggregate(state, self._spool.updates())
        for line in filter(None, explain_clusters(after) if state.phase == CLUSTER else ()):
            self._note(line)
        save_state(after, self._out)
        # what is spooled goes last: killed before, the round is aggregated again, to the same bits
        self._spool.clear()
        return after

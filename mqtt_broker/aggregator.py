"""The aggregator service: waits for devices, leads the rounds, has them personalize, and writes the result."""

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
from edgefl.types import ServerState, Weights
from edgefl.wire.messages import JOINING, STOPPED, State
from edgefl.wire.strict_json import decode_json, encode_json
from edgefl.wire.topics import Topics
from mqtt_broker.exchange import Exchange
from mqtt_broker.results import Dropped, dropped_of, result_of, save_result, save_state, summarize
from mqtt_broker.results import client_rows as rows_of
from mqtt_broker.spool import Spool
from mqtt_broker.tasks import Tasks

SETTLE_S = 0.5
LONELY_DEADLINES = 4


class Aggregator:
    """One federation, from the first device to the result. `note` gets a line for a person now and then."""

    def __init__(self, config: FederationConfig, plan: Plan, initial: Weights, out: Path, note: Callable[[str], None]) -> None:
        self._config, self._initial, self._out, self._note = config, initial, out, note
        self._session = secrets.token_hex(8)
        self._algorithm = make_algorithm(plan.spec.algorithm, None, plan.spec.options)
        self._plan, self._plan_blob = plan.id, encode_plan(plan)
        self._topics = Topics(config.name)
        self._dropped: list[Dropped] = []
        self._losses: list[float] = []

    def run(self, broker: str, *, take_over: bool = False) -> dict[str, Any]:
        """Lead the federation to its end and return the result. Raises LinkError, RoundError, StateError."""
        started = time.monotonic()
        will = Message(self._topics.state, encode_json(self._state(STOPPED, 0, 0)), retained=True)
        self._link = Link(broker, f"edgefl-aggregator-{self._session[:8]}", will=will, keepalive_s=KEEPALIVE_S)
        leading = False
        try:
            self._check_alone(take_over)
            spool = Spool(self._out / "spool" / self._session)
            self._exchange = Exchange(
                self._link, self._topics, self._state(JOINING, 0, 0), upload_slots=self._config.upload_slots, spool=spool, note=self._note
            )
            self._spool = spool
            self._exchange.start()
            leading = True
            result = self._lead(started)
            leading = False
            return result
        finally:
            if leading:
                self._exchange.keep_only(set())
                self._link.publish(self._topics.state, encode_json(self._state(STOPPED, 0, 0)), retain=True)
            self._link.close()

    def _state(self, phase: str, round: int, cohort_size: int) -> State:
        return State(
            self._config.name,
            self._session,
            phase,
            round,
            self._config.rounds,
            cohort_size,
            self._config.deadline_s,
            self._plan,
            time.time(),
        )

    def _check_alone(self, take_over: bool) -> None:
        self._link.subscribe(self._topics.state)
        message = self._link.get(SETTLE_S)
        if not isinstance(message, Message) or not message.payload or take_over:
            return
        state = decode_json(State, message.payload)
        if state.phase not in (STOPPED, DONE):
            raise LinkError(
                f"the federation {self._config.name!r} has an aggregator on this broker (phase {state.phase}, round {state.round}); "
                "give this one another name, or start it with --take-over when the other one is dead"
            )

    def _lead(self, started: float) -> dict[str, Any]:
        config = self._config
        state = self._algorithm.init(self._initial, rng_for(config.seed, 0, "init"))
        self._exchange.offer(self._plan, self._plan_blob)
        self._wait_for(config.min_clients, None)
        while state.round <= config.rounds and state.phase not in (PERSONALIZE, DONE):
            state = self._federate(state)
        state = replace(state, phase=PERSONALIZE)
        clients = self._personalize(state)
        state = replace(state, phase=DONE)
        save_state(state, self._out)
        result = result_of(config, self._plan, self._session, clients, self._dropped, self._losses, time.monotonic() - started)
        path = save_result(result, self._out)
        self._exchange.keep_only(set())
        self._exchange.publish_state(self._state(DONE, state.round, 0))
        self._note(f"done in {result['seconds']:.1f} s; the result is {path}")
        return result

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

    def _open(self, state: ServerState, cohort: tuple[str, ...]) -> tuple[rounds.Round, Tasks]:
        config = self._config
        tasks = Tasks(
            self._algorithm, state, session=self._session, plan=self._plan, seed=config.seed, deadline_s=config.deadline_s,
            offer=self._exchange.offer,
        )  # fmt: skip
        self._exchange.publish_state(self._state(state.phase, state.round, len(cohort)))
        opened = rounds.open_round(
            state.round, cohort, quorum=config.quorum, deadline_s=config.deadline_s, grace_s=config.grace_s, now=time.monotonic()
        )
        return opened, tasks

    def _close(self, closed: rounds.Round, tasks: Tasks, phase: str, sent_before: int) -> None:
        begins = self._spool.begins()
        self._dropped += dropped_of(closed)
        seconds = time.monotonic() - closed.opened
        up, down = sum(b.size for b in begins), self._link.bytes_up - sent_before
        summary = summarize(closed, phase, begins, up, down, seconds)
        self._link.publish(self._topics.summary(closed.number), encode_json(summary))
        lost = f", without {', '.join(summary.dropped)}" if summary.dropped else ""
        measured = f"loss {summary.loss:.4f}" if phase != PERSONALIZE else f"accuracy {summary.accuracy_mean:.4f}"
        which = f"round {closed.number}/{self._config.rounds} {phase}" if phase != PERSONALIZE else phase
        self._note(f"{which}: {len(begins)} updates, {measured}, {seconds:.2f} s{lost}")
        self._losses += [summary.loss] if phase != PERSONALIZE else []
        # devices that are late still ask for the blobs of this round; those of the one before are gone
        self._exchange.keep_only(tasks.blobs() | {self._plan})

    def _federate(self, state: ServerState) -> ServerState:
        config = self._config
        self._wait_for(1, LONELY_DEADLINES * config.deadline_s)
        cohort = choose_cohort(config.seed, state, self._exchange.presence.online(), config.clients_per_round)
        sent_before = self._link.bytes_up
        opened, tasks = self._open(state, cohort)
        closed = self._exchange.play(opened, tasks)
        self._close(closed, tasks, state.phase, sent_before)
        clustering = state.phase == CLUSTER
        state = self._algorithm.aggregate(state, self._spool.updates())
        for line in filter(None, explain_clusters(state) if clustering else ()):
            self._note(line)
        self._spool.clear()
        save_state(state, self._out)
        return state

    def _personalize(self, state: ServerState) -> list[dict[str, Any]]:
        self._wait_for(1, LONELY_DEADLINES * self._config.deadline_s)
        sent_before = self._link.bytes_up
        opened, tasks = self._open(state, self._exchange.presence.online())
        closed = self._exchange.play(opened, tasks, open_to_all=True)
        self._close(closed, tasks, state.phase, sent_before)
        clients = rows_of(self._spool.begins())
        self._spool.clear()
        return clients

"""The aggregator service: leads one federation over MQTT, from the first device to the result.

After a kill, another start with the same directory continues the federation. It reads the server state after
the last aggregated round, and the open round with its accepted updates from the journal.
"""

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from edgefl.base.config import FederationConfig
from edgefl.base.errors import ConfigError, LinkError, StateError
from edgefl.base.rng import derive_rng
from edgefl.base.storage.aggregator_directory import AggregatorFiles
from edgefl.base.types import ServerState, Weights
from edgefl.base.verdict import FederationVerdict, render_verdict_lines
from edgefl.learning.algorithms import make_algorithm
from edgefl.learning.algorithms.cohort import choose_task_clients
from edgefl.learning.algorithms.measurement import prepare_measurement, read_moments
from edgefl.learning.algorithms.range_test import (
    MAX_TRIALS,
    RANGE_TEST_ALGORITHM,
    RATE,
    describe_lowered_rate,
    draw_test_clients,
    keep_rate,
    prepare_range_test,
    with_chosen_rate,
)
from edgefl.learning.algorithms.registry import has_range_test
from edgefl.learning.privacy import accountant
from edgefl.learning.privacy.mechanism import check_privacy, count_expected_cohort, draw_cohort
from edgefl.program.plan.measured_values import list_measured_values, restore_measured_values
from edgefl.program.plan.normalization import (
    format_normalization,
    has_placeholders,
    read_normalization,
    set_normalization,
)
from edgefl.program.plan.spec import Plan, encode_plan
from edgefl.protocol.security.enrolment import load_enrolment, make_tls_context
from edgefl.protocol.security.trust import DeviceKeys, Trust
from edgefl.protocol.server.events import CloseRound, Finish
from edgefl.protocol.server.faulty_updates import aggregate_usable
from edgefl.protocol.server.plausibility import read_left_out_rounds
from edgefl.protocol.server.round_server import RoundServer
from edgefl.protocol.server.secagg.checks import check_secagg_config
from edgefl.protocol.server.server_algorithm import build_server_algorithm
from edgefl.protocol.server.staleness import check_staleness
from edgefl.protocol.transport.link import KEEPALIVE_S, Link, Message
from edgefl.protocol.transport.message_size import describe_limit, find_message_size
from edgefl.protocol.wire.divergence_message import Divergence, FederationDivergedError, encode_divergence
from edgefl.protocol.wire.messages import Summary
from edgefl.protocol.wire.strict_json import encode_json
from edgefl.protocol.wire.topics import FederationTopics
from edgefl.protocol.wire.url import hide_password
from edgefl.simulation.runs.round_records import find_recorded_divergence, read_round_records
from mqtt_broker.aggregator.cluster_telemetry import ClusterTelemetry
from mqtt_broker.aggregator.driver import Driver, Hooks
from mqtt_broker.aggregator.journal import FederationStart, Journal
from mqtt_broker.aggregator.measurement import Measurement, replace_measurement, run_measurement
from mqtt_broker.aggregator.messages import OtherAggregatorError
from mqtt_broker.aggregator.noise_key import load_noise_key
from mqtt_broker.aggregator.pauses import read_paused_clients
from mqtt_broker.aggregator.results import (
    describe_round,
    judge_clients,
    load_result,
    make_client_rows,
    make_result,
    publish_verdict,
    save_result,
    save_state,
    summarize_round,
)
from mqtt_broker.aggregator.resume import check_single_aggregator, read_last_start, resume_or_start
from mqtt_broker.aggregator.run_log import append_round
from mqtt_broker.aggregator.storage import Storage

LOGGER = logging.getLogger("edgefl.aggregator")
KEEPS_RATE = "keeps_rate"
"""Notes in the journal that this session has the algorithm's own rate, because another one diverged."""


class Aggregator:
    """One federation, from the first device to the result.

    Args:
        initial: initial weights by layer name, each array float32.
        security: directory of `edgefl broker init`. Without it messages are not signed and signatures are
            not checked.
        show_progress: receives the current activity, the number of completed rounds, and the number of all
            rounds.
        on_round_closed: receives the summary of each round.

    Raises:
        ConfigError: the algorithm does not support the staleness, privacy or secure aggregation of the
            configuration.
    """

    def __init__(
        self,
        config: FederationConfig,
        plan: Plan,
        initial: Weights,
        out: Path,
        security: Path | None = None,
        show_progress: Callable[[str, int, int], None] = lambda *_: None,
        on_round_closed: Callable[[Summary], None] = lambda _: None,
    ) -> None:
        check_staleness(config)
        self._on_round_closed = on_round_closed
        self._initial = initial
        self._out = out
        self._show_progress = show_progress
        self._aggregator_enrolment = load_enrolment(security / "aggregator.enrol") if security else None
        self._enrolments = DeviceKeys(security) if security else None
        self._trust = Trust(
            federation=config.name,
            key=self._aggregator_enrolment.signing_key if self._aggregator_enrolment else "",
            find_key=self._enrolments.find_key if self._enrolments else None,
            clients=frozenset(config.clients),
        )
        algorithm = make_algorithm(plan.spec.algorithm, None, plan.spec.options)
        check_privacy(algorithm, config)
        check_secagg_config(algorithm, config)
        self._config = accountant.limit_to_budget(config)
        self._plan = self._configured_plan = plan
        self._keeps_rate = False
        self._sessions: list[str] = []
        """The sessions of this aggregator, also those of measurements, whose states the broker may retain."""
        self._topics = FederationTopics(config.name)

    def run(self, broker: str, *, take_over: bool = False, fresh: bool = False) -> dict[str, Any]:
        """Lead the federation to its end and return the result.

        Args:
            broker: URL of the broker, or several URLs separated by commas.
            take_over: lead the federation even if another aggregator for it appears to be running.
            fresh: start a new federation even if the directory contains one. Otherwise the aggregator
                resumes that federation, or publishes its end again if it is complete.

        Returns:
            The content of result.json.

        Raises:
            LinkError: the broker cannot be used, or another aggregator leads the federation.
            RoundError: a round missed its quorum in every attempt, or no device joined.
            FederationDivergedError: training diverged.
            StateError: the directory cannot be read or written, or another aggregator uses it.
            ConfigError: the directory contains a federation with other settings.
        """
        with Journal(self._out) as journal:
            started, resumed = resume_or_start(journal, self._config, self._plan.id, self._out, fresh)
            self._keeps_rate = bool(journal.parse_settings(started).get(KEEPS_RATE))
            try:
                return self._run_session(broker, journal, started, resumed, take_over)
            except FederationDivergedError as error:
                if not self._can_lower_rate():
                    raise
                LOGGER.warning(describe_lowered_rate(error, self._plan.spec, self._configured_plan.spec))
            self._keeps_rate, self._plan = True, self._configured_plan
            started, resumed = resume_or_start(
                journal, self._config, self._plan.id, self._out, fresh=True, notes={KEEPS_RATE: True}
            )
            return self._run_session(broker, journal, started, resumed, take_over)

    def _can_lower_rate(self) -> bool:
        """Return whether a range test found a larger rate than the configuration has."""
        rate, configured = (plan.spec.options.get(RATE, 0.0) for plan in (self._plan, self._configured_plan))
        return bool(rate > configured)

    def _run_session(
        self, broker: str, journal: Journal, started: FederationStart, resumed: bool, take_over: bool
    ) -> dict[str, Any]:
        """Lead one session of the federation to its end and return the result."""
        session = started.session
        run = journal.begin_run(
            max(time.time_ns() // 10**6, self._read_last_start(broker) + 1 if take_over else 0)
        )
        sessions = self._sessions = [session, *self._sessions]
        if not started.is_done:
            for measurement in self._list_measurements():
                if journal.read_last_number() and not measurement.directory.exists():
                    raise StateError(
                        f"{measurement.directory} is missing, which has the values that the devices measured "
                        "before round 1; restore it from a backup, or start again with --fresh"
                    )
                is_range_test = measurement.plan.spec.algorithm == RANGE_TEST_ALGORITHM
                if self._keeps_rate and is_range_test:
                    replace_measurement(self._config, measurement, keep_rate(measurement.initial), session)
                    break
                measuring, state = run_measurement(
                    self._config,
                    measurement,
                    self._out,
                    self._trust,
                    lambda name, will: self._open_link(broker, name, will),
                    self._show_progress,
                    federation=session,
                    earlier=sessions,
                    start=run,
                    take_over=take_over,
                )
                self._use_measured(measurement, state)
                sessions.append(measuring)
                run = journal.begin_run(run)  # a later start, because devices order tasks by it
            if resumed and self._can_lower_rate():  # the process may have ended before it lowered the rate
                records = read_round_records(AggregatorFiles(self._out).rounds)
                spec = self._plan.spec
                if divergence := find_recorded_divergence(records, self._config, spec, can_lower_rate=True):
                    raise FederationDivergedError(divergence)
            self._config = replace(self._config, chunk_bytes=self._choose_chunk_bytes(broker))
        else:
            result = load_result(self._out)
            self._plan = restore_measured_values(self._plan, result, self._config.range_test)
        storage = Storage(self._out, journal)
        server, aggregate = self._make_server(
            journal,
            storage,
            session,
            run,
            resumed and not started.is_done,
            gathers_online=len(sessions) > 1 or self._keeps_rate,
        )
        stopped = self._trust.encode(replace(server.make_stopped_state(), ts=time.time()))
        # The client id is not the session, which every device reads. A second connection with the same
        # client id would disconnect the aggregator
        name = f"edgefl-aggregator-{secrets.token_hex(8)}"
        link = self._open_link(
            broker, name, Message(topic=self._topics.state, payload=stopped, retained=True)
        )
        try:
            check_single_aggregator(link, self._topics, sessions, take_over)
            if started.is_done:
                done = self._trust.encode(replace(server.make_done_state(), ts=time.time()))
                return self._announce_again(link, session, done)
            # The broker may retain the verdict of an earlier federation
            link.publish(self._topics.verdict, b"", retain=True)
            return self._lead(link, server, aggregate, journal, storage, session, started.started)
        finally:
            link.close()

    def _list_measurements(self) -> Iterator[Measurement]:
        """Yield what to measure before round 1. The plan must have the values of one before the next."""
        files = AggregatorFiles(self._out)
        seed = self._config.seed
        if has_placeholders(self._plan.spec):
            if self._config.privacy.is_on or self._config.privacy.secure_aggregation:
                raise ConfigError(
                    "mean and std of this plan are not set, and [privacy] is on, which no measurement of "
                    "them satisfies; write both into [model]"
                )
            plan, algorithm, initial = prepare_measurement(self._plan, seed)
            yield Measurement(
                subject="mean and std are measured",
                plan=plan,
                algorithm=algorithm,
                initial=initial,
                directory=files.measurement,
                choose_clients=lambda clients: tuple(sorted(clients)),
                admits_arrivals=True,
                deadline_s=self._config.deadline_s,
            )
        if not self._config.range_test:
            return
        if not has_range_test(self._plan.spec):
            LOGGER.warning(
                f"range_test has no effect on {self._plan.spec.algorithm}, which uses its own rate"
            )
            return
        plan, algorithm, initial = prepare_range_test(self._plan, self._initial, seed)
        yield Measurement(
            subject="learning rates are tried",
            plan=plan,
            algorithm=algorithm,
            initial=initial,
            directory=files.range_test,
            choose_clients=lambda clients: draw_test_clients(clients, seed),
            admits_arrivals=False,
            deadline_s=MAX_TRIALS * self._config.deadline_s,
        )

    def _use_measured(self, measurement: Measurement, state: ServerState) -> None:
        """Set what a measurement found in the plan."""
        if measurement.plan.spec.algorithm == RANGE_TEST_ALGORITHM:
            before = self._plan.spec.options[RATE]
            self._plan = with_chosen_rate(self._plan, state)
            rate = self._plan.spec.options[RATE]
            LOGGER.info(f"range test over the devices: learning_rate = {rate:g}, the default is {before:g}")
            return
        self._plan = set_normalization(self._plan, *read_moments(state))
        measured = format_normalization(read_normalization(self._plan.spec))
        LOGGER.info(f"measured over the devices, by channel: {measured}; the model normalizes its input")

    def _open_link(self, broker: str, name: str, will: Message | None = None) -> Link:
        context = make_tls_context(self._aggregator_enrolment) if self._aggregator_enrolment else None
        return Link(broker, name, will=will, keepalive_s=KEEPALIVE_S, context=context)

    def _choose_chunk_bytes(self, broker: str) -> int:
        """Return the configured size of chunks, or the largest part of it that the broker delivers."""
        requested = self._config.chunk_bytes
        fitting = find_message_size(
            lambda: self._open_link(broker, f"edgefl-size-{secrets.token_hex(8)}"),
            lambda payload: self._topics.format_blob(sha256(payload).hexdigest(), 0),
            requested,
        )
        if fitting < requested:
            problem, remedy = describe_limit(hide_password(broker), requested, fitting)
            if not fitting:
                raise LinkError(f"{problem}; {remedy}")
            LOGGER.warning(f"{problem}; messages of {fitting} bytes are sent instead; {remedy}")
        return fitting

    def _read_last_start(self, broker: str) -> int:
        """Return the start of the aggregator to take over from. Its clock may be ahead of this one."""
        link = self._open_link(broker, f"edgefl-start-{secrets.token_hex(8)}")
        try:
            return read_last_start(link, self._topics)
        finally:
            link.close()

    def _make_server(
        self,
        journal: Journal,
        storage: Storage,
        session: str,
        run: int,
        resumed: bool,
        *,
        gathers_online: bool,
    ) -> tuple[RoundServer, Callable[[Link, ServerState], ServerState]]:
        """Return the round server, and a function that aggregates the stored updates of a round."""
        config, spec = self._config, self._plan.spec
        key = load_noise_key(self._out, session) if config.privacy.is_on else b""
        algorithm = build_server_algorithm(
            make_algorithm(spec.algorithm, None, spec.options), config, spec, key=key
        )
        clusters = ClusterTelemetry(config, spec, self._out)
        initial = algorithm.init(self._initial, derive_rng(config.seed, 0, "init"))

        def draw(state: ServerState, available: Iterable[str]) -> tuple[str, ...]:
            clients = tuple(available)
            return (
                draw_cohort(config, key, state, clients)
                if config.privacy.is_on
                else choose_task_clients(config, state, clients)
            )

        def aggregate(link: Link, state: ServerState) -> ServerState:
            after = aggregate_usable(
                algorithm,
                state,
                storage.list_clients(),
                lambda clients: clusters.record_experts(storage.read_updates(clients)),
            )
            clusters.publish(link, self._topics, session, state.round, after)
            return after

        server = RoundServer(
            config=config,
            spec=spec,
            plan=(self._plan.id, encode_plan(self._plan)),
            algorithm=algorithm,
            state=initial,
            session=session,
            started=run,
            draw_cohort=draw,
            new_nonce=lambda: secrets.token_hex(8),
            trust=self._trust,
            introduce=self._enrolments.find_introduction if self._enrolments else None,
            resume=storage.resume(config, spec, algorithm, initial) if resumed else None,
            gathers_online=gathers_online,
            can_lower_rate=self._can_lower_rate(),
        )
        return server, aggregate

    def _lead(
        self,
        link: Link,
        server: RoundServer,
        aggregate: Callable[[Link, ServerState], ServerState],
        journal: Journal,
        storage: Storage,
        session: str,
        started: float,
    ) -> dict[str, Any]:
        ended: list[tuple[dict[str, Any], FederationVerdict]] = []

        def finish(action: Finish) -> None:
            storage.wait()
            ended.append(self._finish(action, link, journal, storage, session, started))

        hooks = Hooks(
            aggregate=partial(aggregate, link),
            close=partial(self._close_round, link),
            finish=finish,
            show_progress=self._show_progress,
            read_paused=lambda: read_paused_clients(self._out),
        )
        driver = Driver(
            server=server,
            link=link,
            topics=self._topics,
            session=session,
            trust=self._trust,
            storage=storage,
            hooks=hooks,
        )
        settings: dict[str, float] = {}
        is_superseded = False
        try:
            driver.run()
        except OtherAggregatorError:  # The federation goes on, so it must not be reported as stopped
            is_superseded = True
            raise
        except FederationDivergedError as error:
            if not self._can_lower_rate():  # else the devices wait for the next session
                settings = encode_divergence(self._redact_divergence(error.divergence))
            raise
        finally:
            if not (ended or is_superseded):
                driver.stop(settings)
        [(result, verdict)] = ended
        LOGGER.info(f"done in {result['seconds']:.1f} s; the result is {AggregatorFiles(self._out).result}")
        for line in render_verdict_lines(verdict):
            LOGGER.info(line)
        return result

    def _redact_divergence(self, divergence: Divergence) -> Divergence:
        """Return the public part of a divergence. With `[privacy]` it omits the size of the drawn cohort."""
        if not (self._config.privacy.is_on and divergence.cohort):
            return divergence
        size = count_expected_cohort(self._config)
        return replace(divergence, cohort=size, clients=min(divergence.clients, size))

    def _close_round(self, link: Link, action: CloseRound, sent: int) -> None:
        """Log, store and publish the summary of a closed round."""
        closed, begins, phase = action.closed, action.begins, action.opened.phase
        if closed is None or not (closed.cohort or begins):
            return
        received = sum(begin.size for begin in begins)
        summary = summarize_round(closed, phase, begins, action.dropped, received, sent, action.seconds)
        self._on_round_closed(summary)
        # Losses have no noise, and the dropped clients reveal a part of the drawn cohort
        if not self._config.privacy.is_on:
            append_round(summary, begins, self._out)
            link.publish(self._topics.format_summary(closed.number), encode_json(summary))
        LOGGER.info(
            describe_round(summary, closed, phase, self._config.rounds),
            extra={"round": summary.round, "phase": phase},
        )

    def _finish(
        self,
        action: Finish,
        link: Link,
        journal: Journal,
        storage: Storage,
        session: str,
        started: float,
    ) -> tuple[dict[str, Any], FederationVerdict]:
        """Write the result, publish the verdict, and return both."""
        # The result needs only the journal. Removing the updates first frees disk space for it
        storage.remove_updates()
        rows = make_client_rows(journal.read_accepted(action.opened))
        verdict = judge_clients(self._plan.spec, rows, self._config.rounds, self._out)
        result = make_result(
            self._config,
            self._plan.id,
            session,
            rows,
            journal.read_dropped(),
            read_left_out_rounds(action.state),
            journal.read_losses(action.opened.phase),
            time.time() - started,
            verdict,
            list_measured_values(self._plan.spec, self._config.range_test),
        )
        save_result(result, self._out)
        save_state(action.state, self._out)
        journal.finish()
        publish_verdict(link, self._topics, session, self._config, verdict)
        return result, verdict

    def _announce_again(self, link: Link, session: str, done: bytes) -> dict[str, Any]:
        """Publish again that the federation is complete, and return its result.

        Devices may have been offline, or an earlier process was killed before it published this.
        """
        result = load_result(self._out)
        verdict = judge_clients(self._plan.spec, result["clients"], self._config.rounds, self._out)
        publish_verdict(link, self._topics, session, self._config, verdict)
        link.publish(self._topics.state, done, retain=True)
        path = AggregatorFiles(self._out).result
        LOGGER.info(
            f"this federation is done, its result is {path}; pass another --out, or start again with --fresh"
        )
        for line in render_verdict_lines(verdict):
            LOGGER.info(line)
        return result

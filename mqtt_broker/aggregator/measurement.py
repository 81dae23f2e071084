"""Measures the devices' samples before round 1, each measurement as a session of its own.

There are two measurements: mean and std of each channel, and the losses of learning rates. A session has a
plan, a journal and a state like a federation, so a restart continues it.
"""

import logging
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from edgefl.base.config import MIXTURE_ONLY, AugmentationConfig, FederationConfig
from edgefl.base.errors import StateError
from edgefl.base.types import ServerState
from edgefl.learning.algorithms.base import Algorithm
from edgefl.program.plan.spec import Plan, encode_plan
from edgefl.protocol.security.trust import Trust
from edgefl.protocol.server.events import CloseRound
from edgefl.protocol.server.faulty_updates import aggregate_usable
from edgefl.protocol.server.round_server import RoundServer
from edgefl.protocol.transport.link import Link, Message
from edgefl.protocol.wire.topics import FederationTopics
from mqtt_broker.aggregator.driver import Driver, Hooks
from mqtt_broker.aggregator.journal import FederationStart, Journal
from mqtt_broker.aggregator.messages import OtherAggregatorError
from mqtt_broker.aggregator.pauses import read_paused_clients
from mqtt_broker.aggregator.results import load_state, save_state
from mqtt_broker.aggregator.resume import check_single_aggregator, resume_or_start
from mqtt_broker.aggregator.storage import Storage

LOGGER = logging.getLogger("edgefl.aggregator")


@dataclass(frozen=True)
class Measurement:
    """What is measured before a federation.

    Attributes:
        subject: what it measures, for a warning about clients that are missing.
        plan: the plan of the measurement.
        algorithm: its algorithm.
        initial: its first server state.
        directory: the directory of its session.
        choose_clients: returns the clients that count, among those that are online or that reported.
        admits_arrivals: whether clients that come online meanwhile take part.
        deadline_s: seconds after which it closes if it has its quorum.
    """

    subject: str
    plan: Plan
    algorithm: Algorithm
    initial: ServerState
    directory: Path
    choose_clients: Callable[[Iterable[str]], tuple[str, ...]]
    admits_arrivals: bool
    deadline_s: float


def make_measurement_config(config: FederationConfig, measurement: Measurement) -> FederationConfig:
    """Return the configuration of a measurement before a federation.

    Args:
        measurement: what is measured.
    """
    return replace(
        config,
        rounds=1,
        least_rounds=0,
        clients_per_round=0,
        codec="fp32",
        mode="sync",
        buffer=0,
        over_selection=1.0,
        late="drop",
        budget_s=0.0,
        evaluate=False,
        range_test=False,
        deadline_s=measurement.deadline_s,
        algorithm=measurement.plan.spec.algorithm,
        options=measurement.plan.spec.options,
        personalization=MIXTURE_ONLY,
        augmentation=AugmentationConfig(),
    )


def run_measurement(
    config: FederationConfig,
    measurement: Measurement,
    out: Path,
    trust: Trust,
    open_link: Callable[[str, Message | None], Link],
    show_progress: Callable[[str, int, int], None],
    *,
    federation: str,
    earlier: Iterable[str],
    start: int,
    take_over: bool,
) -> tuple[str, ServerState]:
    """Return the session of a measurement, and the server state after it. Run it unless it is complete.

    A measurement belongs to one session of the federation. Another session, as after `--fresh`, measures
    again.

    Args:
        measurement: what is measured.
        out: the directory of the aggregator.
        trust: signs messages and checks signatures.
        open_link: opens a connection with a client id and a last will.
        show_progress: see `Hooks`.
        earlier: sessions of earlier measurements of this federation.
        start: start of this run of the aggregator, see `Journal.begin_run`.
        take_over: lead the federation even if another aggregator for it appears to be running.

    Raises:
        EdgeflError: as in `Aggregator.run`.
    """
    measured, algorithm, initial = measurement.plan, measurement.algorithm, measurement.initial
    config = make_measurement_config(config, measurement)
    directory = measurement.directory
    with Journal(directory) as journal:
        started, resumed = _resume_or_start(journal, config, measurement, federation)
        if not started.is_done:
            storage = Storage(directory, journal)
            server = RoundServer(
                config=config,
                spec=measured.spec,
                plan=(measured.id, encode_plan(measured)),
                algorithm=algorithm,
                state=initial,
                session=started.session,
                started=start,
                draw_cohort=lambda state, available: measurement.choose_clients(available),
                new_nonce=lambda: secrets.token_hex(8),
                trust=trust,
                resume=storage.resume(config, measured.spec, algorithm, initial) if resumed else None,
                personalizes=False,
                admits_arrivals=measurement.admits_arrivals,
                gathers_online=True,
            )
            topics = FederationTopics(config.name)
            stopped = trust.encode(replace(server.make_stopped_state(), ts=time.time()))
            link = open_link(
                f"edgefl-aggregator-{secrets.token_hex(8)}",
                Message(topic=topics.state, payload=stopped, retained=True),
            )
            hooks = Hooks(
                aggregate=partial(_aggregate, measurement, storage),
                close=partial(_log_close, measurement.subject),
                finish=lambda action: None,
                show_progress=show_progress,
                read_paused=lambda: read_paused_clients(out),
            )
            driver = Driver(
                server=server,
                link=link,
                topics=topics,
                session=started.session,
                trust=trust,
                storage=storage,
                hooks=hooks,
            )
            try:
                check_single_aggregator(link, topics, (started.session, federation, *earlier), take_over)
                try:
                    driver.run()
                except OtherAggregatorError:  # The federation goes on, so it must not be reported as stopped
                    raise
                except BaseException:
                    driver.stop({})
                    raise
            finally:
                link.close()
            storage.wait()
            storage.remove_updates()
            journal.finish()
        state = load_state(directory)
    if state is None:
        raise StateError(f"{directory} has no measured values; start again with --fresh")
    return started.session, state


def replace_measurement(
    config: FederationConfig, measurement: Measurement, state: ServerState, federation: str
) -> tuple[str, ServerState]:
    """Store a server state in place of a measurement, and return the session and the state.

    Args:
        measurement: what is not measured.
        state: the server state after it.

    Raises:
        StateError: the directory cannot be written.
    """
    config = make_measurement_config(config, measurement)
    with Journal(measurement.directory) as journal:
        started, _ = _resume_or_start(journal, config, measurement, federation)
        save_state(state, measurement.directory)
        journal.finish()
    return started.session, state


def _resume_or_start(
    journal: Journal, config: FederationConfig, measurement: Measurement, federation: str
) -> tuple[FederationStart, bool]:
    """Return the start of a measurement for a session of the federation, and whether it is resumed."""
    existing = journal.read_start()
    settings = f"{measurement.plan.id} in session {federation}"
    is_other = existing is not None and journal.parse_settings(existing).get("plan") != settings
    return resume_or_start(journal, config, settings, measurement.directory, is_other)


def _aggregate(measurement: Measurement, storage: Storage, state: ServerState) -> ServerState:
    """Return the state after the measurement. If others had to be asked, more clients may have reported."""
    clients = measurement.choose_clients(storage.list_clients())
    return aggregate_usable(measurement.algorithm, state, clients, storage.read_updates)


def _log_close(subject: str, action: CloseRound, sent: int) -> None:
    """Log which clients are missing from a measurement."""
    if action.dropped:
        missing = ", ".join(dropped.client_id for dropped in action.dropped)
        LOGGER.warning(f"{subject} without {missing}")

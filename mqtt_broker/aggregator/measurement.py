"""Measures the mean and std of all devices' samples before round 1, as a session of its own.

The session has a plan, a journal and a state like a federation, so a restart continues it. Its directory is
`measurement/` in the directory of the aggregator.
"""

import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from edgefl.algorithms.base import Algorithm
from edgefl.algorithms.measurement import MEASUREMENT_ALGORITHM, prepare_measurement, read_moments
from edgefl.config import MIXTURE_ONLY, AugmentationConfig, FederationConfig
from edgefl.errors import StateError
from edgefl.plan.spec import Plan, encode_plan
from edgefl.security.trust import Trust
from edgefl.server.events import CloseRound
from edgefl.server.faulty_updates import aggregate_usable
from edgefl.server.round_server import RoundServer
from edgefl.storage.aggregator_directory import AggregatorFiles
from edgefl.transport.link import Link, Message
from edgefl.types import ServerState
from edgefl.wire.topics import FederationTopics
from mqtt_broker.aggregator.driver import Driver, Hooks
from mqtt_broker.aggregator.journal import Journal
from mqtt_broker.aggregator.messages import OtherAggregatorError
from mqtt_broker.aggregator.pauses import read_paused_clients
from mqtt_broker.aggregator.results import load_state
from mqtt_broker.aggregator.resume import check_single_aggregator, resume_or_start
from mqtt_broker.aggregator.storage import Storage

LOGGER = logging.getLogger("edgefl.aggregator")
Moments = tuple[list[float], list[float]]


def make_measurement_config(config: FederationConfig) -> FederationConfig:
    """Return the configuration of the measurement before a federation.

    Args:
        config: the configuration of the federation.
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
        algorithm=MEASUREMENT_ALGORITHM,
        options={},
        personalization=MIXTURE_ONLY,
        augmentation=AugmentationConfig(),
    )


def measure_samples(
    config: FederationConfig,
    plan: Plan,
    out: Path,
    trust: Trust,
    open_link: Callable[[str, Message | None], Link],
    show_progress: Callable[[str, int, int], None],
    *,
    federation: str,
    start: int,
    take_over: bool,
) -> tuple[str, Moments]:
    """Return the session of the measurement, and mean and std of each channel. Measure them if needed.

    A measurement belongs to one session of the federation. Another session, as after `--fresh`, measures
    again.

    Args:
        config: the configuration of the federation.
        plan: the plan of the federation, whose normalization is not set yet.
        out: the directory of the aggregator.
        trust: signs messages and checks signatures.
        open_link: opens a connection with a client id and a last will.
        show_progress: see `Hooks`.
        federation: the session of the federation.
        start: start of this run of the aggregator, see `Journal.begin_run`.
        take_over: lead the federation even if another aggregator for it appears to be running.

    Raises:
        EdgeflError: as in `Aggregator.run`.
    """
    config = make_measurement_config(config)
    measured, algorithm, initial = prepare_measurement(plan, config.seed)
    directory = AggregatorFiles(out).measurement
    with Journal(directory) as journal:
        existing = journal.read_start()
        settings = f"{measured.id} in session {federation}"
        is_other = existing is not None and journal.parse_settings(existing).get("plan") != settings
        started, resumed = resume_or_start(journal, config, settings, directory, is_other)
        if not started.is_done:
            storage = Storage(directory, journal)
            server = RoundServer(
                config,
                measured.spec,
                (measured.id, encode_plan(measured)),
                algorithm,
                initial,
                session=started.session,
                started=start,
                draw_cohort=lambda state, available: tuple(sorted(available)),
                new_nonce=lambda: secrets.token_hex(8),
                trust=trust,
                resume=storage.resume(config, measured.spec, algorithm, initial) if resumed else None,
                personalizes=False,
                gathers_online=True,
            )
            topics = FederationTopics(config.name)
            stopped = trust.encode(replace(server.make_stopped_state(), ts=time.time()))
            link = open_link(
                f"edgefl-aggregator-{secrets.token_hex(8)}", Message(topics.state, stopped, retained=True)
            )
            hooks = Hooks(
                aggregate=partial(_aggregate, algorithm, storage),
                close=_log_close,
                finish=lambda action: None,
                show_progress=show_progress,
                read_paused=lambda: read_paused_clients(out),
            )
            driver = Driver(server, link, topics, started.session, trust, storage, hooks)
            try:
                check_single_aggregator(link, topics, (started.session, federation), take_over)
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
    return started.session, read_moments(state)


def _aggregate(algorithm: Algorithm, storage: Storage, state: ServerState) -> ServerState:
    return aggregate_usable(algorithm, state, storage.list_clients(), storage.read_updates)


def _log_close(action: CloseRound, sent: int) -> None:
    """Log which clients are missing from the measurement."""
    if action.dropped:
        missing = ", ".join(dropped.client_id for dropped in action.dropped)
        LOGGER.warning(f"mean and std are measured without {missing}")

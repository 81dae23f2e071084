"""Decides whether an aggregator starts a federation or resumes the federation of its directory."""

import json
import secrets
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from edgefl.algorithms import PHASE_DONE
from edgefl.config import FederationConfig
from edgefl.errors import ConfigError, LinkError
from edgefl.storage.aggregator_directory import AggregatorFiles
from edgefl.transport.link import Link, Message
from edgefl.wire.messages import STOPPED_PHASE, State
from edgefl.wire.strict_json import decode_json
from edgefl.wire.topics import FederationTopics
from mqtt_broker.aggregator.journal import FederationStart, Journal
from mqtt_broker.aggregator.run_log import write_run_note

RETAINED_WAIT_S = 0.5
"""How long retained messages take to come after a subscription."""


CHANGEABLE_SETTINGS = (
    "broker",
    "clients",
    "max_samples",
    "chunk_bytes",
    "evaluate",
    "data",
    "partition",
    "fleet",
)
"""Settings that another start in the same directory may change."""


def select_fixed_settings(config: FederationConfig, plan: str) -> dict[str, Any]:
    """Return the settings that must be the same to resume a federation.

    These settings may change: the broker's address, the devices that may take part, the number of samples
    that they may count, and the size of messages. It may also change whether devices report their
    accuracy, and how
    long the aggregator waits for devices that personalize. Settings that only the simulator reads may
    change too.
    """
    fixed = {key: value for key, value in asdict(config).items() if key not in CHANGEABLE_SETTINGS}
    del fixed["personalization"]["deadline_s"]
    settings: dict[str, Any] = json.loads(json.dumps({**fixed, "plan": plan}))
    return settings


def resume_or_start(
    journal: Journal, config: FederationConfig, plan: str, out: Path, fresh: bool
) -> tuple[FederationStart, bool]:
    """Return the session and whether it was resumed. A complete federation restarts only with `fresh`.

    Raises:
        ConfigError: the directory contains a federation with other settings.
    """
    settings = select_fixed_settings(config, plan)
    existing = journal.read_start()
    if existing and not fresh:
        # an older version did not know all keys, and did what their defaults say
        before = {
            **(defaults := select_fixed_settings(FederationConfig(), plan)),
            **json.loads(existing.settings),
        }
        for table in ("privacy", "personalization"):
            before[table] = {**defaults[table], **before[table]}
        before["personalization"].pop("deadline_s", None)  # older versions noted it
        if differs := sorted(key for key in settings if settings[key] != before.get(key)):
            key = differs[0]
            raise ConfigError(
                f"{out} holds a federation that is {'' if existing.is_done else 'not '}done, with {key} "
                f"{str(before.get(key))[:60]!r}, this one has {str(settings[key])[:60]!r}; give another "
                "--out, start again with --fresh, or continue with its own settings"
            )
        return existing, True
    files = AggregatorFiles(out)
    for path in (files.server_state, files.result, files.rounds, files.clusters, files.note):
        path.unlink(missing_ok=True)
    started = FederationStart(secrets.token_hex(8), json.dumps(settings), time.time())
    write_run_note(config, out)
    journal.start(started)
    return started, False


def check_single_aggregator(link: Link, topics: FederationTopics, session: str, take_over: bool) -> None:
    """Raise LinkError when another aggregator leads this federation on the broker, or led it and died without
    a restart.
    """
    link.subscribe(topics.state)
    message = link.get(RETAINED_WAIT_S)
    if not isinstance(message, Message) or not message.payload or take_over:
        return
    state = decode_json(State, message.payload)
    if state.phase not in (STOPPED_PHASE, PHASE_DONE) and state.session != session:
        round_text = f", round {state.round}" if 0 < state.round <= state.rounds else ""
        raise LinkError(
            f"the federation {topics.federation!r} has an aggregator on this broker (phase {state.phase}"
            f"{round_text}); give this one another name, or start it with --take-over when the other "
            "one is dead"
        )

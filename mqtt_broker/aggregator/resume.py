"""Decides whether an aggregator starts a federation or resumes the federation of its directory."""

import contextlib
import json
import secrets
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

from edgefl.base.config import FederationConfig
from edgefl.base.errors import ConfigError, LinkError, StateError, WireError
from edgefl.base.storage.aggregator_directory import AggregatorFiles
from edgefl.base.system.files import remove_state
from edgefl.learning.algorithms import PHASE_DONE
from edgefl.protocol.transport.link import Link, Message
from edgefl.protocol.wire.messages import STOPPED_PHASE, State
from edgefl.protocol.wire.strict_json import decode_json
from edgefl.protocol.wire.topics import FederationTopics
from mqtt_broker.aggregator.journal import FederationStart, Journal
from mqtt_broker.aggregator.run_log import write_run_note

RETAINED_WAIT_S = 0.5
"""Longest wait for retained messages after a subscription."""


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

    `CHANGEABLE_SETTINGS` and `deadline_s` of `[personalization]` may change.

    Args:
        plan: id of the plan.
    """
    fixed = {key: value for key, value in asdict(config).items() if key not in CHANGEABLE_SETTINGS}
    del fixed["personalization"]["deadline_s"]
    settings: dict[str, Any] = json.loads(json.dumps({**fixed, "plan": plan}))
    return settings


def resume_or_start(
    journal: Journal,
    config: FederationConfig,
    plan: str,
    out: Path,
    fresh: bool,
    notes: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[FederationStart, bool]:
    """Return the start of the federation and whether the federation is resumed.

    A complete federation restarts only with `fresh`.

    Args:
        journal: open journal of the directory.
        plan: id of the plan.
        out: directory of the aggregator. A new start removes the files of an earlier federation.
        fresh: start a new federation even if the directory contains one.
        notes: stored with the settings of a new start. They may be missing when it is resumed.

    Raises:
        ConfigError: the directory contains a federation with other settings.
        StateError: the directory cannot be read or written, or its journal is missing or empty.
    """
    settings = select_fixed_settings(config, plan)
    existing = journal.read_start()
    if existing and not fresh:
        # An older edgefl did not store settings that it lacks. It behaved as with their defaults
        before = select_fixed_settings(FederationConfig(), "") | journal.parse_settings(existing)
        if differs := sorted(key for key in settings if settings[key] != before.get(key)):
            key = differs[0]
            raise ConfigError(
                f"{out} holds a federation that is {'' if existing.is_done else 'not '}done, with {key} "
                f"{str(before.get(key))[:60]!r}, this one has {str(settings[key])[:60]!r}; pass another "
                "--out, start again with --fresh, or continue with the stored settings"
            )
        return existing, True
    files = AggregatorFiles(out)
    if not (existing or fresh):
        _check_no_remains(files)
    for path in (files.server_state, files.result, files.rounds, files.clusters, files.note):
        remove_state(path, "choose another --out")
    started = FederationStart(
        session=secrets.token_hex(8), settings=json.dumps({**settings, **notes}), started=time.time()
    )
    write_run_note(config, out)
    journal.start(started)
    return started, False


def _check_no_remains(files: AggregatorFiles) -> None:
    """Raise StateError if a directory without a stored start holds results of a federation."""
    for path in (files.server_state, files.result, files.rounds):
        if path.exists():
            raise StateError(
                f"{files.journal} is missing or empty, but {path} of a federation exists; restore the "
                "journal from a backup, pass another --out, or remove that federation with --fresh"
            )


def read_last_start(link: Link, topics: FederationTopics) -> int:
    """Return the start of the run that published the retained state, in milliseconds since 1970.

    0 without a readable state.

    Raises:
        LinkError: the broker does not answer the subscription.
    """
    link.subscribe(topics.state)
    message = link.get(RETAINED_WAIT_S)
    with contextlib.suppress(WireError):
        if isinstance(message, Message) and message.payload:
            return decode_json(State, message.payload).started
    return 0


def check_single_aggregator(
    link: Link, topics: FederationTopics, sessions: Collection[str], take_over: bool
) -> None:
    """Check that no other aggregator leads this federation on the broker.

    Args:
        take_over: accept a retained state of another aggregator.

    Raises:
        LinkError: another aggregator leads the federation, or died while it led it.
        WireError: the retained state cannot be read.
    """
    link.subscribe(topics.state)
    message = link.get(RETAINED_WAIT_S)
    if not isinstance(message, Message) or not message.payload or take_over:
        return
    state = decode_json(State, message.payload)
    if state.phase not in (STOPPED_PHASE, PHASE_DONE) and state.session not in sessions:
        round_text = f", round {state.round}" if 0 < state.round <= state.rounds else ""
        raise LinkError(
            f"the federation {topics.federation!r} has an aggregator on this broker (phase {state.phase}"
            f"{round_text}); give this one another name, or start it with --take-over if the other "
            "aggregator no longer runs"
        )

"""Whether an aggregator begins a federation or goes on with one that its directory holds."""

import json
import secrets
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from edgefl.config import FederationConfig
from edgefl.errors import ConfigError
from mqtt_broker.journal import Journal, Started
from mqtt_broker.results import RESULT, STATE


def settings_of(config: FederationConfig, plan: str) -> dict[str, Any]:
    """Return what must be the same to go on with a federation: all but where the broker is and what only the simulator reads."""
    told = {key: value for key, value in asdict(config).items() if key not in ("broker", "data", "partition")}
    settings: dict[str, Any] = json.loads(json.dumps({**told, "plan": plan}))
    return settings


def enter(journal: Journal, config: FederationConfig, plan: str, out: Path, fresh: bool) -> tuple[Started, bool]:
    """Return the start to go on with, and whether it was there before.

    A federation that is done, or `fresh`, begins anew. Raises ConfigError when the directory holds one with other settings.
    """
    settings, known = settings_of(config, plan), journal.started()
    if known and not known.done and not fresh:
        # an older version did not know all keys, and did what their defaults say
        before = {**settings_of(FederationConfig(), plan), **json.loads(known.settings)}
        if differs := sorted(key for key in settings if settings[key] != before.get(key)):
            key = differs[0]
            raise ConfigError(
                f"{out} holds a federation that is not done, with {key} {str(before.get(key))[:60]!r}, this one has "
                f"{str(settings[key])[:60]!r}; go on with its own settings, give another --out, or begin anew with --fresh"
            )
        return known, True
    for name in (STATE, RESULT):
        (out / name).unlink(missing_ok=True)
    started = Started(secrets.token_hex(8), json.dumps(settings), time.time())
    journal.start(started)
    return started, False

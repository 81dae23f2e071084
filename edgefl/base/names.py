"""The names of clients and federations. Each is a level of a topic and a folder on disk."""

import re

from edgefl.base.errors import ConfigError

CLIENT_ID_PATTERN = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
FEDERATION_PATTERN = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
# `derive_rng` uses these purposes in the same key position as a client id
RESERVED_IDS = frozenset({"cohort", "init", "partition"})


def is_client_id(text: str) -> bool:
    """Return whether a text can be the id of a client."""
    return bool(CLIENT_ID_PATTERN.fullmatch(text)) and text not in RESERVED_IDS


def check_client_id(client_id: str) -> str:
    """Return the client id if it is valid.

    Raises:
        ConfigError: the id cannot be a topic level, or is reserved.
    """
    if not CLIENT_ID_PATTERN.fullmatch(client_id):
        raise ConfigError(
            f"client id {client_id!r}: expected 1 to 64 of a-z, 0-9, - and _, starting with a letter or "
            "digit, such as pi-1"
        )
    if client_id in RESERVED_IDS:
        raise ConfigError(
            f"client id {client_id!r} is reserved ({', '.join(sorted(RESERVED_IDS))}); choose "
            "another, such as pi-1"
        )
    return client_id


def check_federation(name: str) -> str:
    """Return the federation name if it is valid.

    Raises:
        ConfigError: the name cannot be a topic level.
    """
    if not FEDERATION_PATTERN.fullmatch(name):
        raise ConfigError(
            f"federation name {name!r}: expected 1 to 64 of a-z, 0-9, -, _ and ., starting with a letter or "
            "digit, such as workshop"
        )
    return name

"""Checks that the broker's access list is for the aggregator's version of the protocol.

An aggregator without the package cryptography imports this module. It is therefore separate from
`mosquitto_config`.
"""

from pathlib import Path

from edgefl.errors import ConfigError
from edgefl.wire.topics import TOPIC_PREFIX


def check_access_list(directory: Path) -> None:
    """Raise ConfigError when the access list in this directory was written for another version of the
    protocol.

    A broker drops what its access list does not allow, without an error: the federation would wait for
    devices for ever.
    """
    path = directory / "acl"
    if path.exists() and f"topic readwrite {TOPIC_PREFIX}/+/#" not in path.read_text():
        raise ConfigError(
            f"{path} allows another version of the protocol than {TOPIC_PREFIX}; make a new one with `edgefl "
            "broker init` in an empty directory, copy its acl over this one, and restart the broker"
        )

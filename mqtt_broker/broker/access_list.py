"""Checks that the broker's access list is for the aggregator's version of the protocol.

This module is separate from `mosquitto_config`, because an aggregator without the package cryptography
imports it.
"""

from pathlib import Path

from edgefl.base.errors import ConfigError
from edgefl.protocol.wire.topics import TOPIC_PREFIX


def check_access_list(directory: Path) -> None:
    """Check that the access list in a directory is for this version of the protocol.

    A broker drops messages that its access list forbids, without an error. The aggregator would therefore
    wait for devices forever. A directory without an access list is accepted.

    Raises:
        ConfigError: the access list is for another version of the protocol.
    """
    path = directory / "acl"
    if path.exists() and f"topic readwrite {TOPIC_PREFIX}/+/#" not in path.read_text():
        raise ConfigError(
            f"{path} allows another version of the protocol than {TOPIC_PREFIX}; run `edgefl broker init` in "
            "an empty directory, copy the new acl over this one, and restart the broker"
        )

"""Decides which client stops when two clients use the same id."""

from edgefl.base.errors import LinkError
from edgefl.protocol.wire.messages import Status


class DuplicateIdError(LinkError):
    """Another device uses this id, and it also owns the status on the broker."""


def describe_duplicate_id(client_id: str, url: str) -> str:
    """Return the error message for the second device with an id.

    Args:
        url: URL of the broker.
    """
    return (
        f"another device has the id {client_id!r} at {url}; give this device another --id, or stop the other "
        "device"
    )


def should_yield(mine: Status, other: Status) -> bool:
    """Return whether this device must stop when two devices with one id start at the same time.

    The device that started first stays.
    """
    return (other.born, other.boot_id) < (mine.born, mine.boot_id)

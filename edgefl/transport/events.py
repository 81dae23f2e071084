"""What a link gives to the service."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Message:
    """One message from the broker. `oversize`: the bytes of a payload above the limit, which is then left
    out.
    """

    topic: str
    payload: bytes
    retained: bool = False
    oversize: int = 0


@dataclass(frozen=True, slots=True)
class Connected:
    """The link came up again: subscriptions are made, retained messages of one's own must be published again.
    `url`: where.
    """

    url: str = ""

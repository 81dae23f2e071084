"""Who is online, by the retained status of each device. A will of an earlier boot takes nobody offline."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from edgefl.wire.messages import PAUSED_BY_OPERATOR, REFUSES, Status


@dataclass(frozen=True, slots=True)
class Word:
    """What of a device's last status is needed; an aggregator keeps it for each of hundreds."""

    boot_id: str
    online: bool
    paused: str
    draining: bool


@dataclass(frozen=True)
class Presence:
    """The last word of each device that was ever seen."""

    statuses: Mapping[str, Word] = field(default_factory=dict)

    def online(self) -> tuple[str, ...]:
        """Return who is online, sorted."""
        return tuple(sorted(client_id for client_id, status in self.statuses.items() if status.online))

    def paused(self) -> Mapping[str, str]:
        """Return who is online and takes up no task, with the reason that the device gives."""
        return {
            client_id: status.paused
            for client_id, status in self.statuses.items()
            if status.online and status.paused
        }

    def refusing(self) -> Mapping[str, str]:
        """Return who is online and refuses what this federation asks for, with the reason that the device
        gives.
        """
        return {client_id: why for client_id, why in self.paused().items() if why.startswith(REFUSES)}

    def available(self, held: frozenset[str]) -> tuple[str, ...]:
        """Return who can train now: online, and paused neither by itself nor by the aggregator's operator
        (`held`). Sorted.
        """
        return tuple(client_id for client_id in self.online() if client_id not in held | self.paused().keys())

    def askable(self, held: frozenset[str]) -> tuple[str, ...]:
        """Return who is asked to personalize: who is online and not paused by an operator, here (`held`) or
        at the device. Sorted.

        A device that only waits for a better hour is asked: the last phase waits for it as for one that is
        offline. A device that refuses is not asked, because it may never come back.
        """
        by_operator = {client_id for client_id, why in self.paused().items() if why == PAUSED_BY_OPERATOR}
        return tuple(
            client_id
            for client_id in self.online()
            if client_id not in held | by_operator | self.refusing().keys()
        )

    def is_resting(self, client_id: str) -> bool:
        """Whether a client is paused and not at work on a task that it had before."""
        return client_id in self.paused() and not self.statuses[client_id].draining

    def is_gone(self, client_id: str) -> bool:
        """Whether a client said, or the broker for it, that it is not there any more."""
        return client_id in self.statuses and not self.statuses[client_id].online

    def word(self, client_id: str) -> str:
        """Return what a person is told of a client: online, offline, or paused and why."""
        known = self.statuses.get(client_id)
        if known is None or not known.online:
            return "offline"
        return f"paused ({known.paused})" if known.paused else "online"


def forget(presence: Presence, client_id: str) -> Presence:
    """Return the presence without a client."""
    return replace(
        presence, statuses={key: word for key, word in presence.statuses.items() if key != client_id}
    )


def take_status(presence: Presence, status: Status) -> Presence:
    """Note a status, unless it is the will of a boot that another one replaced."""
    known = presence.statuses.get(status.client_id)
    if known and not status.online and known.boot_id != status.boot_id:
        return presence
    word = Word(status.boot_id, status.online, status.paused, status.draining)
    return replace(presence, statuses={**presence.statuses, sys.intern(status.client_id): word})


LINES_A_MINUTE = 20
"""How many lines of the log one client may cause in a minute: a client can send statuses and wrong messages
as fast as its link is.
"""


class ClientLines:
    """Bounds the lines of the log that each client causes.

    Args:
        note: Gets a line for a person.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._counted: dict[str, tuple[float, int]] = {}

    def __call__(self, client_id: str, line: str, now: float) -> None:
        """Log a line about a client, unless it has caused too many within a minute.

        The first that is left out is announced.
        """
        since, count = self._counted.get(client_id, (now, 0))
        if now - since >= 60.0:
            since = now
            count = 0
        self._counted[client_id] = since, count + 1
        if count < LINES_A_MINUTE:
            self._note(line)
        elif count == LINES_A_MINUTE:
            self._note(
                f"{client_id} caused {LINES_A_MINUTE} lines within a minute; further ones about it are left "
                "out for a minute"
            )

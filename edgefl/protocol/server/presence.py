"""Tracks which devices are online from their retained status. A last will from an earlier boot is ignored."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from edgefl.protocol.wire.messages import PAUSED_BY_OPERATOR, REFUSAL_PREFIX, Status


@dataclass(frozen=True, slots=True)
class LastStatus:
    """The fields of a device's last status that the aggregator needs.

    Attributes:
        boot_id: identifies the boot of the device.
        online: whether the device is connected.
        paused: why the device takes up no task. Empty when it is not paused.
        draining: whether the device still works on an earlier task.
    """

    boot_id: str
    online: bool
    paused: str
    draining: bool


class Presence:
    """Tracks the last status of each device.

    Attributes:
        statuses: the last status by client id.
        num_online: number of clients that are online.
    """

    def __init__(self) -> None:
        self.statuses: dict[str, LastStatus] = {}
        self.num_online = 0

    def update(self, status: Status) -> None:
        """Record a status, unless it is the last will of a boot that a later boot has replaced."""
        last = self.statuses.get(status.client_id)
        if last and not status.online and last.boot_id != status.boot_id:
            return
        self.forget(status.client_id)
        self.num_online += status.online
        self.statuses[sys.intern(status.client_id)] = LastStatus(
            boot_id=status.boot_id, online=status.online, paused=status.paused, draining=status.draining
        )

    def forget(self, client_id: str) -> None:
        """Remove a client."""
        last = self.statuses.pop(client_id, None)
        self.num_online -= bool(last and last.online)

    def list_online(self) -> tuple[str, ...]:
        """Return the clients that are online, sorted."""
        return tuple(sorted(client_id for client_id, status in self.statuses.items() if status.online))

    def list_paused(self) -> Mapping[str, str]:
        """Return the online clients that take up no task, each with the reason that it reports."""
        return {
            client_id: status.paused
            for client_id, status in self.statuses.items()
            if status.online and status.paused
        }

    def list_refusing(self) -> Mapping[str, str]:
        """Return the online clients that refuse the plan or the tasks of this federation, each with its
        reason.
        """
        return {
            client_id: reason
            for client_id, reason in self.list_paused().items()
            if reason.startswith(REFUSAL_PREFIX)
        }

    def list_available(self, excluded: frozenset[str]) -> tuple[str, ...]:
        """Return the clients that can train now, sorted. They are online, not paused, and not in
        `excluded`.
        """
        unavailable = excluded | self.list_paused().keys()
        return tuple(client_id for client_id in self.list_online() if client_id not in unavailable)

    def list_for_personalization(self, excluded: frozenset[str]) -> tuple[str, ...]:
        """Return the clients that are asked to personalize, sorted.

        A client that an operator paused is left out. A client that waits for a better hour is asked, because
        the last phase waits for it as for a client that is offline. A client that refuses is left out,
        because it may never return.

        Args:
            excluded: clients that are left out in any case.
        """
        paused = self.list_paused()
        by_operator = {client_id for client_id, reason in paused.items() if reason == PAUSED_BY_OPERATOR}
        unavailable = excluded | by_operator | self.list_refusing().keys()
        return tuple(client_id for client_id in self.list_online() if client_id not in unavailable)

    def is_resting(self, client_id: str) -> bool:
        """Return whether a client is paused and has finished its earlier task."""
        status = self.statuses.get(client_id)
        return status is not None and status.online and bool(status.paused) and not status.draining

    def is_gone(self, client_id: str) -> bool:
        """Return whether a client was online earlier and is offline now."""
        return client_id in self.statuses and not self.statuses[client_id].online

    def describe(self, client_id: str) -> str:
        """Return the state of a client for the log: online, offline, or paused with the reason."""
        status = self.statuses.get(client_id)
        if status is None or not status.online:
            return "offline"
        return f"paused ({status.paused})" if status.paused else "online"


MAX_LINES_PER_MINUTE = 20
"""Maximum number of log lines that one client may cause in a minute. A client can send statuses and wrong
messages as fast as its link allows.
"""


class ClientLineLimit:
    """Limits the log lines that each client causes."""

    def __init__(self) -> None:
        self._counted: dict[str, tuple[float, int]] = {}

    def admit(self, client_id: str, line: str, now: float) -> str:
        """Return the text to log for a line that a client caused.

        Args:
            now: the time in seconds, of any clock that does not go back.

        Returns:
            The line itself, up to the limit. The first line above the limit is replaced by an announcement.
            Later lines are replaced by an empty string until the minute is over.
        """
        since, count = self._counted.get(client_id, (now, 0))
        if now - since >= 60.0:
            since = now
            count = 0
        self._counted[client_id] = since, count + 1
        if count < MAX_LINES_PER_MINUTE:
            return line
        if count > MAX_LINES_PER_MINUTE:
            return ""
        return (
            f"{client_id} caused {MAX_LINES_PER_MINUTE} lines within a minute; further lines about it are "
            "left out for a minute"
        )

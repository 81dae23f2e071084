"""Who is online, by the retained status of each device. A will of an earlier boot takes nobody offline."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from edgefl.wire.messages import Status


@dataclass(frozen=True)
class Presence:
    """The last status of each device that was ever seen."""

    statuses: Mapping[str, Status] = field(default_factory=dict)

    def online(self) -> tuple[str, ...]:
        """Return who is online, sorted."""
        return tuple(sorted(client_id for client_id, status in self.statuses.items() if status.online))


def take_status(presence: Presence, status: Status) -> Presence:
    """Note a status, unless it is the will of a boot that another one replaced."""
    known = presence.statuses.get(status.client_id)
    if known and not status.online and known.boot_id != status.boot_id:
        return presence
    return replace(presence, statuses={**presence.statuses, status.client_id: status})

"""A view that is kept up to date from a broker. Not for several threads."""

import time
from typing import Any

from edgefl.monitor.view import FederationView, list_view_subscriptions, snapshot
from edgefl.transport.link import Link, Message

MAX_PUMPED_MESSAGES = 20_000


class Feed:
    """One federation on a link.

    Attributes:
        lost: number of messages that arrived faster than they were read.
    """

    def __init__(self, link: Link, federation: str) -> None:
        """Subscribe.

        LinkError when the broker refuses that, which a broker that speaks MQTT 3.1.1 does silently.
        """
        self.link = link
        self.view = FederationView(federation)
        by_qos: dict[int, list[str]] = {}
        for topic, qos in list_view_subscriptions(federation).items():
            by_qos.setdefault(qos, []).append(topic)
        for qos, topics in by_qos.items():
            link.subscribe(*topics, qos=qos)

    @property
    def lost(self) -> int:
        """How many messages came faster than they were taken."""
        return self.link.dropped

    def pump(self, timeout_s: float = 0.0) -> int:
        """Read all waiting messages and return their number. Waits up to this time for the first one.

        Raises:
            LinkError: the link is broken for good.
        """
        count = 0
        event = self.link.get(timeout_s)
        while event is not None:
            if isinstance(event, Message):
                self.view.take(event.topic, event.payload, time.time())
                count += 1
            event = self.link.get(0.0) if count < MAX_PUMPED_MESSAGES else None
        return count

    def pump_for(self, seconds: float) -> None:
        """Take all that comes in so many seconds."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.pump(left)

    def snapshot(self) -> dict[str, Any]:
        """Return a snapshot of the view. See `edgefl.monitor.view.snapshot`."""
        return snapshot(self.view, time.time())

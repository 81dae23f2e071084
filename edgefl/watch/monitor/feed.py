"""Keeps the view of a federation up to date from a broker. Not thread-safe."""

import time
from typing import Any

from edgefl.protocol.transport.link import Link, Message
from edgefl.watch.monitor.view import FederationView, list_view_subscriptions, snapshot

MAX_PUMPED_MESSAGES = 20_000


class Feed:
    """One federation on a link.

    Attributes:
        link: the link to the broker.
        view: the view of the federation.
    """

    def __init__(self, link: Link, federation: str) -> None:
        """Subscribe to the messages of the federation.

        Raises:
            ConfigError: the name is not a valid federation name.
            LinkError: the broker refuses a subscription. An MQTT 3.1.1 broker may refuse without an error.
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
        """Number of messages that were dropped because they arrived faster than they were read."""
        return self.link.dropped

    def pump(self, timeout_s: float = 0.0) -> int:
        """Process the messages that have arrived, at most 20,000, and return their number.

        Args:
            timeout_s: maximum time to wait for the first message, in seconds.

        Raises:
            LinkError: the link is permanently broken.
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
        """Process all messages that arrive within a number of seconds.

        Raises:
            LinkError: the link is permanently broken.
        """
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.pump(left)

    def snapshot(self) -> dict[str, Any]:
        """Return a snapshot of the current view. See `edgefl.watch.monitor.view.snapshot`."""
        return snapshot(self.view, time.time())

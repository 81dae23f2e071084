"""Follows a federation for the dashboard: reads its messages, and makes snapshots while a browser watches."""

import contextlib
import time
from typing import Any

from edgefl.base.errors import WireError
from edgefl.protocol.transport.link import Link, Message
from edgefl.protocol.wire.topics import FederationTopics, parse_topic
from edgefl.watch.dashboard.latest_snapshot import LatestSnapshot
from edgefl.watch.monitor.connection import choose_federation, find_federations
from edgefl.watch.monitor.feed import Feed

UPDATE_INTERVAL_S = 1.0
LARGE_FLEET_INTERVAL_S = 2.0
LARGE_FLEET_DEVICES = 200


def find_only_federation(link: Link) -> str:
    """Return the name of the only federation on the broker, or an empty string if there is none yet.

    Raises:
        LinkError: the broker has several federations.
    """
    return choose_federation(link, "") if find_federations(link) else ""


class Follower:
    """Follows one federation on a link.

    Args:
        link: the link to the broker.
        federation: name of the federation. Empty follows the first federation that appears.
        latest: receives the snapshots.
    """

    def __init__(self, link: Link, federation: str, latest: LatestSnapshot) -> None:
        self._link = link
        self._latest = latest
        self._feed = Feed(link, federation) if federation else None
        self._connected = True
        self._since = time.time()
        self._due = 0.0
        if not federation:
            link.subscribe(FederationTopics("+").state)

    def run_once(self) -> None:
        """Wait, process the messages since the last call, and publish a snapshot if a browser is connected.

        The wait groups messages: waking up for each message of a large fleet would cost more than the
        messages.

        Raises:
            LinkError: the link has failed.
        """
        time.sleep(max(0.0, self._due - time.monotonic()))
        self._due = time.monotonic() + (
            LARGE_FLEET_INTERVAL_S
            if self._feed and len(self._feed.view.devices) > LARGE_FLEET_DEVICES
            else UPDATE_INTERVAL_S
        )
        if self._feed:
            self._feed.pump(0.01)
        elif name := _read_federation(self._link.get(0.01)):
            self._link.unsubscribe(FederationTopics("+").state)
            self._feed = Feed(self._link, name)
            self._due = 0.0
        if self._link.is_connected != self._connected:
            self._connected = not self._connected
            self._since = time.time()
        if self._latest.is_watched:
            self._latest.put(self.snapshot())

    def snapshot(self) -> dict[str, Any]:
        """Return the content of the page: the snapshot of the view with two more keys.

        `broker` has url, connected and since_ts. `notice` says what the page waits for, if it has no data.
        """
        url = self._link.url
        shown = self._feed.snapshot() if self._feed else {"history": [], "devices": [], "ts": time.time()}
        if self._feed is None:
            shown["notice"] = f"No federation at {url} yet. Waiting for the first one."
        elif self._feed.view.state is None:
            shown["notice"] = f"No message of the federation {self._feed.view.federation} at {url} yet."
        return {**shown, "broker": {"url": url, "connected": self._connected, "since_ts": self._since}}


def _read_federation(event: object) -> str:
    if isinstance(event, Message) and event.payload:
        with contextlib.suppress(WireError):
            return parse_topic(event.topic).federation
    return ""

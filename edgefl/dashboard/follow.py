"""From the broker to the feed: messages are folded as they come, a snapshot is taken once a second while a browser looks on."""

import contextlib
import time
from typing import Any

from edgefl.dashboard.feed import Feed
from edgefl.errors import ConfigError, WireError
from edgefl.monitor.view import View, snapshot, subscriptions
from edgefl.mqtt import Link, Message
from edgefl.wire.topics import Topics, parse_topic

EVERY_S = 1.0
SETTLE_S = 0.5
LOOK_S = 2.0


def federations(link: Link, look_s: float = LOOK_S, settle_s: float = SETTLE_S) -> list[str]:
    """Return the federations whose state the broker keeps, sorted: those heard within `settle_s` after the first; none after `look_s`."""
    link.subscribe(Topics("+").state)
    names: set[str] = set()
    until = time.monotonic() + look_s
    while (left := until - time.monotonic()) > 0:
        if name := _federation_of(link.get(left)):
            until = until if names else time.monotonic() + settle_s
            names.add(name)
    return sorted(names)


def the_only(names: list[str], url: str) -> str:
    """Return the only federation, "" when there is none yet. ConfigError when it has to be chosen."""
    if len(names) > 1:
        raise ConfigError(f"{len(names)} federations at {url}: {', '.join(names)}; say which with --federation {names[0]}")
    return names[0] if names else ""


class Follower:
    """Follows one federation on a link: the one named, or with "" the first that turns up."""

    def __init__(self, link: Link, federation: str, feed: Feed) -> None:
        self._link, self._feed, self._view = link, feed, View(federation) if federation else None
        self._connected, self._since = True, time.time()
        self._due = 0.0
        if federation:
            self._subscribe(federation)

    def _subscribe(self, federation: str) -> None:
        self._link.unsubscribe(Topics("+").state)
        wanted = subscriptions(federation)
        for qos in sorted(set(wanted.values())):
            self._link.subscribe(*(topic for topic, asked in wanted.items() if asked == qos), qos=qos)

    def step(self) -> None:
        """Take one message, or wait a while for one; put a snapshot into the feed when it is time. LinkError when the link is dead."""
        event = self._link.get(min(max(self._due - time.monotonic(), 0.01), EVERY_S))
        if self._view is None and (name := _federation_of(event)):
            self._view = View(name)
            self._subscribe(name)
        elif self._view is not None and isinstance(event, Message):
            self._view.take(event.topic, event.payload, time.time())
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + EVERY_S
            self._look_at_the_link()
            if self._feed.is_watched:
                self._feed.put(self.snapshot())

    def _look_at_the_link(self) -> None:
        if self._link.is_connected != self._connected:
            self._connected, self._since = not self._connected, time.time()

    def snapshot(self) -> dict[str, Any]:
        """Return what the page shows: the view's snapshot, and `broker`: url, connected, since_ts."""
        now = time.time()
        broker = {"url": self._link.url, "connected": self._connected, "since_ts": self._since}
        if self._view is None:
            return {
                "history": [],
                "devices": [],
                "notice": f"No federation at {self._link.url} yet; waiting for one.",
                "ts": now,
                "broker": broker,
            }
        waiting = (
            {} if self._view.state else {"notice": f"Nothing heard of the federation {self._view.federation} at {self._link.url} yet."}
        )
        return {**snapshot(self._view, now), **waiting, "broker": broker}


def _federation_of(event: object) -> str:
    if isinstance(event, Message) and event.payload:
        with contextlib.suppress(WireError):
            return parse_topic(event.topic).federation
    return ""

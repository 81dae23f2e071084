"""Describes the reconnects of a link for the log.

A broker with a limit on messages, memory or queues closes the connection, and MQTT 3.1.1 gives no reason.
The link then reconnects and sends the same message again, without end.
"""

import logging
from collections import deque

MANY_RECONNECTS = 5
SHORT_TIME_S = 120.0


class Reconnects:
    """Counts the reconnects of one link, and warns if there are many in a short time."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=MANY_RECONNECTS)

    def describe(self, url: str, now: float) -> tuple[int, str]:
        """Return the level and the text of the log line about a reconnect.

        Args:
            url: url of the broker.
            now: time of the reconnect in seconds, of any clock that does not go back.
        """
        line = f"the link to the broker is up again at {url}"
        self._times.append(now)
        if len(self._times) < MANY_RECONNECTS or now - self._times[0] > SHORT_TIME_S:
            return logging.INFO, line
        self._times.clear()
        return logging.WARNING, (
            f"{line}, after {MANY_RECONNECTS} lost connections within {SHORT_TIME_S:g} s. The network is "
            "unstable, or the broker closes the connection because of a limit on its messages, memory or "
            f"queues; look at its log, or run `edgefl doctor --broker {url}`"
        )

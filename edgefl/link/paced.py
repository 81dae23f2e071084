"""paho's client, which reads from the broker no faster than the service takes."""

from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from edgefl.link.inbox import Inbox


class PacedClient(paho.Client):
    """Does not read while the inbox lacks room; sends all the while, and answers pings."""

    def __init__(self, inbox: Inbox, **given: Any) -> None:
        """`given`: as paho.Client takes it."""
        super().__init__(CallbackAPIVersion.VERSION2, **given)
        self._inbox = inbox

    def _sock_recv(self, bufsize: int) -> bytes:
        # paho's own word for a socket that has nothing yet: it sends what there is to send, and comes back
        if not self._inbox.may_read(self.want_write):
            raise BlockingIOError
        return super()._sock_recv(bufsize)

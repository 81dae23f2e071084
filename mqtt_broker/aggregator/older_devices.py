"""The aggregator's answer to devices that speak version 1 of the protocol: they must be updated.

A version 1 device reads no message of version 2. It reads a retained version 1 state and prints its phase.
"""

import logging
import time
from dataclasses import replace

from edgefl.errors import WireError
from edgefl.security.trust import Trust
from edgefl.transport.link import Link, Message
from edgefl.wire import version1
from edgefl.wire.messages import Status
from edgefl.wire.strict_json import decode_json
from edgefl.wire.topics import CLIENT_ID_PATTERN, PROTOCOL_VERSION

LOGGER = logging.getLogger("edgefl.aggregator")
REFUSAL_PHASE = (
    f"refused: this device speaks version {version1.OLD_PROTOCOL_VERSION} of the protocol, the aggregator "
    f"version {PROTOCOL_VERSION}; update edgefl on this device"
)
MAX_NAMED_DEVICES = 1000


class OlderDevices:
    """Publishes a version 1 state, and logs each version 1 device once.

    Args:
        link: connection to the broker.
        federation: name of the federation.
        session: session of this aggregator.
        trust: signs the state.
    """

    def __init__(self, link: Link, federation: str, session: str, trust: Trust) -> None:
        self._link = link
        self._federation = federation
        self._session = session
        self._trust = replace(trust, prefix=version1.OLD_TOPIC_PREFIX)
        self._named: set[str] = set()

    def start(self) -> None:
        """Subscribe to the status of version 1 devices, and publish the state that answers them."""
        self._link.subscribe(version1.format_status_topic(self._federation))
        self.publish()

    def publish(self) -> None:
        """Publish the state. Call this again when a broker may have lost it in a restart."""
        state = version1.State(
            self._federation, self._session, REFUSAL_PHASE, 0, 0, 0, 0.0, "0" * 64, time.time()
        )
        self._link.publish(
            version1.format_state_topic(self._federation), self._trust.encode(state), retain=True
        )

    def clear(self) -> None:
        """Remove the state from the broker."""
        self._link.publish(version1.format_state_topic(self._federation), b"", retain=True)

    def take(self, message: Message) -> None:
        """Log which device must be updated.

        Only the status of an online device counts. Other messages are ignored.
        """
        client_id = message.topic.split("/")[-2]
        try:
            status = decode_json(Status, message.payload)
        except WireError:
            return
        if (
            not status.online
            or not CLIENT_ID_PATTERN.fullmatch(client_id)
            or client_id in self._named
            or len(self._named) >= MAX_NAMED_DEVICES
        ):
            return
        self._named.add(client_id)
        LOGGER.warning(
            f"{client_id} speaks version {version1.OLD_PROTOCOL_VERSION} of the protocol, this aggregator "
            f"version {PROTOCOL_VERSION}: it does not take part; update edgefl on that device",
            extra={"client_id": client_id},
        )

"""paho's client, which reads from the broker no faster than the service takes, and hands on what it reads as
it is.
"""

from collections.abc import Callable
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from edgefl.transport.receive_queue import Inbox

Take = Callable[[str, bytes, bool], None]
"""Is given topic, payload and whether it is a retained message; must not raise."""
Acknowledged = Callable[[int, ReasonCode], None]
"""Is given the number of a message of QoS 1 and the broker's word on it; must not raise."""


class PacedClient(paho.Client):
    """Does not read while the inbox lacks room; sends all the while, and answers pings."""

    def __init__(self, inbox: Inbox, take: Take, acknowledged: Acknowledged, **given: Any) -> None:
        """`given`: as paho.Client takes it."""
        super().__init__(CallbackAPIVersion.VERSION2, **given)
        self._inbox = inbox
        self._take = take
        self._acknowledged = acknowledged
        self.on_message = lambda client, userdata, message: take(
            message.topic, bytes(message.payload), message.retain
        )

    def _sock_recv(self, bufsize: int) -> bytes:
        # paho's own word for a socket that has nothing yet: it sends what there is to send, and comes back
        if not self._inbox.may_read(self.want_write):
            raise BlockingIOError
        return super()._sock_recv(bufsize)

    def _handle_publish(self) -> MQTTErrorCode:
        # paho copies a payload four times on the way to `on_message`, and looks for a callback of each topic:
        # 7 of 100 of a device's
        # processor time in a round without training
        head = self._in_packet["command"]
        packet = self._in_packet["packet"]
        qos = head >> 1 & 3
        try:
            if self._protocol == paho.MQTTv5 or qos > 1:
                return super()._handle_publish()
            start = 2 + int.from_bytes(packet[:2], "big")
            topic = packet[2:start].decode()
            number = packet[start] << 8 | packet[start + 1] if qos else 0
        except (IndexError, UnicodeDecodeError):
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        if not topic or len(packet) < start:
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        with memoryview(packet) as view:
            payload = bytes(view[start + 2 * qos :])
        self._take(topic, payload, bool(head & 1))
        return self._send_puback(number) if qos else MQTTErrorCode.MQTT_ERR_SUCCESS

    def _do_on_publish(self, mid: int, reason_code: ReasonCode, properties: Properties) -> MQTTErrorCode:
        # not paho's `on_publish`: of QoS 0 it is told too, of each by objects that are made for it
        self._acknowledged(mid, reason_code)
        return super()._do_on_publish(mid, reason_code, properties)

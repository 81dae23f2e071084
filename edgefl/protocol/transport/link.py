"""One connection to a broker, used from one thread.

Only this package imports paho. paho runs its own network thread. Received messages go into a queue, which the
service empties with `get` on its own thread. Training and disk access therefore never block the network. If
the queue is long, a message is acknowledged only when the service takes it, so that the broker stops sending.

The protocol is MQTT 3.1.1, or MQTT 5 if the url ends in `?protocol=5`. A broker with MQTT 5 reports the
messages that it refuses. Nothing else of MQTT 5 is used, so that both run the same protocol.
"""

import contextlib
import random
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from edgefl.base.errors import LinkError
from edgefl.protocol.transport.acknowledgements import Acknowledgements
from edgefl.protocol.transport.failover import (
    BrokerOrder,
    combine_errors,
    explain_refused,
    explain_unreachable,
)
from edgefl.protocol.transport.receive_queue import Connected as Connected
from edgefl.protocol.transport.receive_queue import Message as Message
from edgefl.protocol.transport.receive_queue import ReceiveQueue
from edgefl.protocol.transport.sockets import read_to_end, send_at_once, use_record_sockets
from edgefl.protocol.transport.subscriptions import PERMANENT_REFUSALS, Subscriptions
from edgefl.protocol.wire.topics import matches_filter
from edgefl.protocol.wire.url import Broker, parse_urls

MAX_PAYLOAD_BYTES = 256 * 1024 - 1024
KEEPALIVE_S = 20


class Link:
    """One MQTT connection that reconnects by itself, to the same broker or another.

    Use it from one thread. Other threads may call `wake`.

    The brokers of a list are tried in order until one answers. After a lost connection the others are tried
    in a random order of this link, so that a whole fleet does not move to the same broker.

    Attributes:
        url: url of the present broker, without password.
        bytes_up: payload bytes sent so far.
        bytes_down: payload bytes received so far.
    """

    def __init__(
        self,
        url: str,
        client_id: str,
        *,
        will: Message | None = None,
        keepalive_s: int = KEEPALIVE_S,
        timeout_s: float = 10.0,
        context: ssl.SSLContext | None = None,
        after_message: Callable[[], None] = lambda: None,
    ) -> None:
        """Connect to a broker.

        Args:
            url: url of the broker, or several separated by commas.
            client_id: MQTT client id.
            will: message that the broker publishes if the connection is lost. None for no will.
            keepalive_s: MQTT keep-alive interval in seconds.
            timeout_s: how long to wait for each broker, in seconds.
            context: TLS context with the client's certificate and the trusted authority. With None, `mqtts`
                trusts the authorities of the system.
            after_message: called on the network thread after each received message.

        Raises:
            LinkError: no broker can be reached, or every broker refuses the connection.
        """
        brokers = parse_urls(url)
        self.url = brokers[0].display_url
        self._keepalive_s = keepalive_s
        self._broker_order: BrokerOrder | None = None
        self.bytes_up = self.bytes_down = 0
        self._received = ReceiveQueue()
        self._after_message = after_message
        self._acknowledgements = Acknowledgements()
        self._changed = self._acknowledgements.changed
        self._subscriptions = Subscriptions(
            lambda filters: self._client.subscribe(filters)[1], self._get_connection, self._acknowledgements
        )
        self._refusal = ""
        self._connections = 0
        self._closing = False
        self._failure: BaseException | None = None
        self._network_thread: threading.Thread | None = None
        newer = brokers[0].protocol == paho.MQTTv5
        client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id,
            manual_ack=True,
            clean_session=None if newer else True,
            protocol=paho.MQTTv5 if newer else paho.MQTTv311,
        )
        client.max_inflight_messages_set(20)
        client.reconnect_delay_set(random.uniform(0.2, 1.0), random.uniform(10.0, 20.0))  # type: ignore[arg-type]
        if brokers[0].tls:
            client.tls_set_context(use_record_sockets(context or ssl.create_default_context()))
        if will:
            client.will_set(will.topic, will.payload, qos=1, retain=will.retained)
        client.on_message = self._guard(self._on_message)
        client.on_publish = self._guard(self._on_publish)
        client.on_connect = self._guard(self._on_connect)
        client.on_subscribe = self._guard(self._on_subscribe)
        client.on_disconnect = self._guard(self._on_disconnect)
        client.on_connect_fail = self._guard(self._on_connect_fail)
        client.on_socket_open = send_at_once
        client.on_socket_close = lambda client, userdata, opened: (
            read_to_end(opened) if self._closing else None
        )
        self._client = client
        self._connect_first(brokers, timeout_s)

    def _connect_first(self, brokers: tuple[Broker, ...], timeout_s: float) -> None:
        problems: list[LinkError] = []
        for broker in brokers:
            try:
                self._connect(broker, timeout_s)
            except LinkError as error:
                problems.append(error)
            else:
                self._broker_order = BrokerOrder(brokers, broker) if len(brokers) > 1 else None
                return
        raise combine_errors(problems) from problems[0].__cause__

    def _set_broker(self, broker: Broker) -> None:
        self.url = broker.display_url
        self._client.username_pw_set(broker.username or None, broker.password or None)
        self._client.connect_async(broker.host, broker.port, keepalive=self._keepalive_s)

    def _set_next_broker(self) -> None:
        # paho waits for a random delay that grows with each try, and then connects to the broker set last
        if self._broker_order and not self._closing:
            self._set_broker(self._broker_order.advance())

    def _connect(self, broker: Broker, timeout_s: float) -> None:
        self._refusal = ""
        self._set_broker(broker)
        try:
            self._client.reconnect()
        except OSError as error:
            raise explain_unreachable(self.url, error) from error
        self._client.loop_start()
        with self._acknowledgements.lock:
            self._changed.wait_for(lambda: self._connections > 0 or self._refusal, timeout_s)
        if not self._connections:
            self._client.disconnect()
            self._client.loop_stop()
            raise explain_refused(self.url, self._refusal, timeout_s)

    def _guard(self, callback: Callable[..., None]) -> Callable[..., None]:
        # an exception would end paho's thread while is_connected() stays true
        def run_guarded(*args: Any) -> None:
            try:
                callback(*args)
            except Exception as error:
                self._failure = error

        return run_guarded

    def _on_connect(
        self, client: paho.Client, userdata: Any, flags: Any, reason: Any, properties: Any
    ) -> None:
        self._network_thread = threading.current_thread()
        with self._acknowledgements.lock:
            if reason.is_failure:
                self._refusal = str(reason)
                self._changed.notify_all()
                return
            is_reconnect = self._connections > 0
            self._connections += 1
            self._changed.notify_all()
        self._subscriptions.resubscribe()
        if is_reconnect:
            self._received.put(Connected(self.url))

    def _get_connection(self) -> int:
        return self._connections if self._client.is_connected() else 0

    def _on_disconnect(
        self, client: paho.Client, userdata: Any, flags: Any, reason: Any, properties: Any
    ) -> None:
        with self._acknowledgements.lock:
            self._changed.notify_all()
        self._set_next_broker()

    def _on_connect_fail(self, client: paho.Client, userdata: Any) -> None:
        self._set_next_broker()

    def _on_message(self, client: paho.Client, userdata: Any, received: paho.MQTTMessage) -> None:
        self._received.receive(self._read_message(received), self._make_acknowledge(received))
        self._after_message()

    def _read_message(self, received: paho.MQTTMessage) -> Message | None:
        """Return the message, or None if no subscription matches it."""
        payload = bytes(received.payload)
        self.bytes_down += len(payload)
        try:
            topic = received.topic
        except UnicodeDecodeError:  # a broker must not send such a topic
            return None
        # amqtt 0.12 sends each new client the retained messages of all clients' subscriptions. Filters are
        # searched from the newest, which match most messages.
        filters = self._subscriptions.filters
        if topic not in filters and not any(
            matches_filter(topic_filter, topic) for topic_filter in reversed(tuple(filters))
        ):
            return None
        if len(payload) > MAX_PAYLOAD_BYTES:
            return Message(topic=topic, payload=b"", retained=received.retain, oversize=len(payload))
        return Message(topic=topic, payload=payload, retained=received.retain)

    def _make_acknowledge(self, received: paho.MQTTMessage) -> Callable[[], None] | None:
        if not received.qos:
            return None
        connection = self._connections
        number = received.mid

        def acknowledge() -> None:
            # After a reconnect the number can belong to another message. Without a connection paho would
            # store the acknowledgement and send it before its CONNECT.
            if connection == self._connections and self._client.is_connected():
                self._client.ack(number, 1)

        return acknowledge

    def _on_publish(
        self, client: paho.Client, userdata: Any, number: int, reason: Any, properties: Any
    ) -> None:
        self._acknowledgements.record_answer(
            number, str(reason) if reason.value in PERMANENT_REFUSALS else ""
        )

    def _on_subscribe(
        self, client: paho.Client, userdata: Any, mid: int, reasons: Any, properties: Any
    ) -> None:
        self._subscriptions.record_answer(mid, reasons)

    def subscribe(self, *filters: str, qos: int = 1, timeout_s: float = 60.0) -> None:
        """Subscribe now and after each reconnect, and wait for the broker's answer.

        A refusal that may be temporary is retried within `timeout_s`. MQTT 3.1.1 does not distinguish it from
        a permanent refusal.

        Args:
            filters: topic filters.
            qos: maximum quality of service.
            timeout_s: how long to wait in seconds. 0 does not wait.

        Raises:
            LinkError: the broker refuses the subscription, or does not answer in time.
        """
        if new := {topic: qos for topic in filters if topic not in self._subscriptions.filters}:
            self._subscriptions.add(self.url, new, timeout_s)

    def unsubscribe(self, *filters: str) -> None:
        """End subscriptions. Filters without a subscription are ignored."""
        for topic in filters:
            if self._subscriptions.filters.pop(topic, None) is not None:
                self._client.unsubscribe(topic)

    def wake(self) -> None:
        """Let `get` return None after the events that wait. Any thread may call this."""
        self._received.wake()

    def publish(self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False) -> None:
        """Send a message now, or when the connection is restored.

        Args:
            payload: at most 255 KiB, because the broker drops larger messages.
            qos: quality of service, 0 or 1.
            retain: whether the broker retains the message.

        Raises:
            LinkError: the payload is too large.
        """
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise LinkError(
                f"{topic} is {len(payload)} bytes, expected at most {MAX_PAYLOAD_BYTES}; send it in chunks"
            )
        # No lock: paho reports an acknowledgement while it holds its own lock, possibly before publish
        # returns.
        info = self._client.publish(topic, payload, qos=qos, retain=retain)
        self.bytes_up += len(payload)
        if qos:
            self._acknowledgements.record_sent(info.mid, topic)

    @property
    def in_flight(self) -> int:
        """Number of published messages that the broker has not acknowledged."""
        return len(self._acknowledgements)

    def wait_in_flight(self, below: int, timeout_s: float) -> bool:
        """Wait until fewer than `below` messages are unacknowledged.

        Args:
            timeout_s: how long to wait, in seconds.

        Returns:
            Whether this happened in time.
        """
        with self._acknowledgements.lock:
            return self._changed.wait_for(lambda: len(self._acknowledgements) < below, timeout_s)

    @property
    def dropped(self) -> int:
        """Number of received messages that were dropped because the queue was full."""
        return self._received.dropped

    @property
    def is_connected(self) -> bool:
        """Whether the link is connected to a broker now."""
        return self._client.is_connected()

    def get(self, timeout_s: float) -> Message | Connected | None:
        """Return the next event, or None after `timeout_s` or a `wake`.

        Args:
            timeout_s: how long to wait for an event, in seconds. 0 does not wait.

        Raises:
            LinkError: the network thread has ended, or a broker with MQTT 5 refuses a published message.
        """
        if self._failure is not None:
            raise LinkError(
                f"the link to {self.url} broke: {self._failure!r}; start again"
            ) from self._failure
        if denied := self._acknowledgements.take_refused():
            raise LinkError(f"{self.url} refused to publish {denied}; check the broker's access list")
        event = self._received.get(timeout_s)
        thread = self._network_thread
        if event is None and timeout_s > 0 and thread is not None and not thread.is_alive():
            raise LinkError(f"the network thread of {self.url} ended; start again")
        return event

    def close(self, timeout_s: float = 5.0) -> bool:
        """Wait for outstanding acknowledgements, then disconnect without triggering the will.

        Args:
            timeout_s: how long to wait, in seconds.

        Returns:
            Whether all messages were acknowledged.
        """
        self._closing = True
        deadline = time.monotonic() + timeout_s
        done = self.wait_in_flight(1, timeout_s) if self.is_connected else not self._acknowledgements
        with contextlib.suppress(OSError, ValueError):
            self._client.disconnect()
        while self._client.is_connected() and time.monotonic() < deadline:
            with self._acknowledgements.lock:
                self._changed.wait(0.05)
        self._client.loop_stop()
        return done

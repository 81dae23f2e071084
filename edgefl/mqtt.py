"""The only file that imports paho: one connection to a broker, used from one thread.

paho runs its own network thread. What arrives there is only put into a queue, which the service empties with `get`
on its own thread; training and disk never block the network.
"""

import contextlib
import queue
import random
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from edgefl.errors import LinkError
from edgefl.wire.topics import matches
from edgefl.wire.url import parse_url, without_password

MAX_PAYLOAD_BYTES = 256 * 1024 - 1024
QUEUE_LIMIT = 20_000
KEEPALIVE_S = 20


@dataclass(frozen=True)
class Message:
    """One message from the broker. `oversize`: the bytes of a payload above the limit, which is then left out."""

    topic: str
    payload: bytes
    retained: bool = False
    oversize: int = 0


@dataclass(frozen=True)
class Connected:
    """The link came up again: subscriptions are made, retained messages of one's own must be published again."""


class Link:
    """One MQTT 3.1.1 connection that comes back by itself. Not for several threads, save `on_network`'s replies."""

    def __init__(
        self, url: str, client_id: str, *, will: Message | None = None, keepalive_s: int = KEEPALIVE_S, timeout_s: float = 10.0,
        context: ssl.SSLContext | None = None,
    ) -> None:  # fmt: skip
        """Connect; `context` proves who this is and says whom to trust, else mqtts trusts the system's authorities.

        Raises LinkError that says the url and the remedy when there is no broker or it refuses.
        """
        self.url, self._broker, self._keepalive_s = without_password(url), parse_url(url), keepalive_s
        self.bytes_up = self.bytes_down = self.dropped = 0
        self._events: queue.Queue[Message | Connected] = queue.Queue(QUEUE_LIMIT)
        self._filters: dict[str, int] = {}
        self._replies: dict[str, Callable[[Message], None]] = {}
        self._changed = threading.Condition()
        self._unacknowledged: set[int] = set()
        self._early: set[int] = set()
        self._unwatched: set[int] = set()
        self._granted: dict[int, bool] = {}
        self._refusal = ""
        self._connections = 0
        self._failure: BaseException | None = None
        client = paho.Client(CallbackAPIVersion.VERSION2, client_id=client_id, clean_session=True, protocol=paho.MQTTv311)
        client.max_inflight_messages_set(20)
        client.reconnect_delay_set(random.uniform(0.2, 1.0), random.uniform(10.0, 20.0))  # type: ignore[arg-type]
        if self._broker.tls:
            client.tls_set_context(context or ssl.create_default_context())
        if self._broker.username:
            client.username_pw_set(self._broker.username, self._broker.password or None)
        if will:
            client.will_set(will.topic, will.payload, qos=1, retain=will.retained)
        client.on_connect = self._guard(self._on_connect)
        client.on_message = self._guard(self._on_message)
        client.on_publish = self._guard(self._on_publish)
        client.on_subscribe = self._guard(self._on_subscribe)
        client.on_disconnect = self._guard(self._on_disconnect)
        self._client, self._thread_name = client, f"paho-mqtt-client-{client_id}"
        self._connect(timeout_s)

    def _connect(self, timeout_s: float) -> None:
        remedy = "start one with `edgefl broker start`, or check host, port and firewall"
        try:
            self._client.connect(self._broker.host, self._broker.port, keepalive=self._keepalive_s)
        except ssl.SSLCertVerificationError as error:
            why = f"{error.verify_message}; use the host name that the broker was set up with, check this machine's clock, or enrol again"
            raise LinkError(f"the broker at {self.url} cannot prove who it is: {why}") from error
        except OSError as error:
            raise LinkError(f"no broker at {self.url}: {error}; {remedy}") from error
        self._client.loop_start()
        with self._changed:
            self._changed.wait_for(lambda: self._connections > 0 or self._refusal, timeout_s)
            problem = self._refusal if not self._connections else ""
            silent = not self._connections and not problem
        if problem or silent:
            self._client.disconnect()
            self._client.loop_stop()
            if silent:
                raise LinkError(f"{self.url} took the connection but does not speak MQTT within {timeout_s:g} s; {remedy}")
            raise LinkError(f"the broker at {self.url} refused: {problem}; check user and password in the url")

    def _guard(self, callback: Callable[..., None]) -> Callable[..., None]:
        # paho's thread would die of an exception while is_connected() stays true
        def guarded(*args: Any) -> None:
            try:
                callback(*args)
            except Exception as error:
                self._failure = error

        return guarded

    def _on_connect(self, client: paho.Client, userdata: Any, flags: Any, reason: Any, properties: Any) -> None:
        with self._changed:
            if reason.is_failure:
                self._refusal = str(reason)
                self._changed.notify_all()
                return
            again = self._connections > 0
            self._connections += 1
            filters = dict(self._filters)
            self._changed.notify_all()
        for topic, qos in filters.items():
            client.subscribe(topic, qos)
        if again:
            self._events.put_nowait(Connected())

    def _on_disconnect(self, client: paho.Client, userdata: Any, flags: Any, reason: Any, properties: Any) -> None:
        with self._changed:
            self._changed.notify_all()

    def _on_message(self, client: paho.Client, userdata: Any, received: paho.MQTTMessage) -> None:
        message = Message(received.topic, bytes(received.payload), received.retain)
        self.bytes_down += len(message.payload)
        # amqtt 0.12 sends each new client the retained messages of everybody's subscriptions
        if not any(matches(topic, message.topic) for topic in tuple(self._filters)):
            return
        if len(message.payload) > MAX_PAYLOAD_BYTES:
            message = Message(message.topic, b"", message.retained, len(message.payload))
        if reply := self._replies.get(message.topic):
            reply(message)
            return
        try:
            self._events.put_nowait(message)
        except queue.Full:
            # receipts and resends make up for a dropped message; unbounded memory has no cure
            self.dropped += 1

    def _on_publish(self, client: paho.Client, userdata: Any, mid: int, reason: Any, properties: Any) -> None:
        with self._changed:
            if mid in self._unwatched:
                self._unwatched.discard(mid)
            elif mid in self._unacknowledged:
                self._unacknowledged.discard(mid)
                self._changed.notify_all()
            else:
                self._early.add(mid)

    def _on_subscribe(self, client: paho.Client, userdata: Any, mid: int, reasons: Any, properties: Any) -> None:
        with self._changed:
            self._granted[mid] = not any(reason.is_failure for reason in reasons)
            self._changed.notify_all()

    def subscribe(self, *filters: str, qos: int = 1, timeout_s: float = 10.0) -> None:
        """Subscribe, now and after each reconnect, and wait for the broker's word on it (0: do not). LinkError when it does not come."""
        new = [topic for topic in filters if topic not in self._filters]
        if not new:
            return
        self._filters.update(dict.fromkeys(new, qos))
        self._granted.clear()
        before = self._connections
        _, mid = self._client.subscribe([(topic, qos) for topic in new])
        if not timeout_s:
            return
        with self._changed:
            # a reconnect in between subscribes to all of them under other numbers
            answered = self._changed.wait_for(
                lambda: mid in self._granted or self._connections > before or not self._client.is_connected(), timeout_s
            )
            allowed = self._granted.get(mid or -1, True)
            self._granted.clear()
        if not answered:
            raise LinkError(f"{self.url} did not answer a subscription within {timeout_s:g} s; check the broker's log")
        if not allowed:
            raise LinkError(f"{self.url} refused the subscription {', '.join(new)}; check the broker's access list")

    def unsubscribe(self, *filters: str) -> None:
        """End subscriptions."""
        for topic in filters:
            if self._filters.pop(topic, None) is not None:
                self._client.unsubscribe(topic)

    def on_network(self, topic: str, reply: Callable[[Message], None]) -> None:
        """Have one topic's messages answered at once on the network thread; `reply` may publish, and must not wait."""
        self._replies[topic] = reply

    def publish(self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False) -> None:
        """Send a message, now or when the link is up again. LinkError for more than 255 KiB: the broker would drop it."""
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise LinkError(f"{topic} is {len(payload)} bytes, expected at most {MAX_PAYLOAD_BYTES}; send it in chunks")
        # no lock here: paho calls on_publish with its own message lock held, maybe before publish returns
        info = self._client.publish(topic, payload, qos=qos, retain=retain)
        self.bytes_up += len(payload)
        with self._changed:
            if info.mid in self._early:
                self._early.discard(info.mid)
            else:
                (self._unacknowledged if qos else self._unwatched).add(info.mid)

    @property
    def in_flight(self) -> int:
        """How many of the published messages the broker has not acknowledged."""
        return len(self._unacknowledged)

    def wait_in_flight(self, below: int, timeout_s: float) -> bool:
        """Wait until fewer than `below` messages are unacknowledged; return whether that came true in time."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._unacknowledged) < below, timeout_s)

    @property
    def is_connected(self) -> bool:
        """Whether the broker is there now."""
        return self._client.is_connected()

    def get(self, timeout_s: float) -> Message | Connected | None:
        """Return the next event, or None after `timeout_s`. LinkError when the network thread is dead."""
        if self._failure is not None:
            raise LinkError(f"the link to {self.url} broke: {self._failure!r}; start again") from self._failure
        try:
            return self._events.get(timeout=max(0.0, timeout_s))
        except queue.Empty:
            if not any(thread.name == self._thread_name for thread in threading.enumerate()):
                raise LinkError(f"the network thread of {self.url} ended; start again") from None
            return None

    def close(self, timeout_s: float = 5.0) -> bool:
        """Wait for what is published but not acknowledged, then leave without a will. Returns whether all was acknowledged."""
        deadline = time.monotonic() + timeout_s
        done = self.wait_in_flight(1, timeout_s) if self.is_connected else not self._unacknowledged
        with contextlib.suppress(OSError, ValueError):
            self._client.disconnect()
        while self._client.is_connected() and time.monotonic() < deadline:
            with self._changed:
                self._changed.wait(0.05)
        self._client.loop_stop()
        return done

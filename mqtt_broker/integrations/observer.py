"""Feeds other tools, such as Home Assistant and Prometheus, during a federation.

The observer runs in a thread of the aggregator with a separate connection. It receives the messages that any
monitor may read. Its failures do not affect the rounds. A broker that rejects it, or a scrape that hangs,
ends only the observation.
"""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from edgefl.base.errors import LinkError, WireError
from edgefl.learning.algorithms import PHASE_DONE
from edgefl.protocol.security.enrolment import load_enrolment, make_tls_context
from edgefl.protocol.security.trust import DeviceKeys
from edgefl.protocol.transport.link import Connected, Link, Message
from edgefl.protocol.wire.messages import State
from edgefl.protocol.wire.strict_json import decode_json
from edgefl.protocol.wire.topics import FederationTopics
from edgefl.watch.monitor.view import list_view_subscriptions
from mqtt_broker.integrations.home_assistant import Announcer
from mqtt_broker.integrations.tool_options import ToolOptions

LOGGER = logging.getLogger("edgefl.observer")
ANNOUNCE_INTERVAL_S = 1.0
END_WAIT_S = 10.0
LAST_SCRAPE_WAIT_S = 70.0
"""Longest wait for a last scrape. By default Prometheus scrapes once a minute."""


class MessageListener(Protocol):
    """Interface of an observer that receives every message."""

    def take(self, topic: str, payload: bytes, now_s: float) -> None:
        """Receive a message that arrived at `now_s`, in seconds since 1970."""


class Observer(threading.Thread):
    """Thread that receives the messages of a federation until it is stopped.

    Args:
        link: connection to the broker, with subscriptions.
        federation: name of the federation.
        listeners: receive every message.
        announcer: makes the discovery messages to publish. None publishes nothing.
    """

    def __init__(
        self,
        link: Link,
        federation: str,
        listeners: list[MessageListener],
        announcer: Announcer | None,
    ) -> None:
        super().__init__(name="edgefl-observer", daemon=True)
        self._link = link
        self._listeners = listeners
        self._announcer = announcer
        self._state = FederationTopics(federation).state
        self._phase = ""
        self._stop_by = float("inf")
        self._due = 0.0

    def run(self) -> None:
        """Pass messages to the listeners, and publish discovery messages that are due."""
        try:
            while time.monotonic() < self._stop_by and not (
                self._stop_by < float("inf") and self._phase == PHASE_DONE
            ):
                self._handle(self._link.get(0.2))
            self._announce()  # The federation may have been shorter than ANNOUNCE_INTERVAL_S
        except LinkError as error:
            LOGGER.error(f"other tools receive no more messages: {error}")

    def _handle(self, event: Message | Connected | None) -> None:
        if isinstance(event, Message):
            for listener in self._listeners:
                listener.take(event.topic, event.payload, time.time())
            if event.topic == self._state and event.payload:
                try:
                    self._phase = decode_json(State, event.payload).phase
                except WireError:
                    return
        elif isinstance(event, Connected) and self._announcer:
            self._announcer.reset()
        if (now := time.monotonic()) >= self._due:
            self._due = now + ANNOUNCE_INTERVAL_S
            self._announce()

    def _announce(self) -> None:
        for message in self._announcer.collect_due() if self._announcer else ():
            self._link.publish(message.topic, message.payload, retain=True)

    def stop(self, *, ended: bool, clear: bool) -> None:
        """End the thread, and close the link.

        Args:
            ended: whether the federation is complete. The thread then ends after it received the last
                state, or after 10 s. Otherwise it ends at once.
            clear: remove all entities if the federation is complete.
        """
        self._stop_by = time.monotonic() + (END_WAIT_S if ended else 0.0)
        self.join()
        if ended and clear and self._announcer:
            for message in self._announcer.withdraw():
                self._link.publish(message.topic, message.payload, retain=True)
        self._link.close()


@contextmanager
def serve_tools(tools: ToolOptions, broker: str, federation: str, security: Path | None) -> Iterator[None]:
    """Serve the requested tools while the context is open.

    If the metrics were scraped before, the end of the context waits for a scrape of the complete federation,
    for 70 s at most.

    Args:
        broker: URL of the broker.
        federation: name of the federation.
        security: directory of `edgefl broker init`, or None.

    Raises:
        LinkError: the broker cannot be used.
        ConfigError: the address of the metrics cannot be used, or the enrolment cannot be read.
        ModuleNotFoundError: the extra `prometheus` is not installed.
    """
    if not tools.home_assistant and tools.metrics_port is None:
        yield
        return
    with ExitStack() as stack:
        listeners = list[MessageListener]()
        announcer = metrics = None
        if tools.home_assistant:
            announcer = Announcer(federation, tools.home_assistant, _make_revocation_check(security))
            listeners.append(announcer)
        if tools.metrics_port is not None:
            from mqtt_broker.integrations.prometheus import FederationMetrics, serve_metrics

            metrics = FederationMetrics(federation)
            listeners.append(metrics)
            url = stack.enter_context(serve_metrics(metrics, tools.metrics_host, tools.metrics_port))
            LOGGER.info(f"metrics at {url}")
        context = make_tls_context(load_enrolment(security / "aggregator.enrol")) if security else None
        link = Link(broker, f"edgefl-observer-{secrets.token_hex(8)}", context=context)
        observer = Observer(link, federation, listeners, announcer)
        topics = FederationTopics(federation)
        qos_by_topic = (
            {topics.state: 1, topics.format_device("+", "status"): 1}
            if tools.metrics_port is None
            else list_view_subscriptions(federation)
        )
        try:
            for qos in sorted(set(qos_by_topic.values()), reverse=True):
                link.subscribe(
                    *(topic for topic, topic_qos in qos_by_topic.items() if topic_qos == qos), qos=qos
                )
            observer.start()
            yield
        except BaseException:
            if observer.is_alive():
                observer.stop(ended=False, clear=False)
            else:
                link.close()
            raise
        observer.stop(ended=True, clear=tools.clear)
        if metrics and metrics.is_awaiting_scrape():
            LOGGER.info(f"waiting for a last scrape of the metrics, {LAST_SCRAPE_WAIT_S:.0f} s at most")
            metrics.wait_for_scrape(LAST_SCRAPE_WAIT_S)


def _make_revocation_check(security: Path | None) -> Callable[[str], bool]:
    if security is None:
        return lambda client_id: False
    enrolments = DeviceKeys(security)

    def is_revoked(client_id: str) -> bool:
        try:
            enrolments.find_key(client_id)
        except WireError:
            return True
        return False

    return is_revoked

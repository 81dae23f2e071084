"""Other tools beside an aggregator: one more connection, in a thread, that hears what any monitor may hear.

Nothing that happens here reaches the rounds: a broker that refuses it, or a scrape that hangs, ends the
observation at most.
"""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from edgefl.algorithms import DONE
from edgefl.errors import LinkError, WireError
from edgefl.monitor.view import subscriptions
from edgefl.security.enrolment import load_enrolment, tls_context
from edgefl.security.trust import Enrolments
from edgefl.transport.link import Connected, Link, Message
from edgefl.wire.messages import State
from edgefl.wire.strict_json import decode_json
from edgefl.wire.topics import Topics
from mqtt_broker.integrations.home_assistant import Announcer
from mqtt_broker.integrations.tool_options import Tools

LOGGER = logging.getLogger("edgefl.observer")
DUE_S = 1.0
END_S = 10.0
LAST_SCRAPE_S = 70.0
"""Longest wait for a last scrape. Prometheus asks once a minute unless its configuration says otherwise."""


class Part(Protocol):
    """What is told of every message."""

    def take(self, topic: str, payload: bytes, now_s: float) -> None:
        """Hear a message."""


class Observer(threading.Thread):
    """Hears a federation until it is stopped."""

    def __init__(
        self,
        link: Link,
        federation: str,
        parts: list[Part],
        announcer: Announcer | None,
    ) -> None:
        super().__init__(name="edgefl-observer", daemon=True)
        self._link = link
        self._parts = parts
        self._announcer = announcer
        self._state = Topics(federation).state
        self._phase = ""
        self._stop_by = float("inf")
        self._due = 0.0

    def run(self) -> None:
        """Hear, and publish what is due."""
        try:
            while time.monotonic() < self._stop_by and not (
                self._stop_by < float("inf") and self._phase == DONE
            ):
                self._hear(self._link.get(0.2))
            self._announce()  # of a federation that was shorter than DUE_S
        except LinkError as error:
            LOGGER.error(f"other tools receive nothing any more: {error}")

    def _hear(self, event: Message | Connected | None) -> None:
        if isinstance(event, Message):
            for part in self._parts:
                part.take(event.topic, event.payload, time.time())
            if event.topic == self._state and event.payload:
                try:
                    self._phase = decode_json(State, event.payload).phase
                except WireError:
                    return
        elif isinstance(event, Connected) and self._announcer:
            self._announcer.again()
        if (now := time.monotonic()) >= self._due:
            self._due = now + DUE_S
            self._announce()

    def _announce(self) -> None:
        for message in self._announcer.due() if self._announcer else ():
            self._link.publish(message.topic, message.payload, retain=True)

    def stop(self, *, ended: bool, clear: bool) -> None:
        """End the thread: at once, or when the federation `ended` and that was heard.

        Then `clear` takes all entities away.
        """
        self._stop_by = time.monotonic() + (END_S if ended else 0.0)
        self.join()
        if ended and clear and self._announcer:
            for message in self._announcer.withdrawn():
                self._link.publish(message.topic, message.payload, retain=True)
        self._link.close()


@contextmanager
def observed(tools: Tools, broker: str, federation: str, security: Path | None) -> Iterator[None]:
    """Serve the tools that are asked for while a federation is led.

    Metrics that were scraped before are served until they are scraped once more, with the end of the
    federation in them.

    LinkError, ConfigError, ModuleNotFoundError without the extra.
    """
    if not tools.home_assistant and tools.metrics_port is None:
        yield
        return
    with ExitStack() as stack:
        parts = list[Part]()
        announcer = figures = None
        if tools.home_assistant:
            announcer = Announcer(federation, tools.home_assistant, _is_out(security))
            parts.append(announcer)
        if tools.metrics_port is not None:
            from mqtt_broker.integrations.prometheus import Figures, serve

            figures = Figures(federation)
            parts.append(figures)
            url = stack.enter_context(serve(figures, tools.metrics_host, tools.metrics_port))
            LOGGER.info(f"metrics at {url}")
        context = tls_context(load_enrolment(security / "aggregator.enrol")) if security else None
        link = Link(broker, f"edgefl-observer-{secrets.token_hex(8)}", context=context)
        observer = Observer(link, federation, parts, announcer)
        topics = Topics(federation)
        wanted = (
            {topics.state: 1, topics.device("+", "status"): 1}
            if tools.metrics_port is None
            else subscriptions(federation)
        )
        try:
            for qos in sorted(set(wanted.values()), reverse=True):
                link.subscribe(*(topic for topic, each in wanted.items() if each == qos), qos=qos)
            observer.start()
            yield
        except BaseException:
            if observer.is_alive():
                observer.stop(ended=False, clear=False)
            else:
                link.close()
            raise
        observer.stop(ended=True, clear=tools.clear)
        if figures and figures.awaits_scrape():
            LOGGER.info(f"waiting for a last scrape of the metrics, {LAST_SCRAPE_S:.0f} s at most")
            figures.wait_for_scrape(LAST_SCRAPE_S)


def _is_out(security: Path | None) -> Callable[[str], bool]:
    if security is None:
        return lambda client_id: False
    enrolments = Enrolments(security)

    def is_out(client_id: str) -> bool:
        try:
            enrolments.key_of(client_id)
        except WireError:
            return True
        return False

    return is_out

"""Tracks subscriptions and the broker's answers to them.

The thread of the service and the network thread both use it.
"""

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from edgefl.base.errors import LinkError
from edgefl.protocol.transport.acknowledgements import Acknowledgements

# Not authorized, topic name invalid: another try would not help. Other refusals, such as for a full quota,
# are temporary.
PERMANENT_REFUSALS = (0x87, 0x90)
RETRY_S = 0.5
MAX_REFUSED = 60


class Reason(Protocol):
    """A broker's answer as the MQTT client represents it.

    Attributes:
        value: reason code of MQTT 5. MQTT 3.1.1 uses 0x80 for every refusal.
    """

    value: int

    @property
    def is_failure(self) -> bool:
        """Whether the broker refuses."""


class Subscriptions:
    """The subscriptions of a link, restored after each reconnect.

    The lock of `acknowledgements` guards the state.

    Args:
        send: subscribes to (filter, QoS) pairs. Returns the packet number, or None if it cannot send.
        get_connection: returns a number that differs for each connection, or 0 while there is no connection.
        acknowledgements: its `changed` is notified at each answer, and when a connection is made or lost.

    Attributes:
        filters: QoS by topic filter, for all intended subscriptions.
    """

    def __init__(
        self,
        send: Callable[[list[tuple[str, int]]], int | None],
        get_connection: Callable[[], int],
        acknowledgements: Acknowledgements,
    ) -> None:
        self._send = send
        self._get_connection = get_connection
        self._lock = acknowledgements.lock
        self._changed = acknowledgements.changed
        self.filters: dict[str, int] = {}
        self._awaited: dict[int, Reason | None] = {}
        self._refused = 0

    def add(self, url: str, new: dict[str, int], timeout_s: float) -> None:
        """Subscribe, and wait for the broker's answer.

        A refusal that may be temporary is retried until the time is over.

        Args:
            url: url of the broker, for errors.
            new: QoS by topic filter.
            timeout_s: how long to wait in seconds. 0 does not wait.

        Raises:
            LinkError: the broker refuses the subscription, or does not answer in time.
        """
        self.filters.update(new)
        if not timeout_s:
            self._send(list(new.items()))
            return
        deadline = time.monotonic() + timeout_s
        while (refusal := self._ask(url, new, deadline - time.monotonic(), timeout_s)) is not None:
            # The answer to another request needs time too
            if refusal.value in PERMANENT_REFUSALS or time.monotonic() + 2 * RETRY_S > deadline:
                for topic in new:
                    del self.filters[topic]
                raise LinkError(
                    f"{url} refused the subscription {', '.join(new)}: {refusal}; check the broker's access "
                    "list"
                )
            time.sleep(RETRY_S)

    def _ask(self, url: str, new: dict[str, int], left_s: float, timeout_s: float) -> Reason | None:
        with self._lock:
            before = self._get_connection()
            number = self._send(list(new.items())) or -1
            self._awaited[number] = None
            # a reconnect meanwhile subscribes to all filters with other packet numbers
            answered = self._changed.wait_for(
                lambda: self._awaited[number] is not None or self._get_connection() != before or not before,
                max(0.0, left_s),
            )
            reason = self._awaited.pop(number)
        if not answered:
            raise LinkError(
                f"{url} did not answer a subscription within {timeout_s:g} s; check the broker's log"
            )
        return reason if reason is not None and reason.is_failure else None

    def record_answer(self, number: int, reasons: Sequence[Reason]) -> None:
        """Record the broker's answer to a subscription.

        After a refusal that may be temporary, all subscriptions are sent again later.

        Args:
            number: packet number of the subscription.
            reasons: one answer per filter.

        Raises:
            LinkError: the broker refuses a subscription that it granted before, permanently or too often.
        """
        refusal = next((reason for reason in reasons if reason.is_failure), None)
        with self._lock:
            if number in self._awaited:
                self._awaited[number] = refusal or reasons[0]
                self._changed.notify_all()
                return
            self._refused = self._refused + 1 if refusal else 0
        if refusal is None:
            return
        if refusal.value in PERMANENT_REFUSALS or self._refused > MAX_REFUSED:
            raise LinkError(
                f"the broker refused a subscription that it had granted: {refusal}; check its access list"
            )
        # a cluster that lost a machine can refuse for some seconds
        timer = threading.Timer(random.uniform(RETRY_S, 3 * RETRY_S), self.resubscribe)
        timer.daemon = True
        timer.start()

    def resubscribe(self) -> None:
        """Send all subscriptions on a new connection, without waiting."""
        for subscription in list(self.filters.items()):
            self._send([subscription])

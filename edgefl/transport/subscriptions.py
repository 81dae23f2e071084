"""What is subscribed to and what the broker said to it; used by the service's thread and the network's."""

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from edgefl.errors import LinkError
from edgefl.transport.acknowledgements import Acknowledgements

# not authorized, topic name invalid: trying again would not help. Other refusals, such as of a full quota,
# pass.
PERMANENT_REFUSALS = (0x87, 0x90)
RETRY_S = 0.5
MAX_REFUSED = 60


class Reason(Protocol):
    """A broker's answer as the MQTT client gives it.

    `value`: a reason code of MQTT 5, in 3.1.1 0x80 for any refusal.
    """

    value: int

    @property
    def is_failure(self) -> bool:
        """Whether it is a refusal."""


class Subscriptions:
    """`filters`: QoS by topic filter, as it should be.

    `send` asks for some and returns the packet's number, None when it cannot.

    `present`: a number of the connection that is up, another one after each reconnect, 0 without one. The
    lock of `acknowledgements` guards all of it, and its `changed` is notified whenever an answer or a
    connection comes or goes.
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
        """Subscribe and wait for the answer, if at all.

        A no that may pass is asked again; LinkError when it stays, or none comes.
        """
        self.filters.update(new)
        if not timeout_s:
            self._send(list(new.items()))
            return
        deadline = time.monotonic() + timeout_s
        while (refusal := self._ask(url, new, deadline - time.monotonic(), timeout_s)) is not None:
            if refusal.value in PERMANENT_REFUSALS or time.monotonic() + RETRY_S > deadline:
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
            # a reconnect in between subscribes to all of them under other numbers
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
        """Note the broker's answer.

        LinkError when it takes back for good, or time and again, what it granted before.
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
        # a cluster that lost a machine may refuse for some seconds
        timer = threading.Timer(random.uniform(RETRY_S, 3 * RETRY_S), self.resubscribe)
        timer.daemon = True
        timer.start()

    def resubscribe(self) -> None:
        """Ask for all of them on a connection that knows none; does not wait."""
        for subscription in list(self.filters.items()):
            self._send([subscription])

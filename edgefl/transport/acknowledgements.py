"""What was published and not acknowledged yet, by packet number.

Used by the service's thread and the network's.
"""

import threading

MAX_LISTED_REFUSALS = 3
MAX_EARLY_ANSWERS = 64
"""Answers that are kept for messages not noted as sent yet. A message is noted as soon as `publish` returns,
and those of QoS 0 never are.
"""


class Acknowledgements:
    """Told of each message twice, when it is sent and when the broker answers, in either order.

    `changed` is notified at each answer; its `lock` guards all of it.
    """

    def __init__(self) -> None:
        # taken as it is, not by way of `changed`, whose Python code a signal may end between the lock and the
        # block that gives it back
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self._waiting: dict[int, str] = {}
        self._early: dict[int, str] = {}
        self._refused: dict[str, str] = {}

    def __len__(self) -> int:
        """How many messages lack their answer."""
        return len(self._waiting)

    def record_sent(self, number: int, topic: str) -> None:
        """Note a message of QoS 1."""
        with self.lock:
            if number in self._early:
                self._refuse(topic, self._early.pop(number))
            else:
                self._waiting[number] = topic

    def record_answer(self, number: int, refusal: str = "") -> None:
        """Note the broker's answer; `refusal`: why it will not have the message, empty when it took it."""
        with self.lock:
            if number in self._waiting:
                self._refuse(self._waiting.pop(number), refusal)
            else:
                self._early[number] = refusal
                while len(self._early) > MAX_EARLY_ANSWERS:
                    del self._early[next(iter(self._early))]
            self.changed.notify_all()

    def _refuse(self, topic: str, refusal: str) -> None:
        # at most a few are kept: they are told at the next `take_refused`, and who may not speak is not let
        # go on
        if refusal and len(self._refused) <= MAX_LISTED_REFUSALS:
            self._refused[topic] = refusal

    def take_refused(self) -> str:
        """Return `TOPIC (REASON), ...` of what was refused since this was asked last, or nothing."""
        if not self._refused:  # asked for each message, and almost never true
            return ""
        with self.lock:
            refused = self._refused
            self._refused = {}
        lines = [f"{topic} ({reason})" for topic, reason in refused.items()]
        return ", ".join(lines[:MAX_LISTED_REFUSALS]) + (
            " and more" if len(lines) > MAX_LISTED_REFUSALS else ""
        )

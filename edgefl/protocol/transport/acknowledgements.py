"""Tracks published messages without an acknowledgement, by packet number.

The thread of the service and the network thread both use it.
"""

import threading

MAX_LISTED_REFUSALS = 3
MAX_EARLY_ANSWERS = 64
"""Maximum number of answers to messages that are not recorded as sent.

A message is recorded as soon as `publish` returns. Messages of QoS 0 are never recorded.
"""


class Acknowledgements:
    """Matches sent messages with the broker's answers.

    Each message is recorded twice, in either order: when it is sent, and when the broker answers.

    Attributes:
        lock: guards the state.
        changed: condition that is notified at each answer.
    """

    def __init__(self) -> None:
        # Callers acquire the lock itself, not `changed`. A signal can interrupt the Python code of a
        # condition between acquiring the lock and entering the block that releases it.
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self._waiting: dict[int, str] = {}
        self._early: dict[int, str] = {}
        self._refused: dict[str, str] = {}

    def __len__(self) -> int:
        """Return the number of messages without an answer."""
        return len(self._waiting)

    def record_sent(self, number: int, topic: str) -> None:
        """Record a sent message of QoS 1.

        Args:
            number: packet number of the message.
        """
        with self.lock:
            if number in self._early:
                self._refuse(topic, self._early.pop(number))
            else:
                self._waiting[number] = topic

    def record_answer(self, number: int, refusal: str = "") -> None:
        """Record the broker's answer.

        Args:
            number: packet number of the message.
            refusal: why the broker rejects the message. Empty if it accepts it.
        """
        with self.lock:
            if number in self._waiting:
                self._refuse(self._waiting.pop(number), refusal)
            else:
                self._early[number] = refusal
                while len(self._early) > MAX_EARLY_ANSWERS:
                    del self._early[next(iter(self._early))]
            self.changed.notify_all()

    def _refuse(self, topic: str, refusal: str) -> None:
        # a few are enough: the next `take_refused` reports them, and the caller then stops
        if refusal and len(self._refused) <= MAX_LISTED_REFUSALS:
            self._refused[topic] = refusal

    def take_refused(self) -> str:
        """Return the refusals since the last call as `TOPIC (REASON), ...`, or "" if there are none."""
        if not self._refused:  # the common case, checked for each message
            return ""
        with self.lock:
            refused = self._refused
            self._refused = {}
        lines = [f"{topic} ({reason})" for topic, reason in refused.items()]
        return ", ".join(lines[:MAX_LISTED_REFUSALS]) + (
            " and more" if len(lines) > MAX_LISTED_REFUSALS else ""
        )

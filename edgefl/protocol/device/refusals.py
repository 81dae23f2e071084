"""The plans and tasks that a client refuses, and how long it pauses after a refusal."""

import logging
import math

from edgefl.protocol.device.events import WriteClientLog
from edgefl.protocol.wire.messages import DIVERGED_PREFIX, REFUSAL_PREFIX, Task

MAX_REASON_LENGTH = 300
"""Maximum length of a reason in a status, in characters."""
FIRST_RETRY_S = 5.0
LONGEST_RETRY_S = 300.0
"""Range of the pause after a refused task, in seconds. The pause doubles each time, until a task succeeds."""


class Refusals:
    """The refusals of one client.

    Attributes:
        plan: sha256 of the plan whose tasks are refused, empty if there is none.
        failure: why the last task failed, empty if it did not.
    """

    def __init__(self) -> None:
        self.plan = ""
        self.failure = ""
        self._reason = ""
        self._until = -math.inf
        self._retry_s = FIRST_RETRY_S

    def refuse_plan(self, sha256: str, reason: str) -> WriteClientLog:
        """Refuse all tasks with a plan. The client stays connected and accepts tasks with another plan.

        Args:
            sha256: digest of the plan in hex.
            reason: what was found, what is expected, and the remedy.
        """
        self.plan = sha256
        self._pause(f"the plan: {reason}", math.inf)
        line = f"the plan is refused; this device waits for another plan: {reason}"
        return WriteClientLog(line, logging.ERROR)

    def refuse_task(
        self, task: Task, reason: str, now: float, *, has_diverged: bool = False
    ) -> WriteClientLog:
        """Refuse a task and pause. The models of a later round may be usable.

        Args:
            reason: what was found, what is expected, and the remedy.
            now: the time in seconds.
            has_diverged: whether the training loss is not a finite number.
        """
        self.failure = reason
        line = (
            f"round {task.round}: the task is refused: {reason}; this device tries another task in "
            f"{self._retry_s:g} s. If this happens in every round, look at the aggregator's log, and start "
            "the aggregator with an earlier state or --fresh"
        )
        self._pause_for_a_while(f"round {task.round}: {DIVERGED_PREFIX if has_diverged else ''}{reason}", now)
        return WriteClientLog(line, logging.WARNING, {"round": task.round})

    def wait_for_package(self, reason: str, now: float) -> WriteClientLog:
        """Pause because a package is missing, which somebody may install.

        Args:
            reason: the missing package, and how to install it.
            now: the time in seconds.
        """
        line = f"{reason}. This device tries another task in {self._retry_s:g} s"
        self._pause_for_a_while(f"masked rounds: {reason}", now)
        return WriteClientLog(line, logging.WARNING)

    def _pause_for_a_while(self, reason: str, now: float) -> None:
        self._pause(reason, now + self._retry_s)
        self._retry_s = min(LONGEST_RETRY_S, 2 * self._retry_s)

    def _pause(self, reason: str, until: float) -> None:
        self._reason = f"{REFUSAL_PREFIX}{reason}"[:MAX_REASON_LENGTH]
        self._until = until

    def clear(self) -> None:
        """Forget all refusals, after a task succeeded or another plan fits."""
        self.plan = self.failure = self._reason = ""
        self._until = -math.inf
        self._retry_s = FIRST_RETRY_S

    def get_reason(self, now: float) -> str:
        """Return why the client accepts no task now, empty if no refusal lasts.

        Args:
            now: the time in seconds.
        """
        return self._reason if now < self._until else ""

    def get_timer(self, now: float) -> float:
        """Return the time in seconds at which a pause ends, or infinity.

        Args:
            now: the time in seconds.
        """
        return self._until if now < self._until else math.inf

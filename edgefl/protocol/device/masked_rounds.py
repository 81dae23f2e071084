"""The rules of a client in masked rounds.

Attempts with different clients give different sums, whose difference may reveal an update. Therefore a client
sends its masked vector in at most MAX_ATTEMPTS attempts at one round. An attempt that ends before the client
sends it reveals nothing and does not count. So an aggregator may restart often. A client sends no plain
update of a session for which it masked an update.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from edgefl.protocol.device.events import Answer, AnsweredRound
from edgefl.protocol.device.order import is_unmasked_update
from edgefl.protocol.wire.masked import (
    AGREE_STEP,
    MASK_STEP,
    MAX_ATTEMPTS,
    UNMASK_STEP,
    VECTOR_ELEMENT_BYTES,
    parse_attempt,
)
from edgefl.protocol.wire.messages import Receipt, Task

MAX_STEP_BYTES = 16 * 1024 * 1024
"""Maximum size of the blob of a step, in bytes."""
DEVICE_METRICS = ("epochs", "seconds", "peak_rss_mb")
SHARED_METRICS = ("loss", *DEVICE_METRICS)
EMPTY_ANSWER = Answer(sha256=hashlib.sha256().hexdigest(), size=0, num_samples=1, metrics={})
"""Tells the aggregator that this client does not take part in a step."""


def filter_masked_metrics(metrics: Mapping[str, float], requires_masks: bool = False) -> Mapping[str, float]:
    """Return the metrics of a masked update that may be published.

    Other metrics may reveal which model was trained. A client that requires masks does not publish `loss`
    either. The plan computes the loss, and a hostile plan may return any function of a sample.

    Args:
        requires_masks: whether the owner allows masked updates only, see `SharingRules`.

    Returns:
        The metrics of `SHARED_METRICS` or, with `requires_masks`, of `DEVICE_METRICS`.
    """
    names = DEVICE_METRICS if requires_masks else SHARED_METRICS
    return {key: value for key, value in metrics.items() if key in names}


def is_same_attempt(step: Task, task: Task) -> bool:
    """Return whether a step and a masked task belong to the same attempt at a round."""
    return (step.session, parse_attempt(step.nonce)) == (task.session, parse_attempt(task.nonce))


def is_final(step: Task, receipt: Receipt) -> bool:
    """Return whether the part of a client in an attempt ends with this answer to a step.

    Args:
        receipt: the receipt of the client's answer, ok or rejected.
    """
    return step.phase == UNMASK_STEP or is_step_rejected(step, receipt)


def is_step_rejected(step: Task, receipt: Receipt) -> bool:
    """Return whether the aggregator excludes a client from the attempt.

    A rejection of the last steps is harmless: enough other clients may have answered before.

    Args:
        receipt: the receipt of the client's answer, ok or rejected.
    """
    return receipt.outcome == "rejected" and step.phase not in (AGREE_STEP, UNMASK_STEP)


@dataclass(frozen=True)
class Attempt:
    """An attempt at a masked round.

    Attributes:
        task: the masked task.
        count: number of attempts at the round in which the client sent its masked vector so far.
        has_keys: whether the driver could draw the keys.
        has_vector: whether the client sent its masked vector in this attempt.
    """

    task: Task
    count: int
    has_keys: bool = True
    has_vector: bool = False


class MaskingRules:
    """The attempts and the masked sessions of one client.

    Args:
        sessions: the sessions for which the client masked an update before its last stop.
        requires_masks: whether the owner allows masked updates only, see `SharingRules`.
    """

    def __init__(self, sessions: tuple[str, ...], requires_masks: bool) -> None:
        self._sessions = set(sessions)
        self._requires_masks = requires_masks
        self._attempt: Attempt | None = None

    def add_session(self, session: str) -> bool:
        """Record that the client masks an update of a session, and return whether that is new."""
        is_new = session not in self._sessions
        self._sessions.add(session)
        return is_new

    def is_plain_in_masked_session(self, task: Task) -> bool:
        """Return whether a task asks for a plain update in a session for which the client masked an update.

        It does not matter whether the client took part in other sessions meanwhile.
        """
        return is_unmasked_update(task) and task.session in self._sessions

    def is_new_attempt(self, task: Task) -> bool:
        """Return whether a masked task begins another attempt than the present one."""
        last = self._attempt
        if last is None or not last.has_keys:
            return True
        return (last.task.session, last.task.nonce) != (task.session, task.nonce)

    def begin_attempt(self, task: Task) -> bool:
        """Begin another attempt, and return whether the client may take part in it.

        Args:
            task: the masked task.
        """
        last = self._attempt
        is_same_round = last is not None and (last.task.session, last.task.round) == (
            task.session,
            task.round,
        )
        count = last.count if last is not None and is_same_round else 0
        if count >= MAX_ATTEMPTS:
            return False
        self._attempt = Attempt(task=task, count=count)
        return True

    def forget_attempt(self) -> None:
        """Forget the keys of the present attempt, which the driver could not draw."""
        if self._attempt:
            self._attempt = replace(self._attempt, has_keys=False)

    def count_vector(self, step: Task, size: int) -> None:
        """Count the masked vector that the client is about to send. A repeated one counts once.

        Args:
            step: the step that the client answers.
            size: number of bytes of the answer. A complaint in place of a vector does not count.
        """
        attempt = self._attempt
        is_vector = step.phase == MASK_STEP and size > 0 and size % VECTOR_ELEMENT_BYTES == 0
        if attempt is not None and is_vector and not attempt.has_vector:
            self._attempt = replace(attempt, count=attempt.count + 1, has_vector=True)

    def has_keys(self, step: Task) -> bool:
        """Return whether the driver holds the keys of the attempt of a step.

        A restart loses them.
        """
        attempt = self._attempt
        return attempt is not None and attempt.has_keys and is_same_attempt(step, attempt.task)

    def make_answer(self, task: Task, sha256: str, size: int, answered: AnsweredRound) -> Answer:
        """Return the answer to a masked task or to a step, with the metrics that may be published.

        Args:
            sha256: digest of the answer in hex.
            size: number of bytes of the answer. 0 if the client cannot take part.
            answered: the round whose update is masked.
        """
        if not size:
            return EMPTY_ANSWER
        metrics = self.filter_metrics(answered.answer.metrics) if task.phase == MASK_STEP else {}
        return Answer(sha256=sha256, size=size, num_samples=answered.answer.num_samples, metrics=metrics)

    def filter_metrics(self, metrics: Mapping[str, float]) -> Mapping[str, float]:
        """Return the metrics of a masked update that may be published, see `filter_masked_metrics`."""
        return filter_masked_metrics(metrics, self._requires_masks)

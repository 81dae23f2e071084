"""The rules by which a device accepts tasks: no task of an earlier round, and no task that its owner forbids.

A signature does not protect from replay, because a recording of a signed task is also signed. Therefore tasks
have an order, (`started`, `round`). A later run of the aggregator has a larger `started`, and no run sends a
round again after a later round. The driver stores the newest pair, so a device also refuses a replayed task
after a restart.
"""

import re
from dataclasses import dataclass, replace

from edgefl.base.codecs import check_codec
from edgefl.base.errors import ConfigError, WireError
from edgefl.learning.algorithms import PHASE_PERSONALIZE
from edgefl.protocol.device.events import NewestRound
from edgefl.protocol.wire.masked import MASKED_CODEC, SECAGG_STEPS
from edgefl.protocol.wire.messages import REFUSAL_PREFIX, State, Task

MASKED_ONLY_REASON = (
    f"{REFUSAL_PREFIX}this federation: it is not masked, and this device takes part in masked rounds only"
)
MAX_LOGGED_REFUSALS = 100
MAX_SHOWN_CODEC = 40
"""Number of characters of an unknown codec in a message."""
RESET_REMEDY = "restart this device"
"""How the owner of a device without a stored order makes it forget the newest run."""
SESSION_PATTERN = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True)
class SharingRules:
    """Rules of a device's owner on what the device may send.

    Attributes:
        masked_only: whether the device trains only for tasks whose updates are masked.
        least_clients: minimum number of clients in a masked round. A number above 0 implies masked rounds
            only.
    """

    masked_only: bool = False
    least_clients: int = 0

    @property
    def requires_masks(self) -> bool:
        """Whether the device trains only for tasks whose updates are masked."""
        return self.masked_only or self.least_clients > 0

    def combine(self, other: "SharingRules") -> "SharingRules":
        """Return rules that are as strict as both rules together."""
        return SharingRules(
            self.masked_only or other.masked_only, max(self.least_clients, other.least_clients)
        )


def is_unmasked_update(task: Task) -> bool:
    """Return whether the answer to a task is an update without masks."""
    return task.codec != MASKED_CODEC and task.phase != PHASE_PERSONALIZE and task.phase not in SECAGG_STEPS


def check_session(message: State | Task) -> None:
    """Check that the session of a state or a task can be stored.

    A device stores the names of many sessions in one file of limited size.

    Raises:
        WireError: the session is not a short name of letters, digits and `_.-`.
    """
    if not SESSION_PATTERN.fullmatch(message.session):
        raise WireError(
            f"a {type(message).__name__} names the session {message.session[:80]!r}, expected up to 64 "
            "letters, digits and _.-; look at the aggregator"
        )


def check_masked_task(task: Task) -> None:
    """Check that the phase of a task fits its codec and its models.

    Raises:
        WireError: the task is a masked task to personalize, or a step without exactly one blob.
    """
    if task.codec == MASKED_CODEC and task.phase == PHASE_PERSONALIZE:
        raise WireError(
            f"a task of round {task.round} to {PHASE_PERSONALIZE} has the codec {MASKED_CODEC}, expected "
            "a codec without masks; update the aggregator"
        )
    if task.phase in SECAGG_STEPS and len(task.models) != 1:
        raise WireError(
            f"a task of round {task.round} to {task.phase} names {len(task.models)} blobs, expected 1; "
            "update the aggregator"
        )


def _explain_codec(codec: str) -> str:
    """Return why the device cannot send updates with a codec, empty if it can."""
    try:
        if codec != MASKED_CODEC:
            check_codec(codec[:MAX_SHOWN_CODEC])
    except ConfigError as error:
        return f"{error}; update edgefl on this device, or change codec in [federation]"
    return ""


def _with_task(newest: NewestRound, task: Task) -> NewestRound:
    return replace(
        newest, round=max(newest.round, task.round), masked=newest.masked or task.codec == MASKED_CODEC
    )


class TaskOrder:
    """The order of one federation's tasks.

    Args:
        newest: the newest accepted run and round that was stored, or None.
        sharing: the owner's rules about the data that the device may send.
        reset_remedy: how the owner makes the device forget the newest run, for the log.

    Attributes:
        newest: the newest accepted run and round, or None. The driver stores it after each change.
        pause_reason: why the device accepts no task of the current run, empty if it accepts tasks.
    """

    def __init__(
        self,
        newest: NewestRound | None = None,
        sharing: SharingRules = SharingRules(),
        reset_remedy: str = RESET_REMEDY,
    ) -> None:
        self.newest = newest
        self.pause_reason = ""
        self._codec_reason = ""
        self._sharing = sharing
        self._reset_remedy = reset_remedy
        self._logged: set[tuple[int, str, int, bool]] = set()

    def explain_refusal(self, message: Task | State) -> str:
        """Return why the device refuses a message, empty if it accepts it. Update the newest run and round.

        Args:
            message: a task or state whose signature was checked.
        """
        reason = self._explain_stale(message)
        if reason:
            return reason
        newest = self._advance(message)
        reason = self._explain_forbidden(message, newest)
        self.newest = newest if reason or not isinstance(message, Task) else _with_task(newest, message)
        return reason

    def describe_new_refusal(self, message: Task | State, reason: str) -> str:
        """Return the line for the log about a refused message, empty if a similar one was logged before.

        Args:
            reason: the result of `explain_refusal`.
        """
        key = (
            message.started,
            message.session,
            message.round,
            isinstance(message, Task) and is_unmasked_update(message),
        )
        if key in self._logged or len(self._logged) >= MAX_LOGGED_REFUSALS:
            return ""
        self._logged.add(key)
        return (
            f"refused a {type(message).__name__} of round {message.round}, session "
            f"{message.session[:8]}: {reason}"
        )

    def _explain_stale(self, message: Task | State) -> str:
        newest = self.newest
        if newest is None or message.started > newest.started:
            return ""
        if message.started < newest.started or message.session != newest.session:
            older_s = (newest.started - message.started) / 1000
            return (
                f"its aggregator started {older_s:.0f} s before the newest aggregator that this device "
                "accepted. If nobody replays a recording, the aggregator's clock was set back or was years "
                f"ahead before; if it was set back, set the clock; if it was ahead, "
                f"{self._reset_remedy}"
            )
        if isinstance(message, Task) and message.round < newest.round:
            return (
                f"this device already accepted round {newest.round} of this session. If nobody replays a "
                "recording, the aggregator was restored from a backup while it ran; restart the aggregator"
            )
        return ""

    def _advance(self, message: Task | State) -> NewestRound:
        """Return the newest run, which may be the run of this message. A later run ends a pause."""
        newest = self.newest
        if newest and message.started == newest.started:
            return newest
        self.pause_reason = ""
        masked = newest is not None and newest.masked and newest.session == message.session
        return NewestRound(session=message.session, started=message.started, round=0, masked=masked)

    def _explain_forbidden(self, message: Task | State, newest: NewestRound) -> str:
        if not isinstance(message, Task):
            return ""
        if reason := _explain_codec(message.codec):
            self.pause_reason = self._codec_reason = f"{REFUSAL_PREFIX}this federation: {reason}"
            return reason
        if self.pause_reason == self._codec_reason:
            self.pause_reason = ""
        if not is_unmasked_update(message):
            if message.codec == MASKED_CODEC:
                self.pause_reason = ""
            return ""
        if self._sharing.requires_masks:
            self.pause_reason = MASKED_ONLY_REASON
            option = (
                "--masked-only"
                if self._sharing.masked_only
                else f"--least-clients {self._sharing.least_clients}"
            )
            return (
                f"it asks for an update that is not masked, and this device has {option}; set "
                "secure_aggregation in [privacy]"
            )
        if newest.masked:
            return (
                "it asks for an update that is not masked, and this session was masked before. Somebody with "
                "the aggregator's key may try to read this device's update; look at the aggregator"
            )
        return ""

    def should_withhold(self, task: Task) -> bool:
        """Return whether the answer to a task must not leave the device, because it is not masked."""
        newest = self.newest
        was_masked = newest is not None and newest.masked and newest.session == task.session
        return is_unmasked_update(task) and (self._sharing.requires_masks or was_masked)

"""What a device does now, and why it is not in the round, in plain words. Pure functions."""

import statistics
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from edgefl.monitor.device_view import OK, REJECTED, SENT, DeviceView
from edgefl.wire.messages import JOINING_PHASE, PAUSED_BY_OPERATOR, STOPPED_PHASE, State

ActivityKind = Literal["training", "sent", "idle", "paused", "silent", "offline", "rejected", "finished"]
ACTIVITY_KINDS: tuple[ActivityKind, ...] = (
    "rejected",
    "silent",
    "offline",
    "paused",
    "training",
    "sent",
    "idle",
    "finished",
)
"""Those that want a look come first."""
SLOW_FACTOR = 2.0
SLOW_MARGIN_S = 5.0
"""Slow is who takes twice as long as half of those who have reported, and at least this many seconds longer
than they did.
"""


@dataclass(frozen=True)
class Activity:
    """`why` is empty for a device that does what is expected of it."""

    kind: ActivityKind
    why: str = ""
    slow: bool = False


def find_typical_seconds(devices: Collection[DeviceView], state: State | None) -> float | None:
    """Return the median answer time of the clients that answered this round's task, or None if no client
    answered.
    """
    if state is None:
        return None
    took = [device.answered_at - device.task_at for device in devices if _has_answered(device, state)]
    return statistics.median(took) if took else None


def _has_answered(device: DeviceView, state: State) -> bool:
    return device.task == (state.session, state.round) and device.answer in (SENT, OK)


def classify_activity(
    device: DeviceView,
    state: State | None,
    typical_s: float | None,
    saw_round_start: bool,
    now: float,
    judged: Collection[str] = (),
) -> Activity:
    """Return the activity of a device.

    Args:
        typical_s: see `find_typical_seconds`.
        saw_round_start: whether the view existed when the round started.
        judged: ids of the devices in the federation's verdict.
    """
    status = device.status
    if state is not None and state.phase == "done":
        if device.client_id in judged:
            return Activity("finished")
        if device.has_result:
            return Activity("finished", "its model came too late for the verdict" if judged else "")
        return _classify_without_result(device, state)
    if status and not status.online:
        return Activity("offline", "offline")
    if status and status.paused and not status.draining:
        by = "by its operator" if status.paused == PAUSED_BY_OPERATOR else status.paused
        return Activity("paused", f"paused: {by}")
    if state is None:
        return Activity("idle", "no aggregator leads this federation")
    if state.phase == STOPPED_PHASE:
        return Activity("idle", "the aggregator has stopped")
    if state.phase == JOINING_PHASE:
        return Activity("idle", "the first round has not begun")
    if device.task and device.task[0] == state.session and device.task[1] <= state.round:
        if device.task[1] == state.round or not device.answer:
            return _classify_work(device, state, typical_s, now)
        if device.answer == REJECTED and device.task[1] == state.round:
            return Activity("rejected", f"rejected: {device.reason}")
    return Activity(
        "idle",
        "not drawn for this round"
        if saw_round_start
        else "no task seen: this view came when the round was open",
    )


def _classify_without_result(device: DeviceView, state: State) -> Activity:
    """Return the activity of a device without its own model after the end of its federation.

    Only a device that worked for this federation can have left it.
    """
    if device.status and not device.status.online:
        if device.task and device.task[0] == state.session:
            return Activity("offline", "offline: it left before the end, without a model of its own")
        return Activity("idle", "offline; the federation is done")
    return Activity("idle", "the federation is done")


def _classify_work(device: DeviceView, state: State, typical_s: float | None, now: float) -> Activity:
    if device.answer == REJECTED:
        return Activity("rejected", f"rejected: {device.reason}")
    if device.answer:
        return Activity("sent")
    assert device.task is not None
    took = now - device.task_at
    earlier = device.task[1] < state.round
    # rounds that close without it give it new tasks
    if (waited := now - device.waiting_since) > state.deadline_s:
        return Activity("silent", f"silent: no answer to round {device.task[1]} for {waited:.0f} s")
    if earlier:
        return Activity(
            "training", f"late: still at work on round {device.task[1]}, for {took:.0f} s", slow=True
        )
    if typical_s is not None and took > max(SLOW_FACTOR * typical_s, typical_s + SLOW_MARGIN_S):
        return Activity(
            "training",
            f"slow: at work for {took:.0f} s, half of the others took at most {typical_s:.0f} s",
            slow=True,
        )
    return Activity("training")

"""Classifies what a device is doing and explains why it is not in the round. Pure functions."""

import statistics
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from edgefl.protocol.wire.messages import JOINING_PHASE, PAUSED_BY_OPERATOR, STOPPED_PHASE, State
from edgefl.watch.monitor.device_view import OK, REJECTED, SENT, DeviceView

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
"""All kinds of activity. Devices that need attention come first."""
SLOW_FACTOR = 2.0
SLOW_MARGIN_S = 5.0
"""A slow device takes `SLOW_FACTOR` times the typical time and exceeds it by `SLOW_MARGIN_S` seconds."""


@dataclass(frozen=True)
class Activity:
    """The current activity of a device.

    Attributes:
        kind: the kind of activity.
        why: the reason that the user sees. Empty for a device that works as expected.
        slow: whether the device takes much longer than the others.
    """

    kind: ActivityKind
    why: str = ""
    slow: bool = False


def find_typical_seconds(devices: Collection[DeviceView], state: State | None) -> float | None:
    """Return the median time that devices took to answer the task of the current round.

    Args:
        devices: the devices of the federation.
        state: the state of the federation, or None before the first one.

    Returns:
        The median in seconds, or None if no device has answered yet.
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
        state: the latest state of the federation, or None before the first one.
        typical_s: the typical time of a round in seconds, see `find_typical_seconds`.
        saw_round_start: whether the view was open when the round started.
        now: the current time, in seconds since 1970.
        judged: ids of the devices in the verdict of the federation.
    """
    status = device.status
    if state is not None and state.phase == "done":
        if device.client_id in judged:
            return Activity("finished")
        if device.has_result:
            return Activity("finished", "its model arrived too late for the verdict" if judged else "")
        return _classify_without_result(device, state)
    if status and not status.online:
        return Activity("offline", "offline")
    if status and status.paused and not status.draining:
        by = "by its operator" if status.paused == PAUSED_BY_OPERATOR else status.paused
        return Activity("paused", f"paused: {by}")
    if state is None:
        return Activity("idle", "no aggregator is running this federation")
    if state.phase == STOPPED_PHASE:
        return Activity("idle", "the aggregator has stopped")
    if state.phase == JOINING_PHASE:
        return Activity("idle", "the first round has not started")
    session, number = device.task or ("", 0)
    has_work = number == state.round or (number < state.round and not device.answer)
    if device.task and session == state.session and has_work:
        return _classify_work(device, state, typical_s, now)
    return Activity(
        "idle",
        "not selected for this round"
        if saw_round_start
        else "no task seen: this view opened after the round had started",
    )


def _classify_without_result(device: DeviceView, state: State) -> Activity:
    """Return the activity of a device without a result in a finished federation.

    Only a device with a task of this session can have left before the end.
    """
    if device.status and not device.status.online:
        if device.task and device.task[0] == state.session:
            return Activity("offline", "offline: it left before the end and has no model of its own")
        return Activity("idle", "offline; the federation is done")
    return Activity("idle", "the federation is done")


def _classify_work(device: DeviceView, state: State, typical_s: float | None, now: float) -> Activity:
    if device.answer == REJECTED:
        return Activity("rejected", f"rejected: {device.reason}")
    assert device.task is not None
    # A device that misses a round gets a new task, so the wait counts from the first unanswered one.
    waited = now - device.waiting_since
    is_overdue = waited > state.deadline_s
    if device.answer == SENT and is_overdue:
        return Activity(
            "silent", f"silent: its update of round {device.task[1]} is missing for {waited:.0f} s"
        )
    if device.answer:
        return Activity("sent")
    took = now - device.task_at
    earlier = device.task[1] < state.round
    if is_overdue:
        return Activity("silent", f"silent: no answer to round {device.task[1]} for {waited:.0f} s")
    if earlier:
        return Activity(
            "training", f"late: still working on round {device.task[1]}, for {took:.0f} s", slow=True
        )
    if typical_s is not None and took > max(SLOW_FACTOR * typical_s, typical_s + SLOW_MARGIN_S):
        return Activity(
            "training",
            f"slow: working for {took:.0f} s, the median of the others is {typical_s:.0f} s",
            slow=True,
        )
    return Activity("training")

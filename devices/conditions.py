"""The conditions of an owner under which a device accepts tasks. All functions are pure."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from devices.host_sensors import PowerSupply
from edgefl.base.errors import ConfigError

MAX_IDLE_LOAD = 0.5
"""Load per core by other processes from which the board counts as busy."""
LOAD_AVERAGE_PERIOD_S = 60.0


@dataclass(frozen=True)
class TimeWindow:
    """A part of each day in local time. A window whose start is after its end contains midnight.

    Attributes:
        start: first minute of the window, in minutes after midnight.
        end: first minute after the window, in minutes after midnight.
    """

    start: int
    end: int

    def __str__(self) -> str:
        return "-".join(f"{minute // 60:02}:{minute % 60:02}" for minute in (self.start, self.end))


@dataclass(frozen=True)
class Conditions:
    """Conditions that must all hold before the device accepts a task. Without conditions it accepts any task.

    Attributes:
        idle: other processes use less than `MAX_IDLE_LOAD` of each core.
        mains: the board is on mains power.
        between: the local time lies in this window.
    """

    idle: bool = False
    mains: bool = False
    between: TimeWindow | None = None


@dataclass(frozen=True)
class HostReadings:
    """The readings of the board that conditions depend on.

    Attributes:
        load: load of other processes per core.
        mains: whether the board is on mains power.
        minute: minutes after midnight in local time.
    """

    load: float
    mains: bool
    minute: int


def parse_window(text: str) -> TimeWindow:
    """Return the window of a time range such as `22:00-06:00`.

    Args:
        text: the time range.

    Raises:
        ConfigError: the text has another form, or both times are the same.
    """
    match = re.fullmatch(r"([01]?\d|2[0-3]):([0-5]\d)-([01]?\d|2[0-3]):([0-5]\d)", text)
    if not match:
        raise ConfigError(f"--between {text!r}: expected two times of day such as 22:00-06:00")
    hours, minutes, end_hours, end_minutes = map(int, match.groups())
    window = TimeWindow(60 * hours + minutes, 60 * end_hours + end_minutes)
    if window.start == window.end:
        raise ConfigError(
            f"--between {text!r}: both times are the same; pass two times, or omit it for the whole day"
        )
    return window


def is_within(window: TimeWindow, minute: int) -> bool:
    """Return whether a minute of the day lies in a window.

    Args:
        minute: minutes after midnight.
    """
    if window.start < window.end:
        return window.start <= minute < window.end
    return minute >= window.start or minute < window.end


def is_on_mains(supplies: Iterable[PowerSupply]) -> bool:
    """Return whether the board is on external power.

    The board is on external power if a supply other than a battery is online, or if no battery of the board
    discharges. A board without any known supply is therefore on external power. A supply that is offline,
    such as an unused PoE hat, does not count.

    Args:
        supplies: the power supplies of the board and of its peripherals.
    """
    board_supplies = [supply for supply in supplies if supply.scope != "Device"]
    fed = any(supply.kind != "Battery" and supply.online for supply in board_supplies)
    return fed or not any(
        supply.kind == "Battery" and supply.status == "Discharging" for supply in board_supplies
    )


def estimate_process_load(before: float, cpu_s: float, elapsed_s: float) -> float:
    """Return this process's share of the one-minute load average, with the kernel's decay e^(-t/60).

    The share is subtracted from the load average. Otherwise a device would count its training as other work.

    Args:
        before: the share at the previous estimate.
        cpu_s: processor seconds that the process used since the previous estimate.
        elapsed_s: seconds since the previous estimate.
    """
    if elapsed_s <= 0:
        return before
    decay = math.exp(-elapsed_s / LOAD_AVERAGE_PERIOD_S)
    return before * decay + cpu_s / elapsed_s * (1 - decay)


def find_unmet_condition(conditions: Conditions, seen: HostReadings) -> str:
    """Return the first condition that does not hold, empty if all conditions hold.

    The device publishes this text in its status.

    Args:
        conditions: the conditions of the owner.
        seen: the readings of the board.
    """
    if conditions.between and not is_within(conditions.between, seen.minute):
        return f"outside {conditions.between}"
    if conditions.mains and not seen.mains:
        return "on battery"
    if conditions.idle and seen.load >= MAX_IDLE_LOAD:
        return "busy"
    return ""

"""When a device takes up work, by what its owner asked for: pure functions."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from devices.host_sensors import PowerSupply
from edgefl.errors import ConfigError

MAX_IDLE_LOAD = 0.5
"""What others may load each core with before the board counts as busy."""
LOAD_AVERAGE_PERIOD_S = 60.0


@dataclass(frozen=True)
class TimeWindow:
    """A part of each day in local time: minutes after midnight, `start` included, `end` not.

    Start above end runs over midnight.
    """

    start: int
    end: int

    def __str__(self) -> str:
        return "-".join(f"{minute // 60:02}:{minute % 60:02}" for minute in (self.start, self.end))


@dataclass(frozen=True)
class Conditions:
    """Conditions that must all be met before the device accepts a task. No condition means always."""

    idle: bool = False
    mains: bool = False
    between: TimeWindow | None = None


@dataclass(frozen=True)
class HostReadings:
    """What the board says: `load` of others for each core, whether it is on mains, and the minute of the day
    in local time.
    """

    load: float
    mains: bool
    minute: int


def parse_window(text: str) -> TimeWindow:
    """Parse a time range such as `22:00-06:00`.

    Raises:
        ConfigError: the text has another form.
    """
    match = re.fullmatch(r"([01]?\d|2[0-3]):([0-5]\d)-([01]?\d|2[0-3]):([0-5]\d)", text)
    if not match:
        raise ConfigError(f"--between {text!r}: expected two times of day such as 22:00-06:00")
    hours, minutes, end_hours, end_minutes = map(int, match.groups())
    window = TimeWindow(60 * hours + minutes, 60 * end_hours + end_minutes)
    if window.start == window.end:
        raise ConfigError(
            f"--between {text!r}: both times are the same; give two, or leave --between out for the whole day"
        )
    return window


def is_within(window: TimeWindow, minute: int) -> bool:
    """Whether a minute of the day lies in the window."""
    if window.start < window.end:
        return window.start <= minute < window.end
    return minute >= window.start or minute < window.end


def is_on_mains(supplies: Iterable[PowerSupply]) -> bool:
    """Whether the board is fed from outside: a supply that is no battery is online, or no battery of its own
    discharges.

    So a board without any known supply is on mains, and an unused PoE hat (offline) takes none off it.
    """
    board_supplies = [supply for supply in supplies if supply.scope != "Device"]
    fed = any(supply.kind != "Battery" and supply.online for supply in board_supplies)
    return fed or not any(
        supply.kind == "Battery" and supply.status == "Discharging" for supply in board_supplies
    )


def estimate_process_load(before: float, cpu_s: float, elapsed_s: float) -> float:
    """Return this process's share of the one-minute load average, with the kernel's decay e^(-t/60).

    Without it a device that trained would regard its board as busy with the device's own work.

    Args:
        before: the share `elapsed_s` seconds ago.
        elapsed_s: seconds since then.
        cpu_s: processor seconds that the process used since then.
    """
    if elapsed_s <= 0:
        return before
    decay = math.exp(-elapsed_s / LOAD_AVERAGE_PERIOD_S)
    return before * decay + cpu_s / elapsed_s * (1 - decay)


def find_unmet_condition(conditions: Conditions, seen: HostReadings) -> str:
    """Return why no work is taken up now, empty when all conditions hold.

    The words go into the device's status.
    """
    if conditions.between and not is_within(conditions.between, seen.minute):
        return f"outside {conditions.between}"
    if conditions.mains and not seen.mains:
        return "on battery"
    if conditions.idle and seen.load >= MAX_IDLE_LOAD:
        return "busy"
    return ""

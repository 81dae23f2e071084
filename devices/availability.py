"""The availability of a device for tasks: the conditions of its owner, and a file that pauses it.

A paused device stays connected, and its status contains the reason. It still performs a task that the
aggregator sent before it received the pause.
"""

import math
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from devices.conditions import (
    Conditions,
    HostReadings,
    estimate_process_load,
    find_unmet_condition,
    is_on_mains,
)
from devices.host_sensors import read_load_average, read_power_supplies
from edgefl.base.errors import StateError
from edgefl.base.storage.device_directory import DeviceFiles
from edgefl.base.system.files import remove_state, write_state
from edgefl.base.system.host import ROOT
from edgefl.protocol.wire.messages import PAUSED_BY_OPERATOR

CHECK_INTERVAL_S = 2.0


def pause_device(state: Path) -> None:
    """Pause the device of a state directory until `resume_device`, also after restarts.

    Raises:
        StateError: the directory does not exist or cannot be written.
    """
    _check(state)
    write_state(DeviceFiles(state).paused, b"", remedy="use the account that runs the device")


def resume_device(state: Path) -> None:
    """End the pause of a device, if it is paused.

    Raises:
        StateError: the directory does not exist, or the pause cannot be removed.
    """
    _check(state)
    remove_state(DeviceFiles(state).paused, remedy="use the account that runs the device")


def is_paused(state: Path) -> bool:
    """Return whether an operator paused the device of a state directory."""
    return DeviceFiles(state).paused.exists()


def _check(state: Path) -> None:
    if not state.is_dir():
        raise StateError(f"no directory {state}; pass the --state of `edgefl device start`")


class Availability:
    """Whether a device accepts tasks. It reads the sensors and the pause file at most every two seconds.

    Args:
        conditions: the conditions of the owner.
        cores: number of cores of the board.
        root: directory that contains `proc` and `sys`. Tests pass another one.
        clock: monotonic clock in seconds.
    """

    def __init__(
        self,
        conditions: Conditions,
        state: Path,
        cores: int,
        *,
        root: Path = ROOT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._conditions = conditions
        self._state = state
        self._cores = cores
        self._root = root
        self._clock = clock
        self._reason = ""
        self._looked = -math.inf
        self._process_load = 0.0
        self._cpu = _measure_cpu_s()
        self._counted = clock()

    def find_pause_reason(self, *, refresh: bool = False, is_computing: bool = False) -> str:
        """Return why the device accepts no task, empty if it accepts tasks.

        Args:
            refresh: whether to read the sensors now, even if the last reading is recent.
            is_computing: whether the device computes now. Its load then does not count, because the part of a
                child, such as an export, is known only after its end.
        """
        now = self._clock()
        if refresh or now - self._looked >= CHECK_INTERVAL_S:
            self._looked = now
            conditions = replace(self._conditions, idle=False) if is_computing else self._conditions
            self._reason = (
                PAUSED_BY_OPERATOR
                if is_paused(self._state)
                else find_unmet_condition(conditions, self._read_host(now))
            )
        return self._reason

    def _read_host(self, now: float) -> HostReadings:
        cpu = _measure_cpu_s()
        self._process_load = estimate_process_load(self._process_load, cpu - self._cpu, now - self._counted)
        self._cpu = cpu
        self._counted = now
        load = max(0.0, read_load_average(self._root) - self._process_load) / self._cores
        local = time.localtime()
        return HostReadings(
            load, is_on_mains(read_power_supplies(self._root)), 60 * local.tm_hour + local.tm_min
        )


def _measure_cpu_s() -> float:
    """Return the processor seconds of this process and its exports."""
    return sum(os.times()[:4])

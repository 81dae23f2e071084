"""Whether this device takes up tasks now: its owner's conditions, and a file that pauses it.

While it does not, it stays connected and its status says why. A task that the aggregator sent before it can
have heard is still done.
"""

import math
import os
import time
from collections.abc import Callable
from pathlib import Path

from devices.conditions import (
    Conditions,
    HostReadings,
    estimate_process_load,
    find_unmet_condition,
    is_on_mains,
)
from devices.host_sensors import read_load_average, read_power_supplies
from edgefl.errors import StateError
from edgefl.storage.device_directory import DeviceFiles
from edgefl.system.files import write_state
from edgefl.system.host import ROOT
from edgefl.wire.messages import PAUSED_BY_OPERATOR

UNCHECKED_REASON = "has yet to see whether its data fit the plan"
CHECK_INTERVAL_S = 2.0
DRAIN_PERIOD_S = 5.0


def pause_device(state: Path) -> None:
    """Pause the device of this state directory until `resume`, over restarts too.

    StateError when the directory is not there.
    """
    _check(state)
    write_state(DeviceFiles(state).paused, b"", remedy="use the account that runs the device")


def resume_device(state: Path) -> None:
    """End the pause of a device, if it is paused.

    Raises:
        StateError: the pause cannot be removed.
    """
    _check(state)
    path = DeviceFiles(state).paused
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise StateError(
            f"cannot remove {path}: {error.strerror}; use the account that runs the device"
        ) from error


def is_paused(state: Path) -> bool:
    """Whether an operator paused the device of this state directory."""
    return DeviceFiles(state).paused.exists()


def _check(state: Path) -> None:
    if not state.is_dir():
        raise StateError(f"no directory {state}; give the --state of `edgefl device start`")


class Availability:
    """Looks at conditions and pause file, every two seconds at most.

    `cores`: over how many the load is shared out.
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
        # a device that has done no task takes part as soon as it has seen that its data fit the plan
        self.unchecked = False
        self._reason = ""
        self._since = -math.inf
        self._looked = -math.inf
        self._refusal = ""
        self._refused_until = -math.inf
        self._process_load = 0.0
        self._cpu = _measure_cpu_s()
        self._counted = clock()

    def find_pause_reason(self, *, refresh: bool = False) -> str:
        """Return why no task is taken up, empty when one is.

        `anew`: look, however short ago the last time was.
        """
        now = self._clock()
        if refresh or now - self._looked >= CHECK_INTERVAL_S:
            first = self._looked == -math.inf
            self._looked = now
            reason = (
                PAUSED_BY_OPERATOR
                if is_paused(self._state)
                else find_unmet_condition(self._conditions, self._read_host(now))
            )
            if reason and not self._reason and not first:
                self._since = now
            self._reason = reason
        refusal = self._refusal if now < self._refused_until else ""
        return self._reason or refusal or (UNCHECKED_REASON if self.unchecked else "")

    def refuse(self, reason: str, for_s: float = math.inf) -> None:
        """Take up no task for so many seconds, or until `accept`.

        The reason goes into the device's status.
        """
        self._refusal = reason
        self._refused_until = self._clock() + for_s

    def accept(self) -> None:
        """End what `refuse` began."""
        self._refusal = ""
        self._refused_until = -math.inf

    def accepts_tasks(self) -> bool:
        """Whether a task that has come is done: always, unless the aggregator knew of the pause when it sent
        it.
        """
        return not self._reason or self._clock() - self._since < DRAIN_PERIOD_S

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
    """The processor seconds of this process, and of the exports that it ran."""
    return sum(os.times()[:4])

"""Sensors of the board under /proc and /sys: load, power supplies, temperature."""

import math
import re
from dataclasses import dataclass
from pathlib import Path

from edgefl.base.system.host import ROOT, read_text

# cpu-thermal (Raspberry Pi), CPU-therm and cpu-thermal (Jetson), soc_thermal (Rockchip), x86_pkg_temp
CPU_ZONE = re.compile(r"cpu|soc|x86_pkg", re.IGNORECASE)
PLAUSIBLE_RANGE_C = (-60.0, 160.0)


@dataclass(frozen=True)
class PowerSupply:
    """One entry of /sys/class/power_supply.

    Attributes:
        kind: the kernel's `type`, such as `Mains` or `Battery`.
        online: whether it supplies power.
        status: `Charging`, `Discharging` and so on, for a battery.
        scope: `Device` for the battery of a peripheral such as a mouse.
    """

    kind: str
    online: bool
    status: str = ""
    scope: str = ""


def read_load_average(root: Path = ROOT) -> float:
    """Return the load average of the last minute, or 0 if /proc does not contain it.

    Args:
        root: directory that contains `proc` and `sys`. Tests pass another one.
    """
    fields = read_text(root / "proc/loadavg").split()
    try:
        return float(fields[0])
    except (IndexError, ValueError):
        return 0.0


def read_power_supplies(root: Path = ROOT) -> tuple[PowerSupply, ...]:
    """Return the power supplies that the kernel reports. Most boards have no such supply.

    Args:
        root: directory that contains `proc` and `sys`. Tests pass another one.
    """
    folders = sorted((root / "sys/class/power_supply").glob("*"))
    rows = [[read_text(folder / key) for key in ("type", "online", "status", "scope")] for folder in folders]
    return tuple(
        PowerSupply(kind=kind, online=online not in ("", "0"), status=status, scope=scope)
        for kind, online, status, scope in rows
        if kind
    )


def read_temperature_c(root: Path = ROOT) -> float:
    """Return the temperature of the warmest processor zone in degrees Celsius, NaN without such a zone.

    Args:
        root: directory that contains `proc` and `sys`. Tests pass another one.
    """
    temperatures = []
    for zone in (root / "sys/class/thermal").glob("thermal_zone*"):
        text = read_text(zone / "temp")
        if CPU_ZONE.search(read_text(zone / "type")) and re.fullmatch(r"-?\d{1,7}", text):
            celsius = int(text) / 1000
            if PLAUSIBLE_RANGE_C[0] < celsius < PLAUSIBLE_RANGE_C[1]:
                temperatures.append(celsius)
    return max(temperatures, default=math.nan)

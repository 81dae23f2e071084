"""How much memory a process has and has needed."""

import math
import re
from typing import Literal

Pid = int | Literal["self"]
ROWS = re.compile(rb"\nVmHWM:\s*(\d+) kB\nVmRSS:\s*(\d+) kB\n")


def peak_rss_mb(pid: Pid = "self") -> float:
    """Return the most memory a process ever had resident, in MB of 10^6 bytes; NaN where /proc does not say.

    Not ru_maxrss, which starts from the parent's at a fork.
    """
    return memory_mb(pid)[1]


def memory_mb(pid: Pid = "self") -> tuple[float, float]:
    """Return the memory that a process has resident now and the most it ever had, in MB of 10^6 bytes; NaN
    where /proc does not say.
    """
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            found = ROWS.search(file.read())
    except OSError:
        found = None
    most, now = (float(each) * 1024 / 1e6 for each in found.groups()) if found else (math.nan, math.nan)
    return now, most

"""How much memory a process has and has needed."""

import re
from pathlib import Path
from typing import Literal

Pid = int | Literal["self"]
ROWS = re.compile(rb"^(Vm\w+):\s*(\d+) kB$", re.MULTILINE)


def peak_rss_mb(pid: Pid = "self") -> float:
    """Return the most memory a process ever had resident, in MB of 10^6 bytes; NaN where /proc does not say.

    Not ru_maxrss, which starts from the parent's at a fork.
    """
    return memory_mb(pid)[1]


def memory_mb(pid: Pid = "self") -> tuple[float, float]:
    """Return the memory that a process has resident now and the most it ever had, in MB of 10^6 bytes; NaN where /proc does not say."""
    try:
        said = dict(ROWS.findall(Path(f"/proc/{pid}/status").read_bytes()))
    except OSError:
        said = {}
    now, most = (float(said.get(key, "nan")) * 1024 / 1e6 for key in (b"VmRSS", b"VmHWM"))
    return now, most

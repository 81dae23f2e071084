"""How much memory a process has and has needed."""

from pathlib import Path
from typing import Literal

Pid = int | Literal["self"]


def peak_rss_mb(pid: Pid = "self") -> float:
    """Return the most memory a process ever had resident, in MB of 10^6 bytes; NaN where /proc does not say.

    Not ru_maxrss, which starts from the parent's at a fork.
    """
    return _status(pid, "VmHWM:")


def rss_mb(pid: Pid = "self") -> float:
    """Return the memory that a process has resident now, in MB of 10^6 bytes; NaN where /proc does not say."""
    return _status(pid, "VmRSS:")


def _status(pid: Pid, key: str) -> float:
    try:
        with Path(f"/proc/{pid}/status").open() as rows:
            return next(int(row.split()[1]) * 1024 / 1e6 for row in rows if row.startswith(key))
    except (OSError, StopIteration):
        return float("nan")

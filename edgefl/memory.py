"""How much memory this process has and has needed."""

from pathlib import Path

STATUS = Path("/proc/self/status")


def peak_rss_mb() -> float:
    """Return the most memory this process ever had resident, in MB of 10^6 bytes; NaN where /proc does not say.

    Not ru_maxrss, which starts from the parent's at a fork.
    """
    return _status("VmHWM:")


def rss_mb() -> float:
    """Return the memory that this process has resident now, in MB of 10^6 bytes; NaN where /proc does not say."""
    return _status("VmRSS:")


def _status(key: str) -> float:
    try:
        with STATUS.open() as rows:
            return next(int(row.split()[1]) * 1024 / 1e6 for row in rows if row.startswith(key))
    except (OSError, StopIteration):
        return float("nan")

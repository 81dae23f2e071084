"""The machine, the versions installed on it, and the memory and command line of a process."""

import math
import platform
import re
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

REPORTED_PACKAGES = ("edgefl-tinyml", "tensorflow", "keras", "ai-edge-litert", "numpy", "scikit-learn")
Pid = int | Literal["self"]
ROOT = Path("/")
RSS_ROWS = re.compile(rb"\nVmHWM:\s*(\d+) kB\nVmRSS:\s*(\d+) kB\n")


def read_text(path: Path) -> str:
    """Return a small file of /proc or /sys without NUL and blanks around it.

    Empty when it is missing or cannot be read.
    """
    try:
        return path.read_bytes().decode("utf-8", "replace").strip("\0 \n\t")
    except OSError:
        return ""


def read_board_model(root: Path = ROOT) -> str:
    """Return the device tree's name of this board, such as `Raspberry Pi 4 Model B Rev 1.4`, or an empty
    string.
    """
    return read_text(root / "proc/device-tree/model")


def read_total_memory_mb(root: Path = ROOT) -> float:
    """Return the memory that the kernel manages (MemTotal), in MB of 10^6 bytes; NaN without /proc."""
    for row in read_text(root / "proc/meminfo").splitlines():
        fields = row.split()
        if fields[:1] == ["MemTotal:"] and len(fields) > 1 and fields[1].isdigit():
            return int(fields[1]) * 1024 / 1e6
    return float("nan")


def describe_machine() -> str:
    """Return processor, board and system in a line."""
    cpu = platform.machine()
    names = [
        row.split(":", 1)[1].strip()
        for row in read_text(ROOT / "proc/cpuinfo").splitlines()
        if row.startswith("model name")
    ]
    if names:
        cpu = f"{names[0]} x{len(names)}"
    parts = [
        cpu,
        read_board_model(),
        f"{platform.system()} {platform.release()}",
        f"Python {platform.python_version()}",
    ]
    return ", ".join(filter(None, parts))


def read_rss_mb(pid: Pid = "self") -> tuple[float, float]:
    """Return the resident memory of a process now and at its peak, in MB of 10^6 bytes; NaN without /proc."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            match = RSS_ROWS.search(file.read())
    except OSError:
        match = None
    if match is None:
        return math.nan, math.nan
    peak, now = (float(kib) * 1024 / 1e6 for kib in match.groups())
    return now, peak


def read_peak_rss_mb(pid: Pid = "self") -> float:
    """Return the peak of a process's resident memory, in MB of 10^6 bytes; NaN without /proc.

    It is not ru_maxrss, which starts from the parent's value at a fork.
    """
    return read_rss_mb(pid)[1]


def read_versions() -> dict[str, str]:
    """Return the versions that a figure depends on."""
    installed = {"python": platform.python_version()}
    for name in REPORTED_PACKAGES:
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            continue
    return installed


def format_command_line() -> str:
    """Return the command that started this process, as a user would type it."""
    return " ".join(["edgefl", *sys.argv[1:]])

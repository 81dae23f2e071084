"""Reads facts about the machine and this process: board, memory, installed versions, command line."""

import math
import platform
import re
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

REPORTED_PACKAGES = (
    "edgefl-tinyml",
    "tensorflow",
    "keras",
    "ai-edge-litert",
    "tflite-runtime",
    "torch",
    "numpy",
    "scikit-learn",
)
NO_MEMORY_LIMIT = 2**60
"""Version 1 of control groups writes a number above this one if there is no limit."""
Pid = int | Literal["self"]
ROOT = Path("/")
RSS_ROWS = re.compile(rb"\nVmHWM:\s*(\d+) kB\nVmRSS:\s*(\d+) kB\n")


def read_text(path: Path) -> str:
    """Return the content of a small file of /proc or /sys, without surrounding blanks and NUL bytes.

    The text is empty if the file cannot be read.
    """
    try:
        return path.read_bytes().decode("utf-8", "replace").strip("\0 \n\t")
    except OSError:
        return ""


def read_board_model(root: Path = ROOT) -> str:
    """Return the name of this board in the device tree, such as `Raspberry Pi 4 Model B Rev 1.4`.

    The name is empty if there is no device tree.

    Args:
        root: directory that contains /proc.
    """
    return read_text(root / "proc/device-tree/model")


def read_total_memory_mb(root: Path = ROOT) -> float:
    """Return the memory that the kernel manages (MemTotal), in MB of 10^6 bytes.

    The value is NaN if /proc is missing.

    Args:
        root: directory that contains /proc.
    """
    for row in read_text(root / "proc/meminfo").splitlines():
        fields = row.split()
        if fields[:1] == ["MemTotal:"] and len(fields) > 1 and fields[1].isdigit():
            return int(fields[1]) * 1024 / 1e6
    return float("nan")


def read_memory_limit_mb(root: Path = ROOT) -> float:
    """Return the memory limit of this process's control groups, in MB of 10^6 bytes.

    A service manager or a container sets it. Without a limit the value is NaN.

    Args:
        root: directory that contains /proc and /sys.
    """
    limits = []
    for row in read_text(root / "proc/self/cgroup").splitlines():
        _, _, entry = row.partition(":")
        controllers, colon, group = entry.partition(":")
        if not colon or controllers not in ("", "memory"):
            continue
        # Version 2 of control groups has one hierarchy without a name, version 1 one for each controller
        name = "memory.limit_in_bytes" if controllers else "memory.max"
        folder = root / "sys/fs/cgroup" / controllers / group.lstrip("/")
        for directory in (folder, *folder.parents[: len(Path(group).parts) - 1]):
            limit = read_text(directory / name).strip()
            if limit.isdigit() and int(limit) < NO_MEMORY_LIMIT:
                limits.append(int(limit) / 1e6)
    return min(limits, default=math.nan)


def describe_machine() -> str:
    """Return one line with processor, board, operating system and Python version."""
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
    """Return the current and the peak resident memory of a process, in MB of 10^6 bytes.

    Both are NaN if /proc is missing.
    """
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
    """Return the peak resident memory of a process, in MB of 10^6 bytes.

    The value is NaN if /proc is missing. It differs from ru_maxrss, which inherits the parent's peak at a
    fork.
    """
    return read_rss_mb(pid)[1]


def read_versions() -> dict[str, str]:
    """Return the versions of Python and of the installed `REPORTED_PACKAGES`, by name."""
    installed = {"python": platform.python_version()}
    for name in REPORTED_PACKAGES:
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            continue
    return installed


def format_command_line() -> str:
    """Return the command line of this process, beginning with `edgefl`."""
    return " ".join(["edgefl", *sys.argv[1:]])

"""Which machine this is: for a figure that was measured on it, and for what a program does by default
there.
"""

import platform
from pathlib import Path

ROOT = Path("/")


def read_text(path: Path) -> str:
    """Return a small file of /proc or /sys without NUL and blanks around it; empty when it is not there or
    cannot be read.
    """
    try:
        return path.read_bytes().decode("utf-8", "replace").strip("\0 \n\t")
    except OSError:
        return ""


def board_model(root: Path = ROOT) -> str:
    """Return what the device tree calls this board, such as `Raspberry Pi 4 Model B Rev 1.4`; empty where
    there is none.
    """
    return read_text(root / "proc/device-tree/model")


def memory_mb(root: Path = ROOT) -> float:
    """Return the memory that the kernel manages (MemTotal), in MB of 10^6 bytes; NaN where /proc does not
    say.
    """
    for row in read_text(root / "proc/meminfo").splitlines():
        words = row.split()
        if words[:1] == ["MemTotal:"] and len(words) > 1 and words[1].isdigit():
            return int(words[1]) * 1024 / 1e6
    return float("nan")


def machine() -> str:
    """Return processor, board and system in a line."""
    cpu = platform.machine()
    names = [
        row.split(":", 1)[1].strip()
        for row in read_text(ROOT / "proc/cpuinfo").splitlines()
        if row.startswith("model name")
    ]
    if names:
        cpu = f"{names[0]} x{len(names)}"
    named = [
        cpu,
        board_model(),
        f"{platform.system()} {platform.release()}",
        f"Python {platform.python_version()}",
    ]
    return ", ".join(filter(None, named))

"""Which machine a figure was measured on."""

import platform
from pathlib import Path


def machine() -> str:
    """Return processor and system in a line."""
    cpu = platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = f"{names[0]} x{len(names)}" if names else cpu
    return f"{cpu}, {platform.system()} {platform.release()}, Python {platform.python_version()}"

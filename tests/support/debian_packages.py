"""Debian packages that the tests use, and which of them this machine lacks.

    python3 tests/support/debian_packages.py    # prints the missing packages, one a line

Needs nothing but Python, because `.ci/run` calls it on a bare machine.
"""

import os
import shutil
from pathlib import Path

# A package is installed if one of its programs is on the search path, or one of its paths exists.
PACKAGES = {
    "mosquitto": ("mosquitto",),
    "nats-server": ("nats-server",),
    "dataset-fashion-mnist": ("/usr/share/datasets/fashion-mnist",),
    # Firmware is compiled for Cortex-M, RISC-V and Xtensa and runs in QEMU. CMSIS-NN needs headers of newlib.
    "gcc-arm-none-eabi": ("arm-none-eabi-gcc",),
    "libnewlib-arm-none-eabi": ("/usr/include/newlib",),
    "qemu-system-arm": ("qemu-system-arm",),
    "gcc-riscv64-unknown-elf": ("riscv64-unknown-elf-gcc",),
    "qemu-system-misc": ("qemu-system-riscv32",),
    "gcc-xtensa-lx106": ("xtensa-lx106-elf-gcc",),
    "cmake": ("cmake",),
    "clang-14": ("clang-14",),
    "gcc": ("cc",),
    "libc6-dev": ("/usr/include/stdio.h",),
    "g++": ("g++",),
    # Shells read the completion scripts, Node.js the functions of Node-RED, and Chromium the dashboard.
    "zsh": ("zsh",),
    "fish": ("fish",),
    "nodejs": ("node",),
    "chromium": ("chromium",),
    # Commands of the documentation pipe into it.
    "jq": ("jq",),
}
SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


def list_missing() -> list[str]:
    """Return the packages that are not installed, in the order of `PACKAGES`."""
    return [
        package
        for package, traces in PACKAGES.items()
        if not any(
            Path(t).exists() if t.startswith("/") else shutil.which(t, path=SEARCH_PATH) for t in traces
        )
    ]


def format_command(packages: list[str]) -> str:
    """Return the command that installs packages."""
    return f"sudo apt-get install --no-install-recommends {' '.join(packages)}"


if __name__ == "__main__":
    for package in list_missing():
        print(package)

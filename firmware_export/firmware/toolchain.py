"""The programs that an export runs: their Debian packages, their versions, and how to run them."""

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from edgefl.base.errors import ExportError
from firmware_export.firmware.limits import TOOL_LIMITS, ProcessLimits, run_limited

TOOL_PACKAGES = {
    "arm-none-eabi-gcc": "gcc-arm-none-eabi",
    "arm-none-eabi-size": "binutils-arm-none-eabi",
    "qemu-system-arm": "qemu-system-arm",
    "riscv64-unknown-elf-gcc": "gcc-riscv64-unknown-elf",
    "riscv64-unknown-elf-size": "binutils-riscv64-unknown-elf",
    "qemu-system-riscv32": "qemu-system-misc",
    "xtensa-lx106-elf-gcc": "gcc-xtensa-lx106",
    "xtensa-lx106-elf-size": "binutils-xtensa-lx106",
    "qemu-system-xtensa": "qemu-system-misc",
    "cmake": "cmake",
    "cc": "gcc",
}
CC = "cc"
TOOL_DEADLINE_S = 600.0


def explain_missing_tools(*tools: str) -> str:
    """Return which of these tools are missing, with the remedy.

    Returns:
        The reason. Empty if all tools are installed.
    """
    absent = [tool for tool in tools if shutil.which(tool) is None]
    if not absent:
        return ""
    verb = "is" if len(absent) == 1 else "are"
    return (
        f"{' and '.join(absent)} {verb} not installed; apt-get install "
        f"{' '.join(TOOL_PACKAGES[tool] for tool in absent)}"
    )


def read_tool_version(tool: str) -> str:
    """Return the first version number that a tool prints.

    Returns:
        The version, "unknown" if the tool prints none, empty if the tool is not installed.

    Raises:
        ExportError: the tool fails.
    """
    path = shutil.which(tool)
    return "" if path is None else _read_version(path)


def run_tool(
    command: Sequence[str],
    directory: Path,
    deadline_s: float = TOOL_DEADLINE_S,
    what: str = "",
    limits: ProcessLimits = TOOL_LIMITS,
) -> str:
    """Run a program under limits and return its output, including standard error.

    Args:
        command: program and arguments.
        directory: working directory.
        deadline_s: maximum time in seconds.
        what: name of the program in errors. Empty uses the program's name.
        limits: limits of the process. `deadline_s` replaces their time.

    Raises:
        ExportError: the program is missing, fails, or exceeds the deadline or a limit.
    """
    tool = Path(command[0]).name
    if reason := explain_missing_tools(command[0]) if command[0] in TOOL_PACKAGES else "":
        raise ExportError(reason)
    if shutil.which(command[0], path=None) is None:
        raise ExportError(
            f"cannot start {tool}: there is no program {command[0]}; install it, or add its folder to PATH"
        )
    try:
        done = run_limited(command, directory, replace(limits, time_s=deadline_s))
    except subprocess.TimeoutExpired as error:
        raise ExportError(
            f"{what or tool} did not finish within {deadline_s:.0f} s; try fewer --samples, or run it when "
            "the machine is idle"
        ) from error
    except OSError as error:
        raise ExportError(f"cannot start {tool}: {error}") from error
    if done.reason:
        raise ExportError(
            f"{what or tool} was stopped: {done.reason}; try fewer --samples or a smaller model"
        )
    if done.returncode:
        last = "\n".join(done.text.strip().splitlines()[-15:])
        raise ExportError(
            f"{what or tool} failed with exit code {done.returncode}:\n{last or 'it printed nothing'}"
        )
    return done.text


@cache
def _read_version(path: str) -> str:
    lines = run_tool([path, "--version"], Path.cwd(), 60).splitlines()
    numbers = re.findall(r"\d+\.\d+(?:\.\d+)?", lines[0]) if lines else []
    return numbers[-1] if numbers else "unknown"


@cache
def find_sandbox_options(qemu: str) -> tuple[str, ...]:
    """Return the options with which QEMU refuses to start other processes.

    `qemu` is the name of QEMU's program.

    Semihosting gives a program in QEMU access to the host's files and to its `system()`. The program needs
    files for samples and outputs, but not `system()`.

    Returns:
        The options. Empty if this QEMU does not support them.
    """
    options = ("-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny")
    quit_at_once = [
        qemu,
        "-machine",
        "none",
        "-display",
        "none",
        "-serial",
        "none",
        "-monitor",
        "stdio",
        *options,
    ]
    try:
        done = subprocess.run(quit_at_once, input=b"quit\n", capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return () if done.returncode else options

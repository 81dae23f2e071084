"""Limits on the processes that an export starts: compilers, the compiled model, QEMU, tflite-micro.

They bound what a wrong or hostile model can take of this computer. They are no sandbox: a process can still
read and write every file that the user can.
"""

import math
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MAX_OUTPUT_BYTES = 16 << 20
"""Bytes of a process's text that are read."""


@dataclass(frozen=True)
class ProcessLimits:
    """What one process may take.

    Args:
        memory_bytes: Address space (RLIMIT_AS), where the system enforces it.
        file_bytes: Size of each file that it writes, its text included (RLIMIT_FSIZE).
        time_s: Wall-clock time in seconds; processor time (RLIMIT_CPU) is limited to twice as much, which
            also ends orphans.
    """

    memory_bytes: int
    file_bytes: int
    time_s: float

    def wrap(self, command: Sequence[str]) -> list[str]:
        """Return the command that sets the limits and then becomes `command`.

        A limit that the caller's own limits do not allow is left as it is: then the caller's is lower.
        """
        asked = {
            "-c": 0,
            "-t": math.ceil(2 * self.time_s),
            "-f": self.file_bytes // 512,
            "-v": self.memory_bytes // 1024,
        }
        script = "; ".join(f"ulimit {option} {value} 2>/dev/null" for option, value in asked.items())
        return ["/bin/sh", "-c", f'{script}; exec "$@"', "sh", *command]


TOOL_LIMITS = ProcessLimits(8 << 30, 1 << 30, 600)
"""Compilers, linkers and tflite-micro's Python process."""
PROGRAM_LIMITS = ProcessLimits(4 << 30, 64 << 20, 600)
"""A compiled model on this computer, and QEMU, which reserves 1 GiB for its translation buffer."""


@dataclass(frozen=True)
class ProcessResult:
    """How a process ended. text: the start of what it printed, standard error included."""

    returncode: int
    text: str
    reason: str


def run_limited(
    command: Sequence[str],
    directory: Path,
    limits: ProcessLimits,
    environment: Mapping[str, str] | None = None,
) -> ProcessResult:
    """Run a process in `directory` under limits, without input.

    Returns:
        How it ended; `reason` names the limit that ended it, "" if none did.

    Raises:
        subprocess.TimeoutExpired: It passed the wall-clock limit.
        OSError: It cannot be started.
    """
    with tempfile.TemporaryFile() as text:  # a file, not a pipe: the limit on file size holds for it
        done = subprocess.run(
            limits.wrap(command),
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=text,
            stderr=subprocess.STDOUT,
            timeout=limits.time_s,
            check=False,
            env=environment,
        )
        text.seek(0)
        content = text.read(MAX_OUTPUT_BYTES).decode(errors="replace")
    reasons = {
        -signal.SIGXCPU: f"it used more than {2 * limits.time_s:.0f} s of processor time",
        -signal.SIGXFSZ: f"it wrote more than {limits.file_bytes:,} bytes into a file",
    }
    return ProcessResult(done.returncode, content, reasons.get(done.returncode, ""))

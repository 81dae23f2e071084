"""Limits for the processes that an export starts: compilers, the compiled model, QEMU, tflite-micro.

The limits bound the resources that a wrong or hostile model can use on this computer. They are not a sandbox.
A process can still read and write every file of the user.
"""

import math
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MAX_OUTPUT_BYTES = 16 << 20
"""Maximum bytes of a process's output that are read."""


@dataclass(frozen=True)
class ProcessLimits:
    """Resource limits of one process.

    Attributes:
        memory_bytes: maximum address space (RLIMIT_AS), where the system enforces it.
        file_bytes: maximum size of each file that the process writes, including its text (RLIMIT_FSIZE).
        time_s: maximum wall-clock time in seconds. Processor time (RLIMIT_CPU) is limited to twice as much,
            which also ends orphans.
    """

    memory_bytes: int
    file_bytes: int
    time_s: float

    def wrap(self, command: Sequence[str]) -> list[str]:
        """Return a command that sets the limits and then becomes `command`.

        If the limits of the calling process are lower, they stay in force.
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
"""For compilers, linkers and tflite-micro's Python process."""
PROGRAM_LIMITS = ProcessLimits(4 << 30, 64 << 20, 600)
"""For a compiled model on this computer, and for QEMU, which reserves 1 GiB for its translation buffer."""


@dataclass(frozen=True)
class ProcessResult:
    """The result of a process.

    Attributes:
        returncode: exit status, negative for a signal.
        text: the start of its output, including standard error.
        reason: the limit that ended the process. Empty if none did.
    """

    returncode: int
    text: str
    reason: str


def run_limited(
    command: Sequence[str],
    directory: Path,
    limits: ProcessLimits,
    environment: Mapping[str, str] | None = None,
) -> ProcessResult:
    """Run a process under limits and without input.

    Args:
        command: program and arguments.
        directory: working directory.
        environment: environment variables. None passes this process's environment.

    Raises:
        subprocess.TimeoutExpired: the process exceeded the wall-clock limit.
        OSError: it cannot be started.
    """
    with tempfile.TemporaryFile() as text:  # a file, not a pipe, so that the limit on file size applies
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

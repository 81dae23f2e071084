"""Programs that run during a measurement, and their processor time and memory."""

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edgefl.base.system.host import read_rss_mb

SETTLE_S = 10.0
END_S = 20.0
ALONE = 10
TOGETHER = 125


def count_clients_per_process(count: int) -> int:
    """Return how many of `count` MQTT clients share a process.

    A few clients have a process each, as boards have, so that they share no lock.
    """
    return 1 if count <= ALONE else TOGETHER


@contextmanager
def start_program(
    command: Sequence[str], log: Path | None = None, **options: Any
) -> Iterator["subprocess.Popen[str]"]:
    """Run a program until the end of the block. Without a log it prints to this process's output."""
    file = log.open("a") if log else None
    try:
        process = subprocess.Popen(
            command, text=True, **{"stdin": subprocess.DEVNULL, "stdout": file, "stderr": file, **options}
        )
    finally:
        if file:
            file.close()
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout:
            process.stdout.close()


def list_children(pid: int) -> list[int]:
    """Return the ids of a process's running children. The list is empty for a process that has ended."""
    pids = list[int]()
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):  # the process has ended
            pids += map(int, (thread / "children").read_text().split())
    return sorted(pids)


def read_cpu_s(pid: int) -> float:
    """Return the processor time of a process in seconds, or 0 if it has ended."""
    try:
        # Linux's clock of that process has nanoseconds. /proc counts ticks of 10 ms
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def measure_process(pid: int, seconds: float, progress: Callable[[str], None]) -> dict[str, float]:
    """Return a process's share of one core in per cent, and its memory in MB.

    The measurement takes `seconds`. It starts after `SETTLE_S`.
    """
    time.sleep(SETTLE_S)
    before = read_cpu_s(pid)
    began = time.monotonic()
    progress(f"measuring for {seconds:g} s")
    time.sleep(seconds)
    share = 100 * (read_cpu_s(pid) - before) / (time.monotonic() - began)
    now, peak = read_rss_mb(pid)
    return {"core_percent": round(share, 2), "rss_mb": round(now, 1), "peak_rss_mb": round(peak, 1)}

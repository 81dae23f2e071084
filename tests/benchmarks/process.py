"""Programs that run beside a measurement, and what /proc says that they take."""

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edgefl.system.host import read_rss_mb

SETTLE_S = 10.0
END_S = 20.0
ALONE = 10
TOGETHER = 125


def clients_a_process(count: int) -> int:
    """Return how many of so many MQTT clients share a process: each of a few has its own, as boards have, and
    no lock in common.
    """
    return 1 if count <= ALONE else TOGETHER


@contextmanager
def running(
    command: Sequence[str], log: Path | None = None, **given: Any
) -> Iterator["subprocess.Popen[str]"]:
    """Run a program, and end it with the block. Its words go to the log; without one to where this process's
    go.
    """
    file = log.open("a") if log else None
    try:
        process = subprocess.Popen(
            command, text=True, **{"stdin": subprocess.DEVNULL, "stdout": file, "stderr": file, **given}
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


def children(pid: int) -> list[int]:
    """Return the processes that a process has started and that still run; none of one that has ended."""
    found = list[int]()
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            found += map(int, (thread / "children").read_text().split())
    return sorted(found)


def cpu_s(pid: int) -> float:
    """Return the processor time a process has had, in seconds; 0 when it has ended."""
    try:
        # Linux's clock of that process, to the nanosecond: /proc counts ticks of 10 ms
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def measured(pid: int, seconds: float, note: Callable[[str], None]) -> dict[str, float]:
    """Return a process's share of one core in per cent over so many seconds, once it had ten to settle, and
    its memory in MB.
    """
    time.sleep(SETTLE_S)
    before = cpu_s(pid)
    began = time.monotonic()
    note(f"measuring for {seconds:g} s")
    time.sleep(seconds)
    share = 100 * (cpu_s(pid) - before) / (time.monotonic() - began)
    now, most = read_rss_mb(pid)
    return {"core_percent": round(share, 2), "rss_mb": round(now, 1), "peak_rss_mb": round(most, 1)}

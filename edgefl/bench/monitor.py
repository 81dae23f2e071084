"""What watching a large fleet takes: a process beside a broker on which hundreds of devices speak, its processor time and memory."""

import json
import os
import pty
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from edgefl.bench.monitor_fleet import Fleet
from edgefl.errors import LinkError
from edgefl.machine import machine

TICK = os.sysconf("SC_CLK_TCK")
WARM_S = 10.0
END_S = 20.0


@contextmanager
def running(command: Sequence[str], **options: Any) -> "Iterator[subprocess.Popen[bytes]]":
    """A process that is ended with the block."""
    popen = subprocess.Popen(command, **options)
    try:
        yield popen
    finally:
        popen.terminate()
        try:
            popen.wait(END_S)
        except subprocess.TimeoutExpired:
            popen.kill()
            popen.wait()


def processor_s(pid: int) -> float:
    """Return the processor time that a process has taken, user and system, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def memory_mb(pid: int) -> tuple[float, float]:
    """Return resident memory now and at most, in MB of 10^6 bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = {line.partition(":")[0]: line.partition(":")[2] for line in lines}
    return tuple(int(found[key].split()[0]) * 1024 / 1e6 for key in ("VmRSS", "VmHWM"))  # type: ignore[return-value]


def measured(pid: int, seconds: float, note: Callable[[str], None]) -> dict[str, float]:
    """Return a process's share of one core in per cent over so many seconds, after ten to settle, and its memory."""
    time.sleep(WARM_S)
    before, began = processor_s(pid), time.monotonic()
    note(f"measuring for {seconds:g} s")
    time.sleep(seconds)
    share = 100 * (processor_s(pid) - before) / (time.monotonic() - began)
    rss, peak = memory_mb(pid)
    return {"core_percent": round(share, 2), "rss_mb": round(rss, 1), "peak_rss_mb": round(peak, 1)}


@contextmanager
def in_terminal(command: Sequence[str], columns: int, rows: int) -> "Iterator[tuple[subprocess.Popen[bytes], bytearray]]":
    """A process in a terminal of its own of that size, and what it has drawn so far."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": str(rows)}
    drawn = bytearray()

    def read() -> None:
        try:
            while data := os.read(ours, 65536):
                drawn.extend(data)
        except OSError:  # the other end is closed
            return

    with running(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True) as popen:
        os.close(theirs)
        threading.Thread(target=read, daemon=True).start()
        yield popen, drawn
    os.close(ours)


def run_monitor_bench(fleet: Fleet, seconds: float, command: str, note: Callable[[str], None]) -> dict[str, Any]:
    """Return what `edgefl monitor` takes in a terminal of 80 x 24 while the fleet speaks over a broker of this machine. LinkError."""
    edgefl = [sys.executable, "-m", "edgefl"]
    with ExitStack() as ending:
        broker = ending.enter_context(running([*edgefl, "broker", "start", "--port", "0", "--json"], stdout=subprocess.PIPE))
        assert broker.stdout is not None
        told = json.loads(broker.stdout.readline() or b"{}")
        if "url" not in told:
            raise LinkError("no broker started; install mosquitto, or see what `edgefl broker start` says")
        speaker = [
            sys.executable, "-m", "edgefl.bench.monitor_fleet", told["url"], "--federation", fleet.federation, "--devices",
            str(fleet.devices), "--period", str(fleet.period_s), "--round", str(fleet.round_s), "--seconds", str(seconds + 60),
        ]  # fmt: skip
        ending.enter_context(running(speaker, stdout=subprocess.DEVNULL))
        time.sleep(3.0)
        view = [*edgefl, "monitor", "--broker", told["url"], "--federation", fleet.federation]
        monitor, drawn = ending.enter_context(in_terminal(view, 80, 24))
        result = measured(monitor.pid, seconds, note)
        if monitor.poll() is not None or b"round" not in drawn:
            raise LinkError(f"the monitor ended or drew nothing: {bytes(drawn[-300:])!r}")
        drawn_kb = len(drawn) / 1000
    rate = round(2 * fleet.devices / fleet.period_s + 4 * fleet.devices / fleet.round_s)
    return {
        "command": command, "machine": machine(), "broker": told["kind"], "devices": fleet.devices, "messages_per_s": rate,
        "seconds": seconds, **result, "drawn_kb": round(drawn_kb),
    }  # fmt: skip


def render(result: dict[str, Any]) -> str:
    """Return the result as lines."""
    return "\n".join(
        (
            f"{result['machine']}; broker {result['broker']}",
            f"{result['devices']} devices, about {result['messages_per_s']} messages a second, for {result['seconds']:g} s",
            f"edgefl monitor: {result['core_percent']:.1f}% of a core, {result['rss_mb']:.0f} MB, {result['peak_rss_mb']:.0f} MB peak",
        )
    )

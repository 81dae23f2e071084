"""Processor time and memory of a program that watches a large fleet over a broker on this machine."""

import json
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from edgefl.base.errors import LinkError
from edgefl.base.system.host import describe_machine
from tests.benchmarks.process import measure_process, start_program
from tests.benchmarks.watching.simulated_devices import Fleet, compute_message_rate

EDGEFL = (sys.executable, "-m", "edgefl")
EXTRA_SPEAKING_S = 60.0
"""Seconds that the fleet publishes at most beyond the measurement."""


def read_first_line(popen: "subprocess.Popen[str]", command: str) -> dict[str, Any]:
    """Return the JSON line that a service prints when it has started.

    Raises:
        LinkError: the service ended without printing it.
    """
    assert popen.stdout is not None
    line = popen.stdout.readline()
    if not line:
        raise LinkError(f"`edgefl {command}` did not start; see above, and check that mosquitto is installed")
    values: dict[str, Any] = json.loads(line)
    return values


@contextmanager
def start_fleet(fleet: Fleet, seconds: float) -> Iterator[dict[str, Any]]:
    """Start a broker on this machine and a fleet that publishes on it. Yields the broker's `url` and `kind`.

    Raises:
        LinkError: the broker does not start.
    """
    with start_program(
        [*EDGEFL, "broker", "start", "--port", "0", "--json"], stdout=subprocess.PIPE
    ) as broker:
        broker_info = read_first_line(broker, "broker start")
        speaker = [
            sys.executable,
            "-m",
            "tests.benchmarks.watching.simulated_devices",
            broker_info["url"],
            "--federation",
            fleet.federation,
            "--devices",
            str(fleet.devices),
            "--period",
            str(fleet.period_s),
            "--round",
            str(fleet.round_s),
            "--seconds",
            str(seconds + EXTRA_SPEAKING_S),
        ]
        with start_program(speaker, stdout=subprocess.DEVNULL):
            yield broker_info


def describe_load(command: str, fleet: Fleet, broker: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return the entries of a result that describe the measurement."""
    return {
        "command": command,
        "machine": describe_machine(),
        "broker": broker["kind"],
        "devices": fleet.devices,
        "messages_per_s": round(compute_message_rate(fleet)),
        "seconds": seconds,
    }


@contextmanager
def start_in_terminal(
    command: Sequence[str], columns: int, rows: int
) -> "Iterator[tuple[subprocess.Popen[str], bytearray]]":
    """Start a process in a new terminal of that size. Yields the process and its output so far."""
    controller, terminal = pty.openpty()
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": str(rows)}
    drawn = bytearray()

    def read() -> None:
        try:
            while data := os.read(controller, 65536):
                drawn.extend(data)
        except OSError:  # the other end is closed
            return

    with start_program(
        command, stdin=terminal, stdout=terminal, stderr=terminal, env=env, start_new_session=True
    ) as popen:
        os.close(terminal)
        threading.Thread(target=read, daemon=True).start()
        yield popen, drawn
    os.close(controller)


def run_monitor_bench(
    fleet: Fleet, seconds: float, command: str, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Return processor time and memory of `edgefl monitor` in a terminal of 80 x 24 while the fleet
    publishes.

    Raises:
        LinkError: the broker does not start, or the monitor ends or draws nothing.
    """
    with start_fleet(fleet, seconds) as broker:
        view = [*EDGEFL, "monitor", "--broker", broker["url"], "--federation", fleet.federation]
        with start_in_terminal(view, 80, 24) as (monitor, drawn):
            result = measure_process(monitor.pid, seconds, progress)
            if monitor.poll() is not None or b"round" not in drawn:
                raise LinkError(
                    f"the monitor ended or drew nothing: {bytes(drawn[-300:])!r}; run `edgefl monitor` by "
                    "hand"
                )
            return {
                **describe_load(command, fleet, broker, seconds),
                **result,
                "drawn_kb": round(len(drawn) / 1000),
            }


def render_load(result: dict[str, Any]) -> str:
    """Return the machine and the load of the measurement, in two lines."""
    return (
        f"{result['machine']}; broker {result['broker']}\n{result['devices']} devices, about "
        f"{result['messages_per_s']} messages a second, for {result['seconds']:g} s\n"
    )


def render(result: dict[str, Any]) -> str:
    """Return the result as lines."""
    return (
        f"{render_load(result)}edgefl monitor: {result['core_percent']:.1f}% of a core, "
        f"{result['rss_mb']:.0f} MB, {result['peak_rss_mb']:.0f} MB peak"
    )

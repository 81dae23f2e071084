"""What watching a large fleet takes: a process beside a broker on which hundreds of devices speak, its
processor time and memory.
"""

import json
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from edgefl.errors import LinkError
from edgefl.system.host import describe_machine
from tests.benchmarks.process import measured, running
from tests.benchmarks.watching.simulated_devices import Fleet, messages_per_s

EDGEFL = (sys.executable, "-m", "edgefl")
SPOKEN_S = 60.0
"""So much longer than it is measured the fleet speaks at most."""


def first_words(popen: "subprocess.Popen[str]", what: str) -> dict[str, Any]:
    """Return the JSON line that a service prints once it is up; LinkError when it ends without."""
    assert popen.stdout is not None
    line = popen.stdout.readline()
    if not line:
        raise LinkError(f"`edgefl {what}` did not start; see above, and check that mosquitto is installed")
    found: dict[str, Any] = json.loads(line)
    return found


@contextmanager
def speaking(fleet: Fleet, seconds: float) -> Iterator[dict[str, Any]]:
    """A broker of this machine, its `url` and `kind`, on which the fleet speaks. LinkError when there is
    none.
    """
    with running([*EDGEFL, "broker", "start", "--port", "0", "--json"], stdout=subprocess.PIPE) as broker:
        told = first_words(broker, "broker start")
        speaker = [
            sys.executable,
            "-m",
            "tests.benchmarks.watching.simulated_devices",
            told["url"],
            "--federation",
            fleet.federation,
            "--devices",
            str(fleet.devices),
            "--period",
            str(fleet.period_s),
            "--round",
            str(fleet.round_s),
            "--seconds",
            str(seconds + SPOKEN_S),
        ]
        with running(speaker, stdout=subprocess.DEVNULL):
            yield told


def load_of(command: str, fleet: Fleet, broker: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return what a result says of how it was measured."""
    return {
        "command": command,
        "machine": describe_machine(),
        "broker": broker["kind"],
        "devices": fleet.devices,
        "messages_per_s": round(messages_per_s(fleet)),
        "seconds": seconds,
    }


@contextmanager
def in_terminal(
    command: Sequence[str], columns: int, rows: int
) -> "Iterator[tuple[subprocess.Popen[str], bytearray]]":
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

    with running(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True
    ) as popen:
        os.close(theirs)
        threading.Thread(target=read, daemon=True).start()
        yield popen, drawn
    os.close(ours)


def run_monitor_bench(
    fleet: Fleet, seconds: float, command: str, note: Callable[[str], None]
) -> dict[str, Any]:
    """Return what `edgefl monitor` takes in a terminal of 80 x 24 while the fleet speaks over a broker of
    this machine. LinkError.
    """
    with speaking(fleet, seconds) as broker:
        view = [*EDGEFL, "monitor", "--broker", broker["url"], "--federation", fleet.federation]
        with in_terminal(view, 80, 24) as (monitor, drawn):
            result = measured(monitor.pid, seconds, note)
            if monitor.poll() is not None or b"round" not in drawn:
                raise LinkError(
                    f"the monitor ended or drew nothing: {bytes(drawn[-300:])!r}; run `edgefl monitor` by "
                    "hand"
                )
            return {
                **load_of(command, fleet, broker, seconds),
                **result,
                "drawn_kb": round(len(drawn) / 1000),
            }


def render_load(result: dict[str, Any]) -> str:
    """Return where and under which load it was measured, in two lines."""
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

"""What the dashboard's server takes of a machine while hundreds of devices speak and a browser's stream is read."""

import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from edgefl.bench.monitor import measured, running
from edgefl.bench.monitor_fleet import Fleet
from edgefl.errors import LinkError
from edgefl.machine import machine


def read_stream(address: str, got: list[int], seen: threading.Event) -> None:
    """Read a dashboard's events as a browser does, until it ends; `got` counts bytes, `seen` is set with the first event."""
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request("GET", "/events")
    response = connection.getresponse()
    while line := response.readline():
        got[0] += len(line)
        if line.startswith(b"data:"):
            seen.set()


def run_dashboard_bench(fleet: Fleet, seconds: float, command: str, note: Callable[[str], None]) -> dict[str, Any]:
    """Return processor time and memory of `edgefl dashboard` with one reader, beside a broker of this machine. LinkError."""
    edgefl = [sys.executable, "-m", "edgefl"]
    with ExitStack() as ending:

        def first_of(*arguments: str) -> "tuple[subprocess.Popen[bytes], dict[str, Any]]":
            popen = ending.enter_context(running([*edgefl, *arguments], stdout=subprocess.PIPE))
            assert popen.stdout is not None
            line = popen.stdout.readline()
            if not line:
                raise LinkError(f"`edgefl {' '.join(arguments)}` did not start; see above, and check that mosquitto is installed")
            return popen, json.loads(line)

        _, broker = first_of("broker", "start", "--port", "0", "--json")
        speaker = [
            sys.executable, "-m", "edgefl.bench.monitor_fleet", broker["url"], "--federation", fleet.federation, "--devices",
            str(fleet.devices), "--period", str(fleet.period_s), "--round", str(fleet.round_s), "--seconds", str(seconds + 60),
        ]  # fmt: skip
        ending.enter_context(running(speaker, stdout=subprocess.DEVNULL))
        time.sleep(3.0)
        dashboard, told = first_of("dashboard", "--broker", broker["url"], "--federation", fleet.federation, "--port", "0", "--json")
        got, seen = [0], threading.Event()
        address = told["url"].removeprefix("http://").rstrip("/")
        threading.Thread(target=read_stream, args=(address, got, seen), daemon=True).start()
        if not seen.wait(30):
            raise LinkError(f"nothing came from {told['url']}events within 30 s, expected a snapshot")
        result = measured(dashboard.pid, seconds, note)
        if dashboard.poll() is not None:
            raise LinkError("the dashboard ended, expected it to run while it was measured")
    rate = round(2 * fleet.devices / fleet.period_s + 3 * fleet.devices / fleet.round_s)
    return {
        "command": command, "machine": machine(), "broker": broker["kind"], "devices": fleet.devices, "messages_per_s": rate,
        "seconds": seconds, **result, "streamed_kb": round(got[0] / 1000),
    }  # fmt: skip


def render(result: dict[str, Any]) -> str:
    """Return the result as lines."""
    return "\n".join(
        (
            f"{result['machine']}; broker {result['broker']}",
            f"{result['devices']} devices, about {result['messages_per_s']} messages a second, for {result['seconds']:g} s",
            f"edgefl dashboard, one reader: {result['core_percent']:.1f}% of a core, {result['rss_mb']:.0f} MB, "
            f"{result['peak_rss_mb']:.0f} MB peak, {result['streamed_kb']} kB sent",
        )
    )

"""Processor time and memory of the dashboard's server while hundreds of devices publish and a browser reads
the stream.
"""

import http.client
import subprocess
import threading
from collections.abc import Callable
from typing import Any

from edgefl.base.errors import LinkError
from tests.benchmarks.process import measure_process, start_program
from tests.benchmarks.watching.monitor import EDGEFL, describe_load, read_first_line, render_load, start_fleet
from tests.benchmarks.watching.simulated_devices import Fleet


def read_stream(address: str, received_bytes: list[int], first_event: threading.Event) -> None:
    """Read a dashboard's events as a browser does, until the stream ends.

    Args:
        address: host and port of the dashboard.
        received_bytes: its item counts the bytes.
        first_event: is set at the first event.
    """
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request("GET", "/events")
    response = connection.getresponse()
    while line := response.readline():
        received_bytes[0] += len(line)
        if line.startswith(b"data:"):
            first_event.set()


def run_dashboard_bench(
    fleet: Fleet, seconds: float, command: str, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Return processor time and memory of `edgefl dashboard` with one reader, with a broker on this machine.

    Raises:
        LinkError: the broker or the dashboard does not start, or the dashboard stops.
    """
    with start_fleet(fleet, seconds) as broker:
        page = [
            *EDGEFL,
            "dashboard",
            "--broker",
            broker["url"],
            "--federation",
            fleet.federation,
            "--port",
            "0",
            "--json",
        ]
        with start_program(page, stdout=subprocess.PIPE) as dashboard:
            address = read_first_line(dashboard, "dashboard")["url"].removeprefix("http://").rstrip("/")
            received_bytes = [0]
            first_event = threading.Event()
            threading.Thread(
                target=read_stream, args=(address, received_bytes, first_event), daemon=True
            ).start()
            if not first_event.wait(30):
                raise LinkError(
                    f"nothing came from http://{address}/events within 30 s, expected a snapshot; run "
                    "`edgefl dashboard` by hand"
                )
            result = measure_process(dashboard.pid, seconds, progress)
            if dashboard.poll() is not None:
                raise LinkError(
                    "the dashboard ended, expected it to run while it was measured; run `edgefl dashboard` "
                    "by hand"
                )
            return {
                **describe_load(command, fleet, broker, seconds),
                **result,
                "streamed_kb": round(received_bytes[0] / 1000),
            }


def render(result: dict[str, Any]) -> str:
    """Return the result as lines."""
    return (
        f"{render_load(result)}edgefl dashboard, one reader: {result['core_percent']:.1f}% of a core, "
        f"{result['rss_mb']:.0f} MB, {result['peak_rss_mb']:.0f} MB peak, {result['streamed_kb']} kB sent"
    )

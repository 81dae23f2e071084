"""What the dashboard's server takes of a machine while hundreds of devices speak and a browser's stream is
read.
"""

import http.client
import subprocess
import threading
from collections.abc import Callable
from typing import Any

from edgefl.errors import LinkError
from tests.benchmarks.process import measured, running
from tests.benchmarks.watching.monitor import EDGEFL, first_words, load_of, render_load, speaking
from tests.benchmarks.watching.simulated_devices import Fleet


def read_stream(address: str, got: list[int], seen: threading.Event) -> None:
    """Read a dashboard's events as a browser does, until it ends; `got` counts bytes, `seen` is set with the
    first event.
    """
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request("GET", "/events")
    response = connection.getresponse()
    while line := response.readline():
        got[0] += len(line)
        if line.startswith(b"data:"):
            seen.set()


def run_dashboard_bench(
    fleet: Fleet, seconds: float, command: str, note: Callable[[str], None]
) -> dict[str, Any]:
    """Return processor time and memory of `edgefl dashboard` with one reader, beside a broker of this
    machine. LinkError.
    """
    with speaking(fleet, seconds) as broker:
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
        with running(page, stdout=subprocess.PIPE) as dashboard:
            address = first_words(dashboard, "dashboard")["url"].removeprefix("http://").rstrip("/")
            got = [0]
            seen = threading.Event()
            threading.Thread(target=read_stream, args=(address, got, seen), daemon=True).start()
            if not seen.wait(30):
                raise LinkError(
                    f"nothing came from http://{address}/events within 30 s, expected a snapshot; run "
                    "`edgefl dashboard` by hand"
                )
            result = measured(dashboard.pid, seconds, note)
            if dashboard.poll() is not None:
                raise LinkError(
                    "the dashboard ended, expected it to run while it was measured; run `edgefl dashboard` "
                    "by hand"
                )
            return {**load_of(command, fleet, broker, seconds), **result, "streamed_kb": round(got[0] / 1000)}


def render(result: dict[str, Any]) -> str:
    """Return the result as lines."""
    return (
        f"{render_load(result)}edgefl dashboard, one reader: {result['core_percent']:.1f}% of a core, "
        f"{result['rss_mb']:.0f} MB, {result['peak_rss_mb']:.0f} MB peak, {result['streamed_kb']} kB sent"
    )

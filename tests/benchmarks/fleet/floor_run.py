"""The floor beside a fleet: what a broadcast and an answer of the same bytes cost without any protocol on
top.
"""

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from edgefl.errors import EdgeflError
from tests.benchmarks.fleet.broker import bare_broker
from tests.benchmarks.process import clients_a_process, running

TIMEOUT_S = 150.0


def run_floor(directory: Path, keys: Path | None, size: int, clients: int, rounds: int) -> dict[str, Any]:
    """Play rounds of bare paho on a bare mosquitto, over TLS where there are keys; returns seconds a round
    and peak memory.
    """
    log = directory / "floor.log"
    with ExitStack() as stack:
        port = stack.enter_context(bare_broker(directory, keys))
        url, ca = (
            (f"mqtts://localhost:{port}", str(keys / "ca.pem")) if keys else (f"mqtt://127.0.0.1:{port}", "")
        )

        def start(role: str, *numbers: int) -> "subprocess.Popen[str]":
            command = [
                sys.executable,
                "-m",
                "tests.benchmarks.fleet.floor",
                role,
                url,
                ca,
                *map(str, numbers),
            ]
            return stack.enter_context(running(command, log, stdout=subprocess.PIPE))

        server = start("serve", size, clients, rounds)
        assert server.stdout
        server.stdout.readline()  # it listens now
        each = clients_a_process(clients)
        answers = [
            start("answer", size, min(each, clients - first), rounds, first)
            for first in range(0, clients, each)
        ]
        told = [_last_json(process, log) for process in (server, *answers)]
    seconds = told[0]["seconds"][1:] or told[0]["seconds"]
    return {
        "round_s": median(seconds),
        "round_s_range": [min(seconds), max(seconds)],
        "client_process_mb": told[1]["peak_rss_mb"],
    }


def _last_json(process: "subprocess.Popen[str]", log: Path) -> Any:
    out, _ = process.communicate(timeout=TIMEOUT_S)
    if process.returncode:
        raise EdgeflError(
            f"a process of the floor ended with {process.returncode}: "
            f"{' '.join(log.read_text().splitlines()[-1:])}"
        )
    return json.loads(out.splitlines()[-1])

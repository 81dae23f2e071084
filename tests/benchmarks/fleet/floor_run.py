"""The floor of the fleet benchmark: a broadcast and answers of the same size without a protocol."""

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from edgefl.base.errors import EdgeflError
from tests.benchmarks.fleet.broker import start_bare_broker
from tests.benchmarks.process import count_clients_per_process, start_program

TIMEOUT_S = 150.0


def run_floor(directory: Path, keys: Path | None, size: int, clients: int, rounds: int) -> dict[str, Any]:
    """Run rounds of bare paho on a bare mosquitto, and return seconds a round and peak memory.

    Args:
        directory: directory for the log and mosquitto's files.
        keys: directory with keys for TLS. None runs without TLS.
        size: bytes of a message.
        clients: number of clients.
        rounds: number of rounds.
    """
    log = directory / "floor.log"
    with ExitStack() as stack:
        port = stack.enter_context(start_bare_broker(directory, keys))
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
            return stack.enter_context(start_program(command, log, stdout=subprocess.PIPE))

        server = start("serve", size, clients, rounds)
        assert server.stdout
        server.stdout.readline()  # the server has subscribed
        clients_per_process = count_clients_per_process(clients)
        answers = [
            start("answer", size, min(clients_per_process, clients - first), rounds, first)
            for first in range(0, clients, clients_per_process)
        ]
        outputs = [_read_last_json(process, log) for process in (server, *answers)]
    seconds = outputs[0]["seconds"][1:] or outputs[0]["seconds"]
    return {
        "round_s": median(seconds),
        "round_s_range": [min(seconds), max(seconds)],
        "client_process_mb": outputs[1]["peak_rss_mb"],
    }


def _read_last_json(process: "subprocess.Popen[str]", log: Path) -> Any:
    out, _ = process.communicate(timeout=TIMEOUT_S)
    if process.returncode:
        raise EdgeflError(
            f"a process of the floor ended with {process.returncode}: "
            f"{' '.join(log.read_text().splitlines()[-1:])}"
        )
    return json.loads(out.splitlines()[-1])

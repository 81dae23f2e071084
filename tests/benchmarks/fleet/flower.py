"""Flower as the peer of the fleet benchmark: a SuperLink and SuperNodes without TLS, in a virtual environment
of their own.

The app is Flower's documented kind (a ServerApp with FedAvg, a ClientApp whose `train` gives back what it
got), run by `flwr run` on the deployment runtime: a SuperNode for each client, as there is a device service
for each board. Evaluation is off.
"""

import json
import os
import subprocess
import time
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from edgefl.errors import ConfigError, EdgeflError
from mqtt_broker.broker.dev_broker import HOST, free_port
from tests.benchmarks.process import running
from tests.benchmarks.simulate.scale import tree_mb

PROJECT = """
[project]
name = "edgefl-bench"
version = "1.0.0"
description = "the peer of edgefl's fleet benchmark"
license = "Apache-2.0"
dependencies = ["flwr"]

[tool.flwr.app]
publisher = "edgefl"

[tool.flwr.app.components]
serverapp = "app.server:app"
clientapp = "app.client:app"

[tool.flwr.app.config]
rounds = {rounds}
size = {size}
clients = {clients}
out = "{out}"
"""
CLIENT = """
from flwr.app import MetricRecord, RecordDict, Message
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(msg, context):
    metrics = MetricRecord({"num-examples": 10})
    return Message(content=RecordDict({"arrays": msg.content["arrays"], "metrics": metrics}), reply_to=msg)
"""
SERVER = """
import json
import time

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()
times = []


class Timed(FedAvg):
    def aggregate_train(self, server_round, replies):
        found = super().aggregate_train(server_round, list(replies))
        times.append(time.time())
        return found


@app.main()
def main(grid, context):
    given = context.run_config
    count = int(given["clients"])
    model = np.random.default_rng(1).normal(0, 0.1, int(given["size"]) // 4).astype(np.float32)
    strategy = Timed(fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=count, min_available_nodes=count)
    strategy.start(grid=grid, initial_arrays=ArrayRecord([model]), num_rounds=int(given["rounds"]))
    with open(given["out"], "w") as file:
        json.dump(times, file)
"""  # noqa: E501
START_S = 120.0
TIMEOUT_S = 300.0


def flower_version(python: str) -> str:
    """Return the version of flwr; ConfigError when that Python has none."""
    ask = "import importlib.metadata as m; print(m.version('flwr'))"
    try:
        done = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return done.stdout.strip()
    except OSError:
        pass
    raise ConfigError(
        f"{python} has no flwr; give --flwr-python a Python that has it (pip install flwr==1.41.0), or leave "
        "it out"
    )


def run_flower(directory: Path, python: str, size: int, clients: int, rounds: int) -> dict[str, Any]:
    """Play the rounds; returns seconds a round, until the first one, and a client's memory. EdgeflError when
    it does not end.
    """
    programs = Path(python).parent
    port = free_port()
    out = directory / "times.json"
    log = directory / "flower.log"
    for name, text in (
        ("pyproject.toml", PROJECT),
        ("app/__init__.py", ""),
        ("app/client.py", CLIENT),
        ("app/server.py", SERVER),
    ):
        (directory / "flower" / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / "flower" / name).write_text(
            text.format(rounds=rounds, size=size, clients=clients, out=out) if text == PROJECT else text
        )
    home = directory / "home"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "bench"\n\n[superlink.bench]\naddress = "{HOST}:{port}"\ninsecure = true\n'
    )
    env = {
        **os.environ,
        "FLWR_HOME": str(home),
        "PATH": f"{programs}:{os.environ['PATH']}",
        "FLWR_TELEMETRY_ENABLED": "0",
        "PYTHONPATH": "",
    }
    began = time.time()
    peak = 0.0
    with ExitStack() as stack:
        link = [
            str(programs / "flower-superlink"),
            "--insecure",
            "--disable-runtime-dependency-installation",
            "--host",
            HOST,
        ]
        stack.enter_context(running([*link, "--port", str(port)], log, env=env))
        node = [
            str(programs / "flower-supernode"),
            "--insecure",
            "--superlink",
            f"{HOST}:{port}",
            "--host",
            HOST,
            "--port",
        ]
        nodes = [
            stack.enter_context(running([*node, str(free_port())], log, env=env)) for _ in range(clients)
        ]
        _start_run([str(programs / "flwr"), "run", str(directory / "flower"), "bench"], env)
        until = time.monotonic() + TIMEOUT_S
        while not out.exists():
            if time.monotonic() > until:
                raise EdgeflError(
                    f"Flower was not done after {TIMEOUT_S:g} s: "
                    f"{' '.join(log.read_text().splitlines()[-1:])}"
                )
            peak = max(peak, tree_mb(nodes[0].pid))
            time.sleep(0.2)
    times = json.loads(out.read_text())
    seconds = [later - earlier for earlier, later in pairwise(times)]
    return {
        "round_s": median(seconds),
        "round_s_range": [min(seconds), max(seconds)],
        "first_round_s": times[0] - began,
        "client_mb": peak,
    }


def _start_run(command: list[str], env: dict[str, str]) -> None:
    until = time.monotonic() + START_S
    said = ""
    while time.monotonic() < until:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=env, timeout=TIMEOUT_S
        )
        if done.returncode == 0:
            return
        said = done.stderr + done.stdout
        time.sleep(0.5)  # the SuperLink does not answer yet
    raise EdgeflError(f"`flwr run` failed: {said.strip()[-300:]}")

"""Flower as the peer of the fleet benchmark.

The app has the form that Flower documents: a ServerApp with FedAvg, and a ClientApp whose `train` returns the
received arrays. `flwr run` starts it on the deployment runtime. Evaluation is off.
"""

import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks.flower import RunConfig, start_deployment, write_app
from tests.benchmarks.simulate.scale import measure_tree_mb

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
import os
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
    with open(given["out"] + ".part", "w") as file:
        json.dump(times, file)
    os.replace(given["out"] + ".part", given["out"])
"""  # noqa: E501
TIMEOUT_S = 300.0


def run_flower(directory: Path, python: str, size: int, clients: int, rounds: int) -> dict[str, Any]:
    """Run the rounds, and return seconds a round, seconds until the first round ends, and a client's memory.

    Raises:
        EdgeflError: Flower does not finish.
    """
    out = directory / "times.json"
    config: RunConfig = {"rounds": rounds, "size": size, "clients": clients, "out": str(out)}
    app = write_app(directory / "flower", CLIENT, SERVER, config)
    began = time.time()
    peak = 0.0
    with start_deployment(directory, python, [{}] * clients) as flower:

        def measure_memory() -> None:
            nonlocal peak
            peak = max(peak, measure_tree_mb(flower.nodes[0]))

        flower.start_run(app)
        times = flower.wait_for(out, TIMEOUT_S, measure_memory)
    seconds = [later - earlier for earlier, later in pairwise(times)]
    return {
        "round_s": median(seconds),
        "round_s_range": [min(seconds), max(seconds)],
        "first_round_s": times[0] - began,
        "client_mb": peak,
    }

"""FedAvg and FedProx with Flower's strategies, on the shards and from the initial weights of edgefl."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgefl.base.errors import EdgeflError
from edgefl.base.types import Weights
from tests.benchmarks.accuracy import keras_trainer
from tests.benchmarks.flower import Deployment, NodeConfig, start_deployment, write_app
from tests.benchmarks.process import start_program
from tests.benchmarks.simulate.steps import ENV

CLIENT = """
from multiprocessing.connection import Client

from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(msg, context):
    node = context.node_config
    run = context.run_config
    config = msg.content["config"]
    task = {
        "model": run["model"],
        "samples": f"{run['samples']}/{node['client']}.npz",
        "weights": {name: array.numpy() for name, array in msg.content["arrays"].items()},
        "seed": [run["seed"], config["server-round"], node["number"]],
        "epochs": run["epochs"],
        "batch_size": run["batch_size"],
        "learning_rate": run["learning_rate"],
        "momentum": run["momentum"],
        "proximal_mu": config.get("proximal-mu", 0.0),
    }
    with Client(node["trainer"]) as trainer:
        trainer.send(task)
        answer = trainer.recv()
    if "error" in answer:
        raise RuntimeError(answer["error"])
    arrays = ArrayRecord({name: Array(value) for name, value in answer["weights"].items()})
    metrics = MetricRecord({"num-examples": answer["num_samples"], "loss": answer["loss"]})
    return Message(content=RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)
"""
SERVER = """
import json
import os
import traceback

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg, FedProx

app = ServerApp()


def complete(kind):
    class Complete(kind):
        def aggregate_train(self, server_round, replies):
            replies = list(replies)
            errors = [reply.error.reason for reply in replies if reply.has_error()]
            if errors or len(replies) != self.min_train_nodes:
                raise RuntimeError(f"round {server_round}: {len(replies)} replies, errors: {errors[:1]}")
            return super().aggregate_train(server_round, replies)

    return Complete


def play(grid, run):
    count = run["clients"]
    options = {"fraction_evaluate": 0.0, "min_train_nodes": count, "min_available_nodes": count}
    if run["algorithm"] == "fedprox":
        strategy = complete(FedProx)(proximal_mu=run["proximal_mu"], **options)
    else:
        strategy = complete(FedAvg)(**options)
    with np.load(run["initial"]) as file:
        initial = ArrayRecord({name: Array(file[name]) for name in file.files})
    result = strategy.start(grid=grid, initial_arrays=initial, num_rounds=run["rounds"])
    np.savez(run["trained"], **{name: array.numpy() for name, array in result.arrays.items()})


@app.main()
def main(grid, context):
    run = context.run_config
    try:
        play(grid, run)
        answer = {}
    except Exception:
        answer = {"error": traceback.format_exc()}
    with open(run["out"] + ".part", "w") as file:
        json.dump(answer, file)
    os.replace(run["out"] + ".part", run["out"])
"""
START_S = 300.0
ROUND_S = 120.0
"""The most seconds that Flower may take to start, and for a round."""


@dataclass(frozen=True)
class Run:
    """A federation that Flower runs.

    Attributes:
        algorithm: `fedavg` or `fedprox`.
        initial: the initial weights by name.
        model: the file of the Keras model.
        samples: the directory with the samples of each client.
        rounds: number of rounds.
        seed: seed from which the clients draw the order of their samples.
        options: the options of the algorithm in edgefl's plan.
    """

    algorithm: str
    initial: Weights
    model: Path
    samples: Path
    rounds: int
    seed: int
    options: Mapping[str, Any]


@contextmanager
def start_flower_clients(directory: Path, python: str, clients: Sequence[str]) -> Iterator[Deployment]:
    """Start a Flower federation with a trainer for each client; see `keras_trainer`.

    Raises:
        EdgeflError: a trainer does not start.
    """
    log = directory / "trainers.log"
    env = {**ENV, "PYTHONPATH": ""}
    sockets = {client: directory / f"{client}.socket" for client in clients}
    with ExitStack() as stack:
        for socket in sockets.values():
            stack.enter_context(start_program([python, keras_trainer.__file__, str(socket)], log, env=env))
        deadline = time.monotonic() + START_S
        while not all(socket.exists() for socket in sockets.values()):
            if time.monotonic() > deadline:
                raise EdgeflError(f"a trainer did not start in {START_S:g} s: {log.read_text()[-300:]}")
            time.sleep(0.2)
        nodes: list[NodeConfig] = [
            {"client": client, "number": number, "trainer": str(socket)}
            for number, (client, socket) in enumerate(sockets.items())
        ]
        yield stack.enter_context(start_deployment(directory, python, nodes))


def play(directory: Path, flower: Deployment, runs: Sequence[Run]) -> list[Weights]:
    """Return the final weights of each run. The runs take place at the same time.

    Args:
        directory: an existing directory for the apps and their results.
        flower: see `flower_clients`.
        runs: the federations, each with another algorithm.

    Raises:
        EdgeflError: a run fails.
    """
    for run in runs:
        flower.start_run(_write_run(directory, len(flower.nodes), run))
    return [_read_weights(directory, flower, run) for run in runs]


def _write_run(directory: Path, clients: int, run: Run) -> Path:
    initial = directory / f"{run.algorithm}-initial.npz"
    np.savez(initial, **dict[str, Any](run.initial))
    options = {key: run.options[key] for key in ("epochs", "batch_size", "learning_rate", "momentum")}
    config = {
        "algorithm": run.algorithm,
        "clients": clients,
        "rounds": run.rounds,
        "seed": run.seed,
        "model": str(run.model),
        "samples": str(run.samples),
        "initial": str(initial),
        "trained": str(directory / f"{run.algorithm}-trained.npz"),
        "out": str(directory / f"{run.algorithm}.json"),
        "proximal_mu": float(run.options.get("mu", 0.0)),
        **options,
    }
    return write_app(directory / run.algorithm, CLIENT, SERVER, config)


def _read_weights(directory: Path, flower: Deployment, run: Run) -> Weights:
    answer = flower.wait_for(directory / f"{run.algorithm}.json", START_S + run.rounds * ROUND_S)
    if error := answer.get("error"):
        raise EdgeflError(f"Flower's {run.algorithm} failed: {error.strip()[-500:]}")
    with np.load(directory / f"{run.algorithm}-trained.npz") as file:
        return dict(file)

"""Runs whose calls are counted: a federation of one device over mosquitto in this process, and one client of
the simulator.
"""

import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from devices.driver import Work
from devices.service import run_device
from devices.settings import DeviceSettings
from devices.worker import DeviceWorker
from edgefl.base.config import FederationConfig, load_config
from edgefl.base.errors import EdgeflError
from edgefl.base.rng import derive_rng
from edgefl.base.types import ClientState, Shard, Weights
from edgefl.data.npz import save_shard
from edgefl.data.sources import DataSource
from edgefl.learning.algorithms import make_algorithm
from edgefl.learning.client.runner import WorkItem
from edgefl.program.plan.spec import Plan
from edgefl.protocol.device.events import ClientEvent, Train
from edgefl.protocol.device.machine import ClientMachine
from edgefl.protocol.server.events import Event, OpenRound
from edgefl.protocol.server.round_server import RoundServer
from edgefl.simulation.clients import OpenFederation, SimulatedFederation, train_client
from mqtt_broker.aggregator.plan_source import build_plan_in_child, open_built_plan
from mqtt_broker.aggregator.service import Aggregator
from tests.benchmarks.fleet.broker import start_bare_broker
from tests.benchmarks.structure.call_path import CallGraph
from tests.benchmarks.structure.statements import count_by_package, list_working_tree, read_commit

CLIENT = "device-1"
SAMPLES = 40
WAIT_S = 60.0
CONFIG = '[federation]\nname = "calls"\nrounds = 2\nmin_clients = 1\n[model]\nname = "lenet5"\n'


def make_samples() -> Shard:
    """Return noise in the shape of digits."""
    rng = np.random.default_rng(1)
    x = rng.random((SAMPLES, 28, 28, 1)).astype(np.float32)
    y = rng.integers(0, 10, SAMPLES)
    return Shard(x_train=x, y_train=y, x_test=x[:10], y_test=y[:10], num_classes=10)


@dataclass(frozen=True)
class FederationCalls:
    """The calls of one round.

    Attributes:
        machine: calls of the client machine, from the first task to the second one.
        worker: calls of the device's worker for the first task.
        server: calls of the round server. They start after the event that opens the round, and include the
            event that opens the next round.
    """

    machine: CallGraph = field(default_factory=CallGraph)
    worker: CallGraph = field(default_factory=CallGraph)
    server: CallGraph = field(default_factory=CallGraph)


def observe_federation(
    plan: Plan, initial: Weights, config: FederationConfig, directory: Path
) -> FederationCalls:
    """Return the calls of a device and of the round server in the first round."""
    calls = FederationCalls()
    original_handle, original_perform = RoundServer.handle, DeviceWorker.compute
    original_client_handle = ClientMachine.handle
    handle, perform = calls.server.observe(original_handle), calls.worker.observe(original_perform)
    client_handle = calls.machine.observe(original_client_handle)
    opened = 0

    def perform_first(worker: DeviceWorker, work: Work) -> ClientEvent:
        is_first = isinstance(work, Train) and work.task.round == 1
        event: ClientEvent = (perform if is_first else original_perform)(worker, work)
        return event

    def handle_first_task(machine: ClientMachine, event: ClientEvent, now: float) -> Any:
        is_first = machine.task is None or machine.task.round == 1
        return (client_handle if is_first else original_client_handle)(machine, event, now)

    def handle_first(server: RoundServer, event: Event, now: float) -> Any:
        nonlocal opened
        actions = (handle if opened == 1 else original_handle)(server, event, now)
        opened += sum(isinstance(action, OpenRound) for action in actions)
        return actions

    save_shard(directory / "samples.npz", make_samples())
    errors = list[EdgeflError]()

    def run_aggregator(url: str) -> None:
        try:
            Aggregator(config, plan, initial, directory / "out").run(url)
        except EdgeflError as error:
            errors.append(error)

    with (
        start_bare_broker(directory, None) as port,
        patch.object(DeviceWorker, "compute", perform_first),
        patch.object(ClientMachine, "handle", handle_first_task),
        patch.object(RoundServer, "handle", handle_first),
    ):
        url = f"mqtt://127.0.0.1:{port}"
        data = DataSource(data=str(directory / "samples.npz"))
        settings = DeviceSettings(
            broker=url, client_id=CLIENT, data=data, state=directory / CLIENT, wait_s=WAIT_S, export=False
        )
        aggregator = threading.Thread(target=run_aggregator, args=(url,), daemon=True)
        aggregator.start()
        run_device(settings)
        aggregator.join(WAIT_S)
    if errors:
        raise errors[0]
    return calls


def observe_simulation(plan: Plan, initial: Weights, config: FederationConfig) -> CallGraph:
    """Return the calls of the simulator for the update of one client."""
    graph = CallGraph()
    federation = OpenFederation(
        SimulatedFederation(plan=plan, seed=config.seed, shards={CLIENT: make_samples()})
    )
    server = make_algorithm(plan.spec.algorithm, None, plan.spec.options)
    broadcast = server.broadcast(server.init(initial, derive_rng(config.seed, 0, "init")), CLIENT)
    item = WorkItem(
        broadcast=broadcast, state=ClientState(), client_id=CLIENT, evaluate=config.reports_accuracy
    )
    graph.observe(train_client)(federation, item)
    return graph


def run_calls_bench(since: str | None, command: str, progress: Callable[[str], None]) -> dict[str, Any]:
    """Return the figures of the call paths, and the statements now and at a commit.

    Raises:
        EdgeflError: mosquitto is missing, or the commit is unknown.
    """
    before = count_by_package(read_commit(since)) if since else None
    with tempfile.TemporaryDirectory(prefix="edgefl-bench-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        (directory / "federation.toml").write_text(CONFIG)
        config = load_config(directory / "federation.toml")
        progress("compiling the plan")
        build_plan_in_child(directory / "federation.toml", directory / "plan")
        plan, initial = open_built_plan(directory / "plan", config)
        progress("observing a federation")
        calls = observe_federation(plan, initial, config, directory)
    paths = {
        "client machine (ClientMachine.handle)": calls.machine.compute_path(),
        "device work (DeviceWorker.compute)": calls.worker.compute_path(),
        "round server (RoundServer.handle)": calls.server.compute_path(),
        "simulated update (simulation.clients.train)": observe_simulation(
            plan, initial, config
        ).compute_path(),
    }
    return {
        "command": command,
        "paths": {name: vars(path) for name, path in paths.items()},
        "since": since,
        "before": before,
        "statements": count_by_package(list_working_tree()),
    }


def render(result: dict[str, Any]) -> str:
    """Return the result as text for a terminal."""
    figures = ("functions", "files", "visits", "returns")
    lines = [result["command"], "", f"{'':44}" + "".join(f"{figure:>10}" for figure in figures)]
    for name, path in result["paths"].items():
        lines.append(f"{name:44}" + "".join(f"{path[figure]:10d}" for figure in figures))
    before = result["before"]
    lines += ["", f"{'':20}{'files':>8}{'statements':>12}" + (f"   at {result['since']}" if before else "")]
    for package, now in result["statements"].items():
        counts = [now, before[package]] if before else [now]
        columns = (f"{count['files']:8d}{count['statements']:12d}" for count in counts)
        lines.append(f"{package:20}" + "".join(columns))
    return "\n".join(lines)

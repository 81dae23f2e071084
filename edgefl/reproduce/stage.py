"""A stage of an experiment: one federation, or only the personalization after another stage's federation."""

import json
import shutil
import subprocess
import sys
import time
from collections import ChainMap
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from edgefl.config import FederationConfig
from edgefl.data.dataset import as_float
from edgefl.errors import ExportError
from edgefl.learner.litert import LiteRTLearner
from edgefl.runs.directory import RunDirectory, read_json
from edgefl.runs.mixtures import keep_states
from edgefl.runs.pipeline import Shared, play, shared_out
from edgefl.runs.progress import RoundProgress
from edgefl.runs.summary import confusions, gates, summarize
from edgefl.simulation.clients import without_mixture
from edgefl.simulation.diagnostics import models_on_test
from edgefl.simulation.simulate import States
from edgefl.system.progress import Telling
from edgefl.types import ServerState

Scale = Literal["smoke", "reduced", "full"]
"""smoke: a minute or two, to see that all of it runs; reduced: minutes, with the lines that must hold; full:
the paper's sizes.
"""


@dataclass(frozen=True)
class Stage:
    """after: the name of the stage whose federation this one personalizes.

    Its algorithm must federate in the same way.

    on_test: measure every client's models on the whole test set too; models: measure those that the server
    holds. int8: quantize the model that each client ships, and measure it. late: so many clients, the last
    ones by name, take part in no round.
    """

    name: str
    config: FederationConfig
    after: str = ""
    on_test: bool = False
    models: bool = False
    int8: bool = False
    late: int = 0


Result = Mapping[str, Any]
"""A stage's summary, see `summarize`, with `records`: one a round."""


class Stages:
    """Plays stages in a directory, each in one of its own.

    One that is done is read, one that was interrupted goes on.
    """

    def __init__(self, out: Path, command: str, processes: int, telling: Telling) -> None:
        self._telling = telling
        self._out = out
        self._command = command
        self._processes = processes
        self._open = ExitStack()
        self._shared: tuple[Any, Shared] | None = None
        self._runs: dict[str, RunDirectory] = {}

    def __enter__(self) -> "Stages":
        """Data sets are opened as they are needed."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the data sets."""
        self._open.close()

    def _data(self, config: FederationConfig) -> Shared:
        key = (config.data, config.partition, config.seed)
        if self._shared is None or self._shared[0] != key:
            self._open.close()
            self._shared = (key, self._open.enter_context(shared_out(config)))
        return self._shared[1]

    def play(self, stage: Stage, label: str) -> Result:
        """Return the stage's result, played if it is not there yet."""
        config = stage.config
        run = RunDirectory(self._out / f"{stage.name}-{config.seed}", config, self._command, resume=True)
        self._runs[stage.name] = run
        if run.files.summary.exists():
            return {**read_json(run.files.summary), "records": run.records()}
        self._telling.doing(f"{label}: data, and the plan if it is new")
        shared = self._data(config)
        start: ServerState | None = run.state
        states: States = run.states
        if stage.after:
            before = self._runs[stage.after]
            start = before.load_state()
            states = ChainMap({}, before.states)
        began = time.monotonic()
        progress = RoundProgress(config.rounds, self._telling, f"{label}: ")
        if stage.late:
            early = replace(shared, shards=shared.shards.among(sorted(shared.shards)[: -stage.late]))
            start = play(
                run, config, early, processes=self._processes, start=start, states=states, progress=progress
            ).state
        simulation = play(
            run,
            config,
            shared,
            processes=self._processes,
            measure_test=stage.on_test,
            start=start,
            states=states,
            progress=progress,
            keep_result=keep_states(run, config, shared) if stage.int8 else without_mixture,
        )
        seconds = time.monotonic() - began
        records = [] if stage.after else run.records()
        summary = summarize(config, simulation, records, shared.allotments, shared.test_counts)
        if stage.models:
            dataset = shared.shards.dataset
            plan = run.plan()
            assert plan is not None
            figures = models_on_test(
                plan[0], LiteRTLearner(plan[0]), simulation.state, as_float(dataset.x_test), dataset.y_test
            )
            summary["models"] = {name: figure["accuracy"] for name, figure in figures.items()}
        summary["client_seconds"] = round(seconds * self._processes / len(shared.shards), 2)
        if stage.int8:
            self._telling.doing(f"{label}: int8 models")
            _measure_int8(run, summary)
        run.write(run.files.confusion, confusions(simulation))
        run.write(run.files.gates, gates(simulation))
        run.write(run.files.summary, json.dumps(summary, indent=1, allow_nan=False) + "\n")
        return {**summary, "records": records}


def _measure_int8(run: RunDirectory, summary: dict[str, Any]) -> None:
    """Quantize the kept models in a process of its own, and add their figures to the rows of the clients.

    Raises:
        ExportError: a model cannot be quantized.
    """
    command = [sys.executable, "-m", "edgefl", "export", "fleet", str(run.files.root), "--json"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise ExportError(f"the models of {run.files.root} cannot be quantized: {lines[-1] if lines else ''}")
    found = {row["id"]: row for row in json.loads(done.stdout)}
    for row in summary["clients"]:
        row["accuracy_shipped_int8"] = found[row["id"]]["accuracy_int8"]
        row["tflite_bytes"] = found[row["id"]]["tflite_bytes"]
    shutil.rmtree(run.files.mixtures)

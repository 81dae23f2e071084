"""A stage of an experiment: a federation, or a personalization after the rounds of an earlier stage."""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

from edgefl.base.config import FederationConfig
from edgefl.base.errors import ConfigError, ExportError, StateError
from edgefl.base.storage.run_directory import RunFiles
from edgefl.base.system.files import open_no_link, to_json_value, write_errors, write_state
from edgefl.base.system.progress import Progress
from edgefl.data.dataset import as_float
from edgefl.lab.reproduce.cached_learner import CachedLearner
from edgefl.lab.reproduce.stage_measurements import (
    compare_client_layers,
    measure_label_distances,
    measure_new_client_accuracy,
    measure_predicted_precision,
)
from edgefl.lab.reproduce.timed_engine import TimedEngine, read_seconds
from edgefl.learning.algorithms import complete_algorithm_options
from edgefl.learning.algorithms.names import GLOBAL
from edgefl.program.learner.litert import LiteRTLearner
from edgefl.program.plan.spec import INITIAL_FILE
from edgefl.protocol.wire.tensors import encode_weights
from edgefl.simulation.clients import SimulatedFederation, drop_mixture
from edgefl.simulation.diagnostics import evaluate_models
from edgefl.simulation.engines.base import Engine
from edgefl.simulation.engines.processes import choose_local_engine
from edgefl.simulation.runs.client_directories import make_state_writer
from edgefl.simulation.runs.directory import RunDirectory, read_json
from edgefl.simulation.runs.pipeline import (
    PartitionedDataset,
    load_or_build_plan,
    open_partitioned_dataset,
    play_run,
)
from edgefl.simulation.runs.progress import RoundProgress
from edgefl.simulation.runs.states import load_committed_states
from edgefl.simulation.runs.summary import summarize_run, write_results
from edgefl.simulation.simulate import Checkpoint


@dataclass(frozen=True)
class ExperimentStage:
    """One federation of an experiment, with the measurements to make.

    Attributes:
        name: the name of its directory, before the seed.
        config: the configuration of the federation.
        after: name of an earlier stage, or empty. This stage then plays no rounds and personalizes the
            clients of the earlier one. The rounds of both algorithms must be the same.
        measure_test: whether each client's models are also measured on the whole test set.
        measure_models: whether the server's models are measured on the whole test set.
        measure_int8: whether the model that each client ships is quantized and measured.
        weights_from: name of an earlier stage of FedAvg, or empty. This stage starts from its weights.
            Weights of another shape, such as an output layer for other classes, keep their own start.
        num_late: number of clients, the last ones by name, that take part in no round and are only
            personalized.
        evaluate_every: number of rounds between two evaluations of all clients. 0: none.
        pooled: whether one client has the samples of all, as in training without a federation.
        layers_over: number of epochs after which the layers of clients that train alone are compared, see
            `edgefl.simulation.runs.layer_similarity`. 0: none.
        measure_new_client: whether predictions for a client without labels are measured on the test set.
        measure_labels: whether class shares are read from first updates, see `edgefl.watch.audit`.
        model_sha256: SHA-256 of the model's `.keras` file in hex, so that a directory is not continued with
            another file. Empty: the model is not from a file.
    """

    name: str
    config: FederationConfig
    after: str = ""
    measure_test: bool = False
    measure_models: bool = False
    measure_int8: bool = False
    weights_from: str = ""
    num_late: int = 0
    evaluate_every: int = 0
    pooled: bool = False
    layers_over: int = 0
    measure_new_client: bool = False
    measure_labels: bool = False
    model_sha256: str = ""


ExperimentResult = Mapping[str, Any]
"""The summary of a stage with further keys. See `edgefl.simulation.runs.summary.summarize_run`.

- records: one record per round.
- machine, versions: the machine that started the stage, and its versions of edgefl and the libraries.
- late: the ids of the clients that took part in no round.
- measurement_seconds: processor time of the measurements after the personalization.
- device_seconds: processor time of all rounds and of the personalization, as a mean over clients. A client's
  row has the two parts, round_seconds and personalization_seconds. None means that a part was not measured.
"""


class LockedError(StateError):
    """Raised if another process plays the same stages."""


class StageRunner:
    """Plays stages, each in its own directory. A finished stage is read, and an interrupted one continues.

    As a context it has a lock in `out`, so that no second process writes to the same stages.

    Args:
        out: holds the directories of the stages.
        command: the command line, which each stage records.
        processes: number of client processes.
        seed: the seed of all stages. Other processes may play other seeds in `out`. None: the stages have
            several seeds, and only one process without a seed may use `out`.
    """

    def __init__(
        self, out: Path, command: str, processes: int, progress: Progress, seed: int | None = None
    ) -> None:
        self._progress = progress
        self._out = out
        self._lock_file = out / ("lock" if seed is None else f"lock-{seed}")
        self._command = command
        self._processes = processes
        self._exit_stack = ExitStack()
        self._shared: tuple[Any, tuple[PartitionedDataset, Path]] | None = None
        self._runs: dict[str, RunDirectory] = {}

    def __enter__(self) -> "StageRunner":
        """Lock the output directory, and return the runner. It opens data sets when it needs them.

        Raises:
            LockedError: another process has the lock.
            StateError: the directory or the lock cannot be created, or its file system has no locks.
        """
        with write_errors(self._out, "pass another --out"):
            self._out.mkdir(parents=True, exist_ok=True)
            self._lock = open_no_link(self._lock_file, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock)
            raise LockedError(
                f"another process has {self._lock_file}; wait until it ends, or pass another --out"
            ) from error
        except OSError as error:
            os.close(self._lock)
            raise StateError(
                f"cannot lock {self._lock_file}: {error.strerror}; pass another --out on a local disk"
            ) from error
        return self

    def __exit__(self, *error: object) -> None:
        """Close the data sets, and release the lock."""
        self._exit_stack.close()
        os.close(self._lock)

    def _open_data(self, stage: ExperimentStage) -> tuple[PartitionedDataset, Path]:
        """Return the data set, and a directory for local models that stages with the same data share."""
        config = stage.config
        key = (
            config.data,
            config.partition,
            config.seed,
            stage.pooled,
            config.model.input_shape,
            config.samples,
        )
        if self._shared is None or self._shared[0] != key:
            self._exit_stack.close()
            models = self._exit_stack.enter_context(
                tempfile.TemporaryDirectory(prefix="edgefl-local-models-")
            )
            self._shared = (
                key,
                (
                    self._exit_stack.enter_context(open_partitioned_dataset(config, pooled=stage.pooled)),
                    Path(models),
                ),
            )
        return self._shared[1]

    def play_all(self, stages: Sequence[ExperimentStage], label: str) -> dict[str, ExperimentResult]:
        """Return the results of stages by name, see `play`.

        Args:
            stages: the stages. A stage comes after the stages that it refers to.
            label: the beginning of progress messages, such as the seed.
        """
        return {
            stage.name: self.play(stage, f"{label}, {stage.name} ({number} of {len(stages)})")
            for number, stage in enumerate(stages, 1)
        }

    def play(self, stage: ExperimentStage, label: str) -> ExperimentResult:
        """Return the result of a stage. Play it first, unless it is finished.

        Args:
            label: describes the stage in progress messages.

        Raises:
            ConfigError: the directory of the stage has a run with other settings.
            ExportError: a model cannot be quantized.
        """
        config = stage.config
        root = self._out / f"{stage.name}-{config.seed}"
        _remove_unstarted(root)
        run = RunDirectory(root, config, self._command, resume=True)
        earlier = self._runs.get(stage.after or stage.weights_from)
        _check_settings(run, stage, earlier)
        self._runs[stage.name] = run
        if run.files.summary.exists():
            return {**read_json(run.files.summary), **run.read_origin(), "records": run.read_records()}
        self._progress.update(f"{label}: loading data, and compiling the plan if it is new")
        shared, models = self._open_data(stage)
        if stage.weights_from:
            _start_from(run, config, shared, self._runs[stage.weights_from])
        checkpoint: Checkpoint | None = None
        if stage.after:
            before = self._runs[stage.after]
            state = before.load_state()
            assert state is not None
            # The states after the rounds, which the personalization of the earlier stage may have changed.
            checkpoint = Checkpoint(
                server=state, clients=load_committed_states(before.files, state.round - 1)
            )
        late = sorted(shared.shards)[len(shared.shards) - stage.num_late :]
        open_engine = choose_local_engine(self._processes)

        def open_timed_engine(federation: SimulatedFederation) -> Engine:
            return TimedEngine(open_engine(federation), run.files.seconds)

        simulation = play_run(
            run,
            config,
            shared,
            open_learner=partial(CachedLearner, directory=models),
            open_engine=open_timed_engine,
            measure_test=stage.measure_test,
            checkpoint=checkpoint,
            progress=RoundProgress(config.rounds, self._progress, f"{label}: "),
            keep_result=make_state_writer(run, config, shared) if stage.measure_int8 else drop_mixture,
            without_rounds=late,
            evaluate_every=stage.evaluate_every,
        )
        records = [] if stage.after else run.read_records()
        summary = summarize_run(config, simulation, records, shared, run.read_measured_values())
        began = process_time()
        if stage.measure_models:
            dataset = shared.shards.dataset
            plan = run.read_plan()
            assert plan is not None
            figures = evaluate_models(
                plan[0], LiteRTLearner(plan[0]), simulation.state, as_float(dataset.x_test), dataset.y_test
            )
            summary["models"] = {name: figure["accuracy"] for name, figure in figures.items()}
            summary["model_losses"] = {name: figure["loss"] for name, figure in figures.items()}
        if stage.layers_over:
            summary["layer_gaps"] = compare_client_layers(run, config, shared, stage.layers_over)
        if stage.measure_new_client:
            summary["new_client"] = measure_new_client_accuracy(run, shared)
        if stage.measure_labels:
            summary["label_distances"] = measure_label_distances(run, config, shared)
        confusions = (result.confusion for result in simulation.results.values())
        summary["predicted_precision"] = measure_predicted_precision(confusions)
        summary["measurement_seconds"] = round(process_time() - began, 2)
        summary["late"] = late
        _add_seconds(summary, records, read_seconds(run.files.seconds), simulation.state.round)
        if stage.measure_int8:
            self._progress.update(f"{label}: quantizing models to int8")
            _measure_int8(run, summary)
        summary = to_json_value(summary)
        write_results(run, simulation, summary)
        return {**summary, **run.read_origin(), "records": records}


def _start_from(
    run: RunDirectory, config: FederationConfig, shared: PartitionedDataset, before: RunDirectory
) -> None:
    """Replace the initial weights of a run by the trained weights of the same names and shapes.

    Raises:
        ConfigError: no weight fits, or the earlier stage has no global model.
    """
    state = before.load_state()
    assert state is not None
    trained = state.models.get(GLOBAL, {})
    _, initial = load_or_build_plan(run, config, shared.shards)
    fitting = {
        name: value
        for name, value in trained.items()
        if name in initial and initial[name].shape == value.shape
    }
    if not fitting:
        raise ConfigError(
            f"no weight of {before.files.root} fits {run.files.root}, expected a stage of fedavg with layers "
            "of the same names and shapes; correct weights_from, and remove both directories"
        )
    write_state(run.files.plan / INITIAL_FILE, encode_weights({**initial, **fitting}))


def list_default_options(config: FederationConfig) -> dict[str, Any]:
    """Return the algorithm's options that a configuration leaves to their defaults, as values of JSON.

    Raises:
        ConfigError: the algorithm or an option does not exist, or has the wrong type.
    """
    options = complete_algorithm_options(config.algorithm, config.options)
    defaults: dict[str, Any] = to_json_value(
        {name: value for name, value in options.items() if name not in config.options}
    )
    return defaults


def _remove_unstarted(root: Path) -> None:
    """Remove the directory of a stage that has no plan, because its model was refused or it was stopped."""
    files = RunFiles(root)
    computed = (files.plan, files.server_state, files.summary)
    if files.note.exists() and not any(path.exists() for path in computed):
        with write_errors(root):
            shutil.rmtree(root)


def _check_settings(run: RunDirectory, stage: ExperimentStage, earlier: RunDirectory | None) -> None:
    """Refuse a directory that was started with other settings, or from another state of an earlier stage.

    `RunDirectory` has compared all of the configuration except `rounds`. A directory without stage.json is
    new, or an older version wrote it. Only the rounds of such a directory are compared.

    Args:
        stage: the stage to play in it.
        earlier: the finished stage from which this one starts, if any.

    Raises:
        ConfigError: a setting differs.
        StateError: a file is damaged, or cannot be read or written.
    """
    settings = {
        f.name: getattr(stage, f.name) for f in fields(ExperimentStage) if f.name not in ("name", "config")
    }
    # A later version may have another default, or further options, which do not count.
    settings |= {f"default {name}": value for name, value in list_default_options(stage.config).items()}
    if earlier:
        settings["start_sha256"] = _hash_state(earlier)
    is_new = not run.files.stage.exists()
    before = settings if is_new else {f.name: f.default for f in fields(stage)} | read_json(run.files.stage)
    before = settings | before | {"rounds": run.read_note()["config"]["rounds"]}
    for name, value in {**settings, "rounds": stage.config.rounds}.items():
        if before[name] != value:
            raise ConfigError(
                f"{run.files.root} contains a run with {name} = {before[name]!r}, expected {value!r}; "
                "remove it, or pass another --out"
            )
    if is_new:
        run.write(run.files.stage, json.dumps(settings) + "\n")


def _hash_state(run: RunDirectory) -> str:
    """Return the SHA-256 of the server state of a finished stage in hex.

    Raises:
        StateError: the state cannot be read.
    """
    path = run.files.server_state
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise StateError(
            f"cannot read {path}: {error.strerror}; remove {run.files.root} and run the command again"
        ) from error


def _add_seconds(
    summary: dict[str, Any],
    records: Sequence[Mapping[str, Any]],
    seconds: Mapping[str, Mapping[int, float]],
    personalization: int,
) -> None:
    """Add the processor time of each client to its row, and the mean over clients. See `ExperimentResult`.

    Args:
        summary: the summary of the stage.
        records: its rounds.
        seconds: seconds by client and round, see `read_seconds`.
        personalization: the number of the round after the last one.
    """
    totals: list[float | None] = []
    for row in summary["clients"]:
        measured = seconds.get(row["id"], {})
        rounds = [measured.get(record["round"]) for record in records if row["id"] in record["updates"]]
        row["round_seconds"] = _sum_measured(rounds)
        row["personalization_seconds"] = measured.get(personalization)
        totals.append(_sum_measured([row["round_seconds"], row["personalization_seconds"]]))
    total = _sum_measured(totals)
    summary["device_seconds"] = None if total is None else round(total / len(totals), 2)


def _sum_measured(values: Sequence[float | None]) -> float | None:
    """Return the sum of the values, or None if a value is missing."""
    measured = [value for value in values if value is not None]
    return sum(measured) if len(measured) == len(values) else None


def _measure_int8(run: RunDirectory, summary: dict[str, Any]) -> None:
    """Quantize the stored models in a separate process, and add their figures to the rows of the clients.

    Raises:
        ExportError: a model cannot be quantized.
    """
    command = [sys.executable, "-m", "edgefl", "export", "fleet", str(run.files.root), "--json"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise ExportError(f"cannot quantize the models of {run.files.root}: {lines[-1] if lines else ''}")
    exported = {row["id"]: row for row in json.loads(done.stdout)}
    for row in summary["clients"]:
        row["accuracy_shipped_int8"] = exported[row["id"]]["accuracy_int8"]
        row["tflite_bytes"] = exported[row["id"]]["tflite_bytes"]
    shutil.rmtree(run.files.mixtures)

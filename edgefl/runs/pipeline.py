"""A configuration becomes a run: data, partition, plan, rounds, client results."""

import logging
import math
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgefl.algorithms.registry import check_plan_options
from edgefl.config import FederationConfig, with_simulated_clients
from edgefl.data.dataset import as_float
from edgefl.data.mapped import MappedShards, map_dataset
from edgefl.data.partitions.client_partition import Allotment
from edgefl.errors import EdgeflError
from edgefl.loggers.scalars import Write, round_scalars
from edgefl.plan.spec import INITIAL_FILE, Plan, save_plan
from edgefl.runs.directory import RunDirectory
from edgefl.runs.progress import RoundProgress
from edgefl.server.divergence import explain_no_progress
from edgefl.simulation.clients import ClientResult, Federation, without_mixture
from edgefl.simulation.communication_cost import Traffic
from edgefl.simulation.engines.base import Engine, Serial
from edgefl.simulation.engines.processes import Processes
from edgefl.simulation.simulate import KeepResult, Record, Simulation, States, simulate
from edgefl.simulation.virtual_time import EngineTrainer, FleetFigures, simulate_fleet
from edgefl.system.files import write_atomic
from edgefl.system.progress import Telling
from edgefl.system.signals import deaf_children, ended_with_this
from edgefl.system.stderr import quiet_stderr
from edgefl.types import ServerState, Weights
from edgefl.wire.tensors import encode_weights

LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class Shared:
    """A data set as it was shared out.

    `shards` read it from a directory that lives as long as the context.
    """

    shards: MappedShards
    allotments: Mapping[str, Allotment]

    @property
    def test_counts(self) -> NDArray[np.int64]:
        """Number of test samples by class, int64[classes]."""
        return np.bincount(self.shards.dataset.y_test, minlength=self.shards.dataset.num_classes)


@contextmanager
def shared_out(config: FederationConfig) -> Iterator[Shared]:
    """Load the data set of a configuration, share it out, and map it. DataError, ConfigError."""
    from edgefl.data import load_data
    from edgefl.data.partitions.registry import make_allotments

    dataset = load_data(config.data, config.seed, input_shape=config.model.input_shape)
    allotments = make_allotments(dataset, config.partition, config.seed)
    with tempfile.TemporaryDirectory(prefix="edgefl-data-") as directory:
        yield Shared(map_dataset(dataset, allotments, Path(directory)), allotments)


@contextmanager
def reading(config: FederationConfig, telling: Telling) -> Iterator[Shared]:
    """Open `shared_out` and tell of it meanwhile."""
    telling.at(f"reading {config.data.name}, sharing it out to {config.partition.num_clients} clients")
    with shared_out(config) as shared:
        yield shared


def _build(config: FederationConfig) -> tuple[Plan, Weights]:
    with quiet_stderr():
        from edgefl.algorithms.plans import build_plan

        return build_plan(config)


def build_apart(config: FederationConfig) -> tuple[Plan, Weights]:
    """Build the plan in a process of its own: this one never holds TensorFlow.

    Raises what `build_plan` raises, and EdgeflError when that process is killed.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as pool, ended_with_this():
        try:
            with deaf_children():
                building = pool.submit(_build, config)
            return building.result()
        except BrokenProcessPool as error:
            raise EdgeflError(
                "the process that compiles the plan was killed, most often for want of memory; free some"
            ) from error


def open_plan(run: RunDirectory, config: FederationConfig) -> tuple[Plan, Weights]:
    """Return the run's plan, built if it is not there yet.

    The plan's options hold from then on, whatever the configuration says.

    Raises:
        PlanError: another version of edgefl began the run, with options that this one does not know.
    """
    found = run.plan()
    if found is not None:
        remedy = "go on with the version that began this run, or begin anew with another --out"
        check_plan_options(found[0].spec, f"{remedy} (this is {run.files.root})")
    if found is None:
        found = build_apart(with_simulated_clients(config))
        save_plan(found[0], run.files.plan)
        write_atomic(run.files.plan / INITIAL_FILE, encode_weights(found[1]))
    return found


def play(
    run: RunDirectory,
    config: FederationConfig,
    shared: Shared,
    *,
    processes: int = 1,
    measure_test: bool = True,
    open_engine: Callable[[Federation], Engine] | None = None,
    progress: RoundProgress | None = None,
    keep_result: KeepResult = without_mixture,
    start: ServerState | None = None,
    states: States | None = None,
    evaluate_every: int = 0,
    log: Write | None = None,
    without_rounds: Collection[str] = (),
) -> Simulation:
    """Play a run to its end, or continue it. The directory holds each round as soon as it is over.

    Args:
        run: the directory of the run.
        config: the federation.
        shared: the data set and who has which samples.
        processes, open_engine, keep_result, evaluate_every, without_rounds: see `simulate`.
        measure_test: measure every mixture on the data set's test samples too.
        progress: receives rounds and clients that are done.
        start, states: the end of another run, to personalize from it in place of this run's checkpoint.
        log: receives each round's scalars.
    """
    plan, initial = open_plan(run, config)
    dataset = shared.shards.dataset
    traffic = Traffic(run.held, config.codec, config.task_settings)
    if progress:
        progress.begin(run.state.round - 1 if run.state else 0)

    def save(state: ServerState, record: Record) -> None:
        run.save_round(state, record, traffic.held, last=state.round > config.rounds)
        if log:
            log(record.round, round_scalars(asdict(record)))
        if progress:
            progress(state, record)

    done = 0

    def count(client_id: str, result: ClientResult) -> ClientResult:
        nonlocal done
        done += 1
        if progress:
            progress.ending(done, len(shared.shards))
        return keep_result(client_id, result)

    test = (as_float(dataset.x_test), dataset.y_test) if measure_test else None
    return simulate(
        plan,
        initial,
        shared.shards,
        config,
        processes=processes,
        open_engine=open_engine,
        test=test,
        start=start or run.state,
        states=run.states if states is None else states,
        traffic=traffic,
        progress=save,
        keep_result=count,
        evaluate_every=evaluate_every,
        losses=[] if start else [record["loss"] for record in run.records()],
        without_rounds=without_rounds,
    )


def play_fleet(
    run: RunDirectory,
    config: FederationConfig,
    shared: Shared,
    *,
    processes: int = 1,
    open_engine: Callable[[Federation], Engine] | None = None,
    progress: RoundProgress | None = None,
    keep_result: KeepResult = without_mixture,
    log: Write | None = None,
) -> tuple[Simulation, FleetFigures]:
    """Play a run in virtual time, see `edgefl.simulation.virtual_time`. It cannot be continued.

    Args:
        run: the directory of the run.
        config: the federation, with `[fleet]`.
        shared: the data set and who has which samples.
        processes, open_engine, keep_result: see `simulate`.
        progress: receives rounds and clients that are done.
        log: receives each round's scalars.
    """
    plan, initial = open_plan(run, config)
    dataset = shared.shards.dataset
    if progress:
        progress.begin(0)
    results: dict[str, ClientResult] = {}

    def save(state: ServerState, record: Record) -> None:
        run.save_round(state, record, {}, last=state.round > config.rounds)
        if log:
            log(record.round, round_scalars(asdict(record)))
        if progress:
            progress(state, record)

    def count(client_id: str, result: ClientResult) -> ClientResult:
        results[client_id] = keep_result(client_id, result)
        if progress:
            progress.ending(len(results), len(shared.shards))
        return results[client_id]

    test = as_float(dataset.x_test), dataset.y_test
    federation = Federation(plan, config.seed, shared.shards, test)
    counts = {client_id: len(shared.shards[client_id].y_train) for client_id in sorted(shared.shards)}
    with (open_engine or partial(_local_engine, processes))(federation) as engine:
        trainer = EngineTrainer(plan, engine, counts, count)
        state, figures = simulate_fleet(
            plan,
            initial,
            config,
            counts,
            trainer,
            log=lambda hours, line: LOGGER.info("%.2f h: %s", hours, line),
            progress=save,
        )
    records = run.records()
    losses = [record["loss"] for record in records]
    accuracy = records[-1].get("accuracy_mean", math.nan) if records else math.nan
    if warning := explain_no_progress(losses, plan.spec.num_classes, accuracy):
        LOGGER.warning(warning)
    kept = {client_id: results[client_id] for client_id in sorted(results)}
    return Simulation(state, kept), figures


def _local_engine(processes: int, federation: Federation) -> Engine:
    return Serial(federation) if processes == 1 else Processes(federation, processes)

"""Runs a simulated federation from its configuration: data, partition, plan, rounds, client results."""

import logging
import math
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from edgefl.base.config import FederationConfig, SamplesConfig, with_simulated_clients
from edgefl.base.errors import ConfigError, DataError, EdgeflError
from edgefl.base.round_scalars import Write, extract_round_scalars
from edgefl.base.system.files import write_atomic
from edgefl.base.system.progress import Progress
from edgefl.base.system.signals import ignore_ctrl_c, terminate_children
from edgefl.base.system.stderr import suppress_stderr
from edgefl.base.tasks.config import BINARY_LOSS
from edgefl.base.types import ServerState, Shard, Weights
from edgefl.data.dataset import Dataset, as_float
from edgefl.data.mapped_shards import MappedShards, map_dataset
from edgefl.data.partitions.client_partition import ClientPartition
from edgefl.data.task_form import to_task_form
from edgefl.learning.algorithms.range_test import RATE, describe_lowered_rate
from edgefl.learning.algorithms.registry import check_plan_options, resolve_algorithm_options
from edgefl.program.learner.base import Learner
from edgefl.program.learner.litert import LiteRTLearner
from edgefl.program.models.input_scaling import InputScaling, choose_samples, describe_scaling, find_scaling
from edgefl.program.models.zoo.catalog import list_models
from edgefl.program.plan.int8 import describe_missing_int8
from edgefl.program.plan.measured_values import with_learning_rate
from edgefl.program.plan.spec import INITIAL_FILE, Plan, read_num_classes, save_plan
from edgefl.protocol.server.divergence import explain_no_progress
from edgefl.protocol.wire.divergence_message import FederationDivergedError
from edgefl.protocol.wire.tensors import encode_weights
from edgefl.simulation.clients import ClientResult, SimulatedFederation, drop_mixture
from edgefl.simulation.communication_cost import CommunicationCost
from edgefl.simulation.engines.base import Engine, OpenEngine, SerialEngine
from edgefl.simulation.measurement import find_learning_rate, normalize_plan
from edgefl.simulation.runs.directory import RunDirectory
from edgefl.simulation.runs.progress import RoundProgress
from edgefl.simulation.runs.round_records import find_recorded_divergence, read_median_accuracy
from edgefl.simulation.simulate import (
    Checkpoint,
    KeepResult,
    Record,
    RoundCallback,
    Simulation,
    simulate,
)
from edgefl.simulation.virtual_time import EngineTrainer, simulate_fleet

LOGGER = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True)
class PartitionedDataset:
    """A data set that is divided among clients.

    Attributes:
        shards: samples by client id, read from a temporary directory. They can be used only while the
            context of `open_partitioned_dataset` is open.
        client_partitions: client partitions by client id.
    """

    shards: MappedShards
    client_partitions: Mapping[str, ClientPartition]

    @property
    def test_counts(self) -> NDArray[np.int64]:
        """Number of test samples of each class, shape (classes,), int64."""
        return np.bincount(self.shards.dataset.y_test, minlength=self.shards.dataset.num_classes)


def resolve_samples(config: FederationConfig, report: Callable[[str], None] | None = None) -> SamplesConfig:
    """Return unit and layout of the samples, as the plan of this configuration states them.

    A model that scales its own input gets samples that are not divided. A model of the user is built in
    another process, so that this process never loads TensorFlow.

    Args:
        report: receives a sentence about a model that scales its own input.

    Raises:
        ConfigError: the model does not exist or does not fit the configuration, or both scale.
        EdgeflError: the other process ended early.
    """
    if config.samples.scale == 1:
        return config.samples
    if config.model.name in list_models():
        scaling = find_scaling(config)
    else:
        scaling = run_in_subprocess(find_scaling_quietly, config)
    if scaling is not None and report is not None and not config.samples.scale:
        report(describe_scaling(scaling))
    return choose_samples(config.samples, scaling, config.model.input_shape)


def find_scaling_quietly(config: FederationConfig) -> InputScaling | None:
    """Call `find_scaling` without the messages of TensorFlow."""
    with suppress_stderr():
        return find_scaling(config)


@contextmanager
def open_partitioned_dataset(
    config: FederationConfig, *, pooled: bool = False, report: Callable[[str], None] | None = None
) -> Iterator[PartitionedDataset]:
    """Load the data set of a configuration, partition it, and map it into memory.

    Args:
        pooled: whether one client gets the samples of all clients.
        report: receives a sentence about a model that scales its own input.

    Raises:
        DataError: the data set cannot be read or partitioned, its samples do not fit the model, or the disk
            is full.
        ConfigError: the partition or an option is unknown, or an option has the wrong type.
    """
    from edgefl.data import load_data
    from edgefl.data.partitions.client_partition import pool_clients
    from edgefl.data.partitions.registry import make_client_partitions

    dataset = load_data(
        config.data,
        config.seed,
        input_shape=config.model.input_shape,
        samples=resolve_samples(config, report),
    )
    shape = dataset.x_train.shape[1:]
    if shape != config.model.input_shape:
        raise DataError(
            f"[data] {config.data.name} has samples of shape {list(shape)}, expected input_shape of [model], "
            f'{list(config.model.input_shape)}; name your own samples, such as name = "npz:pi-1.npz,pi-2.npz"'
        )
    _check_labels(dataset, config)
    client_partitions = make_client_partitions(dataset, config.partition, config.seed)
    if pooled:
        client_partitions = pool_clients(client_partitions)
    with tempfile.TemporaryDirectory(prefix="edgefl-data-") as directory:
        shards = map_dataset(dataset, client_partitions, Path(directory))
        to_task_form(shards[min(shards)], config.task)  # raises an error before the model is compiled
        yield PartitionedDataset(shards, client_partitions)


def _check_labels(dataset: Dataset, config: FederationConfig) -> None:
    """Check that the model has an output for each label of a classification.

    Raises:
        DataError: a label is too large.
    """
    if not config.task.is_classification or not dataset.has_classes:
        return
    labels = np.concatenate([dataset.y_train, dataset.y_test])
    largest = int(labels.max(initial=0))
    if largest >= config.model.num_classes and config.task.loss == BINARY_LOSS:
        raise DataError(
            f"[data] {config.data.name} has the label {largest}, expected 0 and 1 for loss = {BINARY_LOSS!r} "
            "of [task]; leave loss out, and set num_classes of [model]"
        )
    if largest >= config.model.num_classes:
        raise DataError(
            f"[data] {config.data.name} has the label {largest}, expected labels from 0 to "
            f"{config.model.num_classes - 1} for num_classes = {config.model.num_classes} of [model]; set "
            f"num_classes to {largest + 1}, or number the labels from 0"
        )


@contextmanager
def open_dataset_with_progress(config: FederationConfig, progress: Progress) -> Iterator[PartitionedDataset]:
    """Call `open_partitioned_dataset` and show this step as progress.

    Raises:
        DataError: as in `open_partitioned_dataset`.
        ConfigError: as in `open_partitioned_dataset`.
    """
    progress.update_live(
        f"loading {config.data.name} and dividing it among {config.partition.num_clients} clients"
    )
    with open_partitioned_dataset(config, report=progress) as partitioned:
        yield partitioned


def _build(config: FederationConfig) -> tuple[Plan, Weights]:
    with suppress_stderr():
        from edgefl.learning.algorithms.plans import build_plan

        return build_plan(config)


def build_plan_in_subprocess(config: FederationConfig) -> tuple[Plan, Weights]:
    """Build the plan in another process, so that this process never loads TensorFlow.

    Returns:
        The plan and its initial weights.

    Raises:
        ConfigError: the model or an option does not exist.
        PlanError: a layer cannot be compiled.
        EdgeflError: the other process ended early.
    """
    return run_in_subprocess(_build, config)


def run_in_subprocess(function: Callable[[FederationConfig], T], config: FederationConfig) -> T:
    """Return the result of a function that imports TensorFlow, from another process.

    Args:
        function: a function at the top of a module.
        config: its argument.

    Raises:
        EdgeflError: the function raises it, or the other process ended early.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as pool, terminate_children():
        try:
            with ignore_ctrl_c():
                running = pool.submit(function, config)
            return running.result()
        except BrokenProcessPool as error:
            raise EdgeflError(
                "the process that compiles the plan ended early; free memory if it ran out, and in a script "
                'call this below `if __name__ == "__main__":`'
            ) from error


def load_or_build_plan(
    run: RunDirectory, config: FederationConfig, shards: Mapping[str, Shard]
) -> tuple[Plan, Weights]:
    """Return the run's plan and initial weights. Build and save them if the run has no plan yet.

    An existing plan keeps its options, even if the configuration has other options.

    Args:
        shards: samples of the clients of the rounds by client id. The plan gets their mean and std with
            `normalize` of `[model]`, and a learning rate that suits them with `range_test`.

    Raises:
        PlanError: the plan is damaged, a layer cannot be compiled, or another version of edgefl built the
            plan with an option that this version does not have.
        WireError: the initial weights do not match the plan.
        ConfigError: the model or an option does not exist.
        EdgeflError: the process that builds the plan ended early.
        OSError: the plan cannot be written.
    """
    plan_and_weights = run.read_plan()
    if plan_and_weights is not None:
        remedy = "continue with the version that started this run, or start again with another --out"
        check_plan_options(plan_and_weights[0].spec, f"{remedy} (this is {run.files.root})")
    if plan_and_weights is None:
        plan, initial = build_plan_in_subprocess(with_simulated_clients(config))
        plan = normalize_plan(plan, shards, config.seed)
        if config.range_test:
            plan = find_learning_rate(plan, initial, shards, config.seed)
        plan_and_weights = plan, initial
        if warning := describe_missing_int8(plan_and_weights[0].template):
            LOGGER.warning(warning)
        save_plan(plan_and_weights[0], run.files.plan)
        write_atomic(run.files.plan / INITIAL_FILE, encode_weights(plan_and_weights[1]))
    return plan_and_weights


def _can_lower_rate(run: RunDirectory, plan: Plan, config: FederationConfig) -> bool:
    """Return whether a range test raised the rate of a run, and no result would be lost with its rounds."""
    if not config.range_test or run.files.summary.exists():
        return False
    return bool(plan.spec.options.get(RATE, 0.0) > resolve_algorithm_options(config).get(RATE, 0.0))


def _lower_rate(
    run: RunDirectory, plan: Plan, config: FederationConfig, error: FederationDivergedError
) -> Plan:
    """Return the plan with the algorithm's own rate, with which the run starts again after a divergence.

    Args:
        run: the directory of the run. Its rounds are removed.
        error: how the training diverged. It is raised again unless a range test chose a larger rate, and if
            the run has a result already, to which rounds were added.
    """
    if not _can_lower_rate(run, plan, config):
        raise error
    configured = with_learning_rate(plan, resolve_algorithm_options(config)[RATE])
    LOGGER.warning(describe_lowered_rate(error, plan.spec, configured.spec))
    run.forget_rounds()
    save_plan(configured, run.files.plan)
    return configured


def play_run(
    run: RunDirectory,
    config: FederationConfig,
    partitioned: PartitionedDataset,
    *,
    open_learner: Callable[[Plan], Learner] = LiteRTLearner,
    open_engine: OpenEngine = SerialEngine,
    measure_test: bool = True,
    checkpoint: Checkpoint | None = None,
    progress: RoundProgress | None = None,
    log: Write | None = None,
    keep_result: KeepResult = drop_mixture,
    evaluate_every: int = 0,
    without_rounds: Collection[str] = (),
) -> Simulation:
    """Run a federation to its end, from its last checkpoint if it has one.

    Each round is written to the directory when it ends. With the table `[fleet]`, the federation runs in
    virtual time, see `edgefl.simulation.virtual_time`. It then starts with round 1.

    Args:
        partitioned: the data set and its client partitions.
        open_learner: makes the learner that runs the plan, see `SimulatedFederation`.
        open_engine: opens the engine that runs clients, see `simulate`.
        measure_test: whether every mixture is also measured on the test samples of the data set.
        checkpoint: where to begin, such as at the last state of another run. None continues this run.
        progress: receives completed rounds and clients.
        log: receives the number and the scalars of each round.
        keep_result: called with each client result, see `simulate`.
        evaluate_every: number of rounds between evaluations, see `simulate`. It has no effect in virtual
            time.
        without_rounds: ids of clients that are only personalized. It has no effect in virtual time.

    Returns:
        The last server state and the client results.

    Raises:
        PlanError: as in `load_or_build_plan`.
        StateError: a file of the run is damaged or cannot be written.
        FederationDivergedError: training diverged. If a range test chose a larger rate than the algorithm's
            own, the run starts again with this one instead.
        EdgeflError: any other error of `load_or_build_plan`, `simulate` or `simulate_fleet`.
    """
    if config.fleet is not None and (checkpoint is not None or run.state is not None):
        raise ConfigError(
            f"{run.files.root} contains a run, expected a new directory: a run in virtual time cannot be "
            "continued; start again with another --out"
        )
    if checkpoint is None and run.state is not None and run.state.round - 1 > config.rounds:
        raise ConfigError(
            f"{run.files.root} has {run.state.round - 1} rounds, expected at most {config.rounds}, the "
            "rounds of [federation]; raise rounds, or use another directory"
        )
    shards = partitioned.shards
    dataset = shards.dataset
    test = (as_float(dataset.x_test), dataset.y_test) if measure_test else None
    trained = {name: shards[name] for name in shards if name not in without_rounds}
    if progress and not run.files.plan.exists():
        progress.report_compilation(config)
    plan, initial = load_or_build_plan(run, config, trained if without_rounds else shards)

    def play(plan: Plan) -> Simulation:
        records = () if checkpoint else run.read_records()
        begin = checkpoint or Checkpoint(
            server=run.state,
            clients=run.states,
            losses=[record["loss"] for record in records],
        )
        traffic = begin.traffic or CommunicationCost(run.sent_models, config.codec, config.task_settings)
        begin = replace(begin, traffic=traffic)
        can_lower_rate = _can_lower_rate(run, plan, config)
        if progress:
            progress.begin(run.state.round - 1 if run.state else 0)

        def save(state: ServerState, record: Record) -> None:
            run.save_round(state, record, traffic.sent_models, last=state.round > config.rounds)
            if log:
                log(record.round, extract_round_scalars(asdict(record)))
            if progress:
                progress(state, record)

        done = 0

        def keep(client_id: str, result: ClientResult) -> ClientResult:
            nonlocal done
            done += 1
            if progress:
                progress.report_client(done, len(shards))
            return keep_result(client_id, result)

        if config.fleet is not None:
            federation = SimulatedFederation(
                plan=plan, seed=config.seed, shards=shards, test=test, open_learner=open_learner
            )
            with open_engine(federation) as engine:
                return _play_in_virtual_time(
                    engine, plan, initial, config, shards, save, keep, can_lower_rate
                )
        if divergence := find_recorded_divergence(records, config, plan.spec, can_lower_rate):
            raise FederationDivergedError(divergence)
        return simulate(
            plan,
            initial,
            shards,
            config,
            open_learner=open_learner,
            open_engine=open_engine,
            test=test,
            checkpoint=begin,
            progress=save,
            keep_result=keep,
            evaluate_every=evaluate_every,
            without_rounds=without_rounds,
            can_lower_rate=can_lower_rate,
        )

    try:
        return play(plan)
    except FederationDivergedError as error:
        return play(_lower_rate(run, plan, config, error))


def _play_in_virtual_time(
    engine: Engine,
    plan: Plan,
    initial: Weights,
    config: FederationConfig,
    shards: Mapping[str, Shard],
    save: RoundCallback,
    keep_result: KeepResult,
    can_lower_rate: bool,
) -> Simulation:
    counts = {client_id: len(shards[client_id].y_train) for client_id in sorted(shards)}
    trainer = EngineTrainer(plan, engine, counts, keep_result)
    losses: list[float] = []
    accuracy = math.nan

    def progress(state: ServerState, record: Record) -> None:
        nonlocal accuracy
        save(state, record)
        losses.append(record.loss)
        accuracy = read_median_accuracy({"updates": record.updates})

    state, figures = simulate_fleet(
        plan,
        initial,
        config,
        counts,
        trainer,
        log=lambda hours, line: LOGGER.info("%.2f h: %s", hours, line),
        progress=progress,
        can_lower_rate=can_lower_rate,
    )
    if warning := explain_no_progress(losses, read_num_classes(plan.spec) or 0, accuracy):
        LOGGER.warning(warning)
    results = dict(sorted(trainer.results.items()))
    return Simulation(state=state, results=results, fleet=figures)

"""Searches all stages in order. Each stage uses the best options of the stages before it.

A completed stage is not searched again.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from edgefl.base.config import FederationConfig
from edgefl.base.config.toml import to_toml
from edgefl.base.errors import ConfigError
from edgefl.base.rng import derive_rng
from edgefl.base.types import ServerState
from edgefl.data import load_data
from edgefl.data.partitions.registry import make_client_partitions
from edgefl.data.resident_shards import ResidentShards
from edgefl.lab.tune.directory import TuneDirectory, TuneResult
from edgefl.lab.tune.plans import BuiltPlan, apply_options, open_plan_builder
from edgefl.lab.tune.search import TrialCandidate, choose_best, run_trials
from edgefl.lab.tune.space import draw_points, with_options
from edgefl.lab.tune.stages import TUNE_STAGES, TuneStage, configure_experts
from edgefl.lab.tune.validation import make_validation_shards, with_iid_partition
from edgefl.simulation.engines.ray import RayEngine
from edgefl.simulation.engines.ray_session import open_ray_session
from edgefl.simulation.measurement import normalize_plan
from edgefl.simulation.runs.pipeline import resolve_samples
from edgefl.simulation.simulate import simulate

BuildPlan = Callable[[FederationConfig], BuiltPlan]
ReportLine = Callable[[str], None]


def tune_federation(
    config: FederationConfig,
    out: Path,
    stages: Sequence[TuneStage],
    samples: int,
    *,
    processes: int = 1,
    asha: bool = True,
    report: ReportLine = lambda text: None,
) -> tuple[list[TuneResult], Path]:
    """Search for the best options of some stages.

    The first trial of a stage only uses the best options of the earlier stages. If ASHA does not stop it, the
    best trial is at least as good on the held-out samples.

    Args:
        config: the configuration of the federation, with the algorithm AEM.
        out: the directory of the search. An existing search is continued.
        stages: the stages, in their order.
        samples: number of trials per stage.
        processes: number of trials that run at the same time.
        asha: whether ASHA stops trials with low scores early.
        report: receives lines about the progress.

    Returns:
        The result of each stage, and the path of federation.toml with the best options.

    Raises:
        ConfigError: the algorithm is not AEM, the directory contains other files or another search, or a
            completed stage used other options of the earlier stages.
        DataError: the data cannot be loaded or partitioned, a client has too few samples, or no trial of a
            stage ran to its end.
        PlanError: a layer cannot be compiled.
        StateError: a file of the search is damaged or cannot be written.
        EdgeflError: a trial failed, a process was killed, or Ray cannot be reached.
    """
    if config.algorithm != "aem":
        raise ConfigError(
            f"the algorithm is {config.algorithm!r}, expected 'aem': the four stages tune the parts of AEM"
        )
    directory = TuneDirectory(out, config)
    iid = with_iid_partition(config)
    dataset = load_data(
        config.data, config.seed, input_shape=config.model.input_shape, samples=resolve_samples(config)
    )
    shards = make_validation_shards(
        dataset, make_client_partitions(dataset, iid.partition, config.seed), config.seed
    )
    results: list[TuneResult] = []
    build: BuildPlan | None = None
    with ExitStack() as stack:
        for stage in stages:
            done = directory.read_result(stage)
            if done is None:
                report(f"stage {stage.number}, {stage.description}: {samples} trials")
                if build is None:
                    stack.enter_context(open_ray_session(processes))
                    builder = stack.enter_context(open_plan_builder())
                    build = partial(_build_normalized, builder, shards)
                done = _search_stage(stage, iid, directory, shards, build, samples, processes, asha, report)
                directory.save_result(stage, done)
            elif done.given != directory.read_earlier_options(stage):
                raise ConfigError(
                    f"stage {stage.number} in {out} was searched with other options of the earlier stages; "
                    "remove its file to search it again"
                )
            else:
                report(f"stage {stage.number}, {stage.description}: already complete")
            results.append(done)
    best = {
        name: value
        for stage in TUNE_STAGES
        if (result := directory.read_result(stage))
        for name, value in result.best.items()
    }
    return results, directory.save_federation(to_toml(with_options(config, best)))


def _search_stage(
    stage: TuneStage,
    iid: FederationConfig,
    directory: TuneDirectory,
    shards: ResidentShards,
    build: BuildPlan,
    samples: int,
    processes: int,
    asha: bool,
    report: ReportLine,
) -> TuneResult:
    earlier_options = directory.read_earlier_options(stage)
    base = with_options(iid, earlier_options)
    start = (
        _load_or_train_experts(base, earlier_options, directory, shards, build, processes, report)
        if stage.experts
        else None
    )
    points: list[dict[str, Any]] = [
        {},
        *draw_points(stage.space(base), samples - 1, derive_rng(iid.seed, stage.number, "tune")),
    ]
    configs = [stage.configure(with_options(base, options)) for options in points]
    candidates = [
        TrialCandidate(options, config, build(config))
        for options, config in zip(points, configs, strict=True)
    ]
    counter = iter(range(1, samples + 1))
    outcomes = run_trials(
        stage,
        candidates,
        shards,
        start,
        processes=processes,
        asha=asha,
        on_trial=lambda: report(f"  {next(counter)} of {samples} trials are complete"),
    )
    best = choose_best(stage, outcomes)
    return TuneResult(
        stage=stage.number,
        name=stage.name,
        given=earlier_options,
        best=dict(best.options),
        score=best.score,
        trials=[asdict(outcome) for outcome in outcomes],
    )


def _build_normalized(build: BuildPlan, shards: ResidentShards, config: FederationConfig) -> BuiltPlan:
    plan, initial = build(config)
    return normalize_plan(plan, shards, config.seed), initial


def _load_or_train_experts(
    base: FederationConfig,
    earlier_options: dict[str, Any],
    directory: TuneDirectory,
    shards: ResidentShards,
    build: BuildPlan,
    processes: int,
    report: ReportLine,
) -> ServerState:
    """Return the cluster models for the trials of the gate. Train and save them if they are missing."""
    experts = directory.load_experts(earlier_options)
    if experts is None:
        config = configure_experts(base)
        report(f"  training the cluster models for the gate in {config.rounds} rounds")
        plan, initial = apply_options(build(config), config)
        end = simulate(
            plan, initial, shards, config, open_engine=lambda federation: RayEngine(federation, processes)
        )
        experts = replace(
            end.state,
            models={name: model for name, model in end.state.models.items() if name.startswith("expert")},
        )
        directory.save_experts(earlier_options, experts)
    return experts

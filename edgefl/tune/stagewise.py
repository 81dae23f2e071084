"""A whole search: stage by stage, each with what the former found.

A stage that is done is not searched again.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from edgefl.config import FederationConfig
from edgefl.config.toml import to_toml
from edgefl.data import load_data
from edgefl.data.partitions.registry import make_allotments
from edgefl.data.resident import ResidentShards
from edgefl.errors import ConfigError
from edgefl.rng import rng_for
from edgefl.simulation.engines.ray import RayEngine
from edgefl.simulation.engines.ray_session import ray_session
from edgefl.simulation.simulate import simulate
from edgefl.tune.directory import Found, TuneDirectory
from edgefl.tune.plans import Built, fitted, plan_builder
from edgefl.tune.search import Candidate, best_of, search
from edgefl.tune.space import draw, with_options
from edgefl.tune.stages import STAGES, Stage, experts_setting
from edgefl.tune.validation import setting_of, validation_shards
from edgefl.types import ServerState

Build = Callable[[FederationConfig], Built]
Tell = Callable[[str], None]


def tune_federation(
    config: FederationConfig,
    out: Path,
    stages: Sequence[Stage],
    samples: int,
    *,
    processes: int = 1,
    asha: bool = True,
    tell: Tell = lambda text: None,
) -> tuple[list[Found], Path]:
    """Search the stages with `samples` trials each.

    Return what each stage found, and the path of the best configuration.

    The first trial of a stage is the configuration as it is, so that the best is never worse on the samples
    that are held back. Raises ConfigError for another algorithm than AEM or a directory of another search,
    DataError when the data cannot be shared out.
    """
    if config.algorithm != "aem":
        raise ConfigError(
            f"the algorithm is {config.algorithm!r}, expected 'aem': the four stages are those of its parts"
        )
    directory = TuneDirectory(out, config)
    iid = setting_of(config)
    dataset = load_data(config.data, config.seed, input_shape=config.model.input_shape)
    shards = validation_shards(dataset, make_allotments(dataset, iid.partition, config.seed), config.seed)
    found: list[Found] = []
    build: Build | None = None
    with ExitStack() as stack:
        for stage in stages:
            done = directory.found(stage)
            if done is None:
                tell(f"stage {stage.number}, {stage.what}: {samples} trials")
                if build is None:
                    stack.enter_context(ray_session(processes))
                    build = stack.enter_context(plan_builder())
                done = _search(stage, iid, directory, shards, build, samples, processes, asha, tell)
                directory.save(stage, done)
            elif done.given != directory.given(stage):
                raise ConfigError(
                    f"stage {stage.number} in {out} was searched with other options of the stages before; "
                    "remove its file"
                )
            else:
                tell(f"stage {stage.number}, {stage.what}: done before")
            found.append(done)
    best = {
        name: value
        for stage in STAGES
        if (each := directory.found(stage))
        for name, value in each.best.items()
    }
    return found, directory.save_federation(to_toml(with_options(config, best)))


def _search(
    stage: Stage,
    iid: FederationConfig,
    directory: TuneDirectory,
    shards: ResidentShards,
    build: Build,
    samples: int,
    processes: int,
    asha: bool,
    tell: Tell,
) -> Found:
    given = directory.given(stage)
    base = with_options(iid, given)
    start = _experts(base, given, directory, shards, build, processes, tell) if stage.experts else None
    points: list[dict[str, Any]] = [
        {},
        *draw(stage.space(base), samples - 1, rng_for(iid.seed, stage.number, "tune")),
    ]
    made = [stage.setting(with_options(base, options)) for options in points]
    candidates = [
        Candidate(options, config, build(config)) for options, config in zip(points, made, strict=True)
    ]
    over = iter(range(1, samples + 1))
    outcomes = search(
        stage,
        candidates,
        shards,
        start,
        processes=processes,
        asha=asha,
        tell=lambda: tell(f"  {next(over)} of {samples} trials are over"),
    )
    best = best_of(stage, outcomes)
    return Found(
        stage.number,
        stage.name,
        given,
        dict(best.options),
        best.score,
        [asdict(outcome) for outcome in outcomes],
    )


def _experts(
    base: FederationConfig,
    given: dict[str, Any],
    directory: TuneDirectory,
    shards: ResidentShards,
    build: Build,
    processes: int,
    tell: Tell,
) -> ServerState:
    """Return the cluster models that gates are tried on, trained if they are not there yet."""
    known = directory.experts(given)
    if known is None:
        config = experts_setting(base)
        tell(f"  training {config.rounds} rounds of cluster models for the gates")
        plan, initial = fitted(build(config), config)
        end = simulate(
            plan, initial, shards, config, open_engine=lambda federation: RayEngine(federation, processes)
        )
        known = replace(
            end.state,
            models={name: model for name, model in end.state.models.items() if name.startswith("expert")},
        )
        directory.save_experts(given, known)
    return known

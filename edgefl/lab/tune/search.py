"""Runs the trials of one stage with Ray Tune, either all to their end or with ASHA.

ASHA stops trials with low scores early. The points are drawn before the trials, so they depend only on the
seed. The trials that ASHA stops depend on the order of their reports, and so on the number of processes.

Source: Liaw et al., arXiv:1807.05118 (Ray Tune); Li et al., arXiv:1810.05934 (ASHA).
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import ray
from ray import tune

from edgefl.base.config import FederationConfig
from edgefl.base.errors import DataError, DivergedError, EdgeflError
from edgefl.base.types import ServerState
from edgefl.data.resident_shards import ResidentShards
from edgefl.lab.tune.plans import BuiltPlan, apply_options
from edgefl.lab.tune.space import TrialOptions
from edgefl.lab.tune.stages import TuneStage
from edgefl.lab.tune.trial import REDUCTION_FACTOR, Trial, find_first_report, run_trial

TRIAL_FULL = "full"
TRIAL_STOPPED = "stopped"
TRIAL_DIVERGED = "diverged"


@dataclass(frozen=True)
class TrialOutcome:
    """The outcome of a trial.

    Attributes:
        trial: number of the trial, from 0.
        options: options of the trial.
        score: mean accuracy at its last report, from 0 to 1. 0 if the trial diverged.
        step: number of steps until its last report.
        seconds: duration in seconds.
        ended: `full`, `stopped` by ASHA, or `diverged`.
    """

    trial: int
    options: TrialOptions
    score: float
    step: int
    seconds: float
    ended: str


@dataclass(frozen=True)
class TrialCandidate:
    """A point of the search space.

    Attributes:
        options: the options of the point.
        config: the configuration with these options.
        built: a plan with the structure of the configuration, and its initial weights.
    """

    options: TrialOptions
    config: FederationConfig
    built: BuiltPlan


def _play(
    choice: dict[str, int],
    stage: TuneStage,
    configs: Sequence[FederationConfig],
    plans: Sequence[Any],
    shards: Any,
    start: Any,
) -> None:
    """Run a trial in a process of Ray, and report a divergence as a score of 0.

    Plans, shards and start are in Ray's object store.

    Raises:
        EdgeflError: an error of `run_trial` other than a divergence.
    """
    config = configs[choice["trial"]]
    plan, initial = apply_options(ray.get(plans[choice["trial"]]), config)
    trial = Trial(
        stage=stage, config=config, plan=plan, initial=initial, shards=ray.get(shards), start=ray.get(start)
    )
    try:
        run_trial(trial, lambda step, score: tune.report({"step": step, "score": score, "diverged": False}))
    except DivergedError:
        tune.report({"step": stage.count_steps(config), "score": 0.0, "diverged": True})


def _ignore() -> None:
    pass


class _TrialCallback(tune.Callback):  # type: ignore[misc]
    """Calls a function when a trial ends."""

    def __init__(self, on_trial: Callable[[], None]) -> None:
        self._on_trial = on_trial

    def __reduce__(self) -> tuple[type["_TrialCallback"], tuple[Callable[[], None]]]:
        # Ray stores the callbacks of a search. A restored callback cannot call the original function.
        return _TrialCallback, (_ignore,)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._on_trial()


def run_trials(
    stage: TuneStage,
    candidates: Sequence[TrialCandidate],
    shards: ResidentShards,
    start: ServerState | None,
    *,
    processes: int,
    asha: bool,
    on_trial: Callable[[], None],
) -> tuple[TrialOutcome, ...]:
    """Run the trials of the candidates in the connected Ray.

    A trial that raises DivergedError, such as for a loss that is not finite, counts as diverged. Any other
    error of a trial ends the search.

    Args:
        candidates: the points to try. At least one.
        shards: samples by client id.
        start: state with the cluster models that all trials start from. None if the stage needs none.
        processes: number of trials that run at the same time.
        asha: whether ASHA stops trials.
        on_trial: called when a trial ends.

    Returns:
        The outcome of each trial, in the order of the candidates.

    Raises:
        EdgeflError: a trial failed. The message contains the error of the trial.
    """
    steps = stage.count_steps(candidates[0].config)
    # Ray Tune must not draw tables on standard output, or write logs for TensorBoard and as CSV.
    os.environ.update({"RAY_AIR_NEW_OUTPUT": "0", "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1"})
    from ray.tune.schedulers import ASHAScheduler

    scheduler = (
        ASHAScheduler(
            time_attr="step",
            max_t=steps,
            grace_period=find_first_report(steps),
            reduction_factor=REDUCTION_FACTOR,
        )
        if asha
        else None
    )
    stored: dict[int, Any] = {}
    for candidate in candidates:
        if id(candidate.built) not in stored:
            stored[id(candidate.built)] = ray.put(candidate.built)
    play = partial(
        _play,
        stage=stage,
        configs=[candidate.config for candidate in candidates],
        plans=[stored[id(candidate.built)] for candidate in candidates],
        shards=ray.put(shards),
        start=ray.put(start),
    )
    with TemporaryDirectory(prefix="edgefl-tune-", ignore_cleanup_errors=True) as directory:
        tuner = tune.Tuner(
            tune.with_resources(play, {"cpu": 1}),
            param_space={"trial": tune.grid_search(list(range(len(candidates))))},
            tune_config=tune.TuneConfig(
                metric="score",
                mode="max",
                scheduler=scheduler,
                max_concurrent_trials=processes,
                reuse_actors=True,
            ),
            run_config=tune.RunConfig(
                storage_path=directory, name=stage.name, verbose=0, callbacks=[_TrialCallback(on_trial)]
            ),
        )
        results = list(tuner.fit())
    outcomes = [_read_outcome(stage, result, candidates, steps) for result in results]
    return tuple(sorted(outcomes, key=lambda outcome: outcome.trial))


def _read_outcome(
    stage: TuneStage, result: Any, candidates: Sequence[TrialCandidate], steps: int
) -> TrialOutcome:
    metrics = result.metrics or {}
    if result.error is not None or "score" not in metrics:
        # `cause` is the error without Ray's traceback.
        reason = getattr(result.error, "cause", None) or result.error or "it reported no score"
        raise EdgeflError(f"a trial of stage {stage.number} ({stage.name}) failed: {reason}")
    trial = metrics["config"]["trial"]
    step = int(metrics["step"])
    ended = TRIAL_DIVERGED if metrics["diverged"] else TRIAL_FULL if step >= steps else TRIAL_STOPPED
    return TrialOutcome(
        trial=trial,
        options=candidates[trial].options,
        score=metrics["score"],
        step=step,
        seconds=round(metrics["time_total_s"], 2),
        ended=ended,
    )


def choose_best(stage: TuneStage, outcomes: Sequence[TrialOutcome]) -> TrialOutcome:
    """Return the outcome with the highest score among the trials that ran to their end.

    The first trial wins a tie.

    Args:
        stage: the stage, for the error.
        outcomes: the outcomes of the stage.

    Raises:
        DataError: no trial ran to its end.
    """
    whole = [outcome for outcome in outcomes if outcome.ended == TRIAL_FULL]
    if not whole:
        raise DataError(
            f"no trial of stage {stage.number} ({stage.name}) ran to its end with a finite loss; raise "
            "--samples"
        )
    return max(whole, key=lambda outcome: (outcome.score, -outcome.trial))

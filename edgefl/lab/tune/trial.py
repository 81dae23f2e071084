"""Runs one trial of a search, and measures it on samples that are held out from training."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from edgefl.base.config import FederationConfig
from edgefl.base.rng import derive_rng
from edgefl.base.types import ServerState, Shard, Weights
from edgefl.lab.tune.stages import TuneStage
from edgefl.learning.algorithms import PHASE_PERSONALIZE, make_algorithm
from edgefl.learning.algorithms.names import EXPERT_PREFIX, name_expert
from edgefl.program.learner.base import evaluate
from edgefl.program.learner.litert import LiteRTLearner
from edgefl.program.plan.spec import Plan
from edgefl.simulation.clients import ClientResult, drop_mixture
from edgefl.simulation.simulate import Checkpoint, Record, simulate

REDUCTION_FACTOR = 3
"""Ratio of the steps before a report to the steps before the previous report.

At each report, ASHA continues one of this many trials.
"""
ReportScore = Callable[[int, float], None]


@dataclass(frozen=True)
class Trial:
    """The input of a trial.

    Attributes:
        stage: the stage.
        config: the configuration of the trial.
        plan: the plan of the configuration.
        initial: the plan's initial weights.
        shards: samples by client id, with held-out training samples as test samples.
        start: state with the trained cluster models. None if the stage does not need them.
    """

    stage: TuneStage
    config: FederationConfig
    plan: Plan
    initial: Weights
    shards: Mapping[str, Shard]
    start: ServerState | None = None


def find_first_report(steps: int) -> int:
    """Return the number of steps before the first report: a ninth of all steps, at least 1.

    Args:
        steps: number of steps of a complete trial.
    """
    return max(1, steps // REDUCTION_FACTOR**2)


def list_report_steps(steps: int) -> tuple[int, ...]:
    """Return the numbers of steps after which a trial reports its score.

    Each number is three times the number before it. The last is `steps`.

    Args:
        steps: number of steps of a complete trial.
    """
    report_steps = []
    step = find_first_report(steps)
    while step < steps:
        report_steps.append(step)
        step *= REDUCTION_FACTOR
    return (*report_steps, steps)


def run_trial(trial: Trial, report: ReportScore) -> None:
    """Run a trial.

    Args:
        report: receives the number of steps and the score at each report. In a stage that is measured by
            round, the score is the mean accuracy over all clients. Otherwise it is the mean of the stage's
            metric over the clients that are personalized so far.

    Raises:
        DataError: a client cannot train. The error names the client.
        DivergedError: the loss of a client is not finite, or training diverged.
        EdgeflError: any other error of `simulate`.
    """
    steps = trial.stage.count_steps(trial.config)
    report_steps = list_report_steps(steps)
    learner = LiteRTLearner(trial.plan)
    accuracies: list[float] = []

    def on_round(state: ServerState, record: Record) -> None:
        if trial.stage.by_round and record.round in report_steps:
            model = state.models[name_expert(0)]
            shards = (trial.shards[client_id] for client_id in sorted(trial.shards))
            report(
                record.round,
                float(
                    np.mean(
                        [
                            evaluate(learner, "predict", model, shard.x_test, shard.y_test).accuracy
                            for shard in shards
                        ]
                    )
                ),
            )

    def on_client(client_id: str, result: ClientResult) -> ClientResult:
        accuracies.append(result.metrics[trial.stage.metric])
        if not trial.stage.by_round and len(accuracies) in report_steps:
            report(len(accuracies), float(np.mean(accuracies)))
        return drop_mixture(client_id, result)

    simulate(
        trial.plan,
        trial.initial,
        trial.shards,
        trial.config,
        open_learner=lambda plan: learner,
        checkpoint=Checkpoint(server=make_start_state(trial)),
        progress=on_round,
        keep_result=on_client,
    )


def make_start_state(trial: Trial) -> ServerState | None:
    """Return the server state that a trial starts from, or None if it starts with round 1.

    The local model and the gate start from the trial's plan, because their sizes differ between trials.
    """
    if trial.stage.federates:
        return None
    spec = trial.plan.spec
    state = make_algorithm(spec.algorithm, None, spec.options).init(
        trial.initial, derive_rng(trial.config.seed, 0, "init")
    )
    trained = (
        {}
        if trial.start is None
        else {name: model for name, model in trial.start.models.items() if name.startswith(EXPERT_PREFIX)}
    )
    return replace(
        state, round=trial.config.rounds + 1, phase=PHASE_PERSONALIZE, models={**state.models, **trained}
    )

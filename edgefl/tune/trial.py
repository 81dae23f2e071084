"""One point of a search space, played and measured on the samples that were held back from training."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from edgefl.algorithms import PHASE_PERSONALIZE, make_algorithm
from edgefl.algorithms.names import EXPERT_PREFIX, name_expert
from edgefl.config import FederationConfig
from edgefl.learner.base import evaluate
from edgefl.learner.litert import LiteRTLearner
from edgefl.plan.spec import Plan
from edgefl.rng import derive_rng
from edgefl.simulation.clients import ClientResult, drop_mixture
from edgefl.simulation.simulate import Record, simulate
from edgefl.tune.stages import TuneStage
from edgefl.types import ServerState, Shard, Weights

REDUCTION_FACTOR = 3
"""How many times the steps of one look are those of the look before; of the trials that come to a look a
third go on.
"""
ReportScore = Callable[[int, float], None]


@dataclass(frozen=True)
class Trial:
    """All that a trial needs. start: the state with the trained cluster models, for a stage that begins with
    them.
    """

    stage: TuneStage
    config: FederationConfig
    plan: Plan
    initial: Weights
    shards: Mapping[str, Shard]
    start: ServerState | None = None


def find_first_report(steps: int) -> int:
    """Return after how many of a trial's steps it is looked at first: a ninth, at least one."""
    return max(1, steps // REDUCTION_FACTOR**2)


def list_report_steps(steps: int) -> tuple[int, ...]:
    """Return the steps after which a trial reports its score.

    Each report comes after three times as many steps as the report before. The last comes after all steps.
    """
    report_steps = []
    step = find_first_report(steps)
    while step < steps:
        report_steps.append(step)
        step *= REDUCTION_FACTOR
    return (*report_steps, steps)


def run_trial(trial: Trial, report: ReportScore) -> None:
    """Play a trial.

    `report(step, score)` is called at each look with the mean accuracy over the clients so far.

    Raises DataError when a loss is no number.
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
        learner=learner,
        start=make_start_state(trial),
        progress=on_round,
        keep_result=on_client,
    )


def make_start_state(trial: Trial) -> ServerState | None:
    """Return the state that a trial begins with, None for one that federates from the first round on.

    Local model and gate start from the trial's own plan: another trial's have other sizes.
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

"""One point of a search space, played and measured on the samples that were held back from training."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from edgefl.algorithms import PERSONALIZE, make_algorithm
from edgefl.algorithms.names import EXPERT, expert_name
from edgefl.config import FederationConfig
from edgefl.learner.base import evaluate
from edgefl.learner.litert import LiteRTLearner
from edgefl.plan.spec import Plan
from edgefl.rng import rng_for
from edgefl.simulation.clients import ClientResult, without_mixture
from edgefl.simulation.simulate import Record, simulate
from edgefl.tune.stages import Stage
from edgefl.types import ServerState, Shard, Weights

FACTOR = 3
"""How many times the steps of one look are those of the look before; of the trials that come to a look a
third go on.
"""
Report = Callable[[int, float], None]


@dataclass(frozen=True)
class Trial:
    """All that a trial needs. start: the state with the trained cluster models, for a stage that begins with
    them.
    """

    stage: Stage
    config: FederationConfig
    plan: Plan
    initial: Weights
    shards: Mapping[str, Shard]
    start: ServerState | None = None


def first_look(steps: int) -> int:
    """Return after how many of a trial's steps it is looked at first: a ninth, at least one."""
    return max(1, steps // FACTOR**2)


def looks(steps: int) -> tuple[int, ...]:
    """Return after which steps a trial reports its score: each look has three times the steps of the one
    before; the last has all.
    """
    found = []
    at = first_look(steps)
    while at < steps:
        found.append(at)
        at *= FACTOR
    return (*found, steps)


def run_trial(trial: Trial, report: Report) -> None:
    """Play a trial.

    `report(step, score)` is called at each look with the mean accuracy over the clients so far.

    Raises DataError when a loss is no number.
    """
    steps = trial.stage.steps(trial.config)
    at = looks(steps)
    learner = LiteRTLearner(trial.plan)
    found: list[float] = []

    def after_round(state: ServerState, record: Record) -> None:
        if trial.stage.by_round and record.round in at:
            model = state.models[expert_name(0)]
            held = (trial.shards[client_id] for client_id in sorted(trial.shards))
            report(
                record.round,
                float(
                    np.mean(
                        [evaluate(learner, "predict", model, own.x_test, own.y_test).accuracy for own in held]
                    )
                ),
            )

    def after_client(client_id: str, result: ClientResult) -> ClientResult:
        found.append(result.metrics[trial.stage.metric])
        if not trial.stage.by_round and len(found) in at:
            report(len(found), float(np.mean(found)))
        return without_mixture(client_id, result)

    simulate(
        trial.plan,
        trial.initial,
        trial.shards,
        trial.config,
        learner=learner,
        start=begun(trial),
        progress=after_round,
        keep_result=after_client,
    )


def begun(trial: Trial) -> ServerState | None:
    """Return the state that a trial begins with, None for one that federates from the first round on.

    Local model and gate start from the trial's own plan: another trial's have other sizes.
    """
    if trial.stage.federates:
        return None
    spec = trial.plan.spec
    state = make_algorithm(spec.algorithm, None, spec.options).init(
        trial.initial, rng_for(trial.config.seed, 0, "init")
    )
    trained = (
        {}
        if trial.start is None
        else {name: model for name, model in trial.start.models.items() if name.startswith(EXPERT)}
    )
    return replace(
        state, round=trial.config.rounds + 1, phase=PERSONALIZE, models={**state.models, **trained}
    )

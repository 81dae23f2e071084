"""What a device computes for a task: no network in here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from devices.learners import LEARNERS
from devices.shard import OwnSamples
from edgefl.algorithms import PERSONALIZE, full_options, make_algorithm
from edgefl.algorithms.base import Algorithm
from edgefl.algorithms.mixtures.gate_utilization import gate_figures
from edgefl.client.update import client_rng, compressed, epochs_within, personalize_and_measure
from edgefl.errors import DataError
from edgefl.learner.base import Learner
from edgefl.plan.spec import Plan
from edgefl.types import Broadcast, ClientState, Mixture, Scalars, Shard, Update, Weights
from edgefl.wire.masked import CODEC
from edgefl.wire.messages import Task


def check_shard(shard: Shard, plan: Plan) -> None:
    """Raise DataError when the plan cannot be trained on the shard."""
    expected = plan.spec.input_shape
    if shard.x_train.shape[1:] != tuple(expected):
        raise DataError(
            f"a sample of this device is {shard.x_train.shape[1:]}, the plan expects {tuple(expected)}; "
            "reshape the shard, or build the plan with this input_shape"
        )


@dataclass(frozen=True)
class Site:
    """A plan ready to run over this device's shard."""

    plan: Plan
    learner: Learner
    algorithm: Algorithm
    shard: Shard
    client_id: str

    def update(
        self, task: Task, models: Mapping[str, Weights], state: ClientState, before: Scalars
    ) -> tuple[Update, ClientState]:
        """Train; see `Algorithm.local_update`. `before`: the metrics of the round before, by which a budget
        becomes epochs.
        """
        broadcast = Broadcast(task.round, task.phase, models, task.scalars)
        rng = client_rng(task.seed, broadcast, self.client_id)
        if not task.budget_s:
            return compressed(self.algorithm, task.codec).local_update(
                broadcast, state, self.shard, self.client_id, rng
            )
        spec = self.plan.spec
        options = full_options(spec.algorithm, spec.options)
        epochs = epochs_within(task.budget_s, options["epochs"], before)
        algorithm = compressed(
            make_algorithm(spec.algorithm, self.learner, {**options, "epochs": epochs}), task.codec
        )
        update, state = algorithm.local_update(broadcast, state, self.shard, self.client_id, rng)
        return replace(update, metrics={**update.metrics, "epochs": float(epochs)}), state

    def personalize(
        self, task: Task, models: Mapping[str, Weights], state: ClientState, *, tell_gate: bool = True
    ) -> tuple[Mixture, ClientState, Scalars]:
        """Make the mixture and measure it; see `personalize_and_measure`. tell_gate: also how its gate is
        used on held-out samples.
        """
        broadcast = Broadcast(task.round, task.phase, models, task.scalars)
        rng = client_rng(task.seed, broadcast, self.client_id)
        algorithm = compressed(self.algorithm, task.codec)
        mixture, state, measured = personalize_and_measure(
            algorithm, self.learner, broadcast, state, self.shard, rng
        )
        gate = gate_figures(self.learner, mixture.weights, self.shard.x_test) if tell_gate else {}
        return mixture, state, {**measured, **gate}


def was_masked(task: Task, note: Mapping[str, Any]) -> bool:
    """Return whether a federation masks its updates, so that it is nobody's business which expert a client
    leans on.

    The task to personalize does not say so: then it counts what the device's note says of the tasks before
    it.
    """
    return task.codec == CODEC or (task.phase == PERSONALIZE and note.get("masked") is True)


def open_site(
    plan: Plan,
    samples: OwnSamples,
    seed: int,
    client_id: str,
    learner: str,
    threads: int,
    note: Callable[[str], None],
) -> Site:
    """Split the shard as the federation's seed says, and make learner and algorithm. DataError, PlanError."""
    shard = samples.shard(seed, plan.spec.num_classes)
    check_shard(shard, plan)
    made = LEARNERS[learner](plan, threads)
    note(
        f"plan {plan.id[:8]}: {plan.spec.model}, {plan.spec.algorithm}; {len(shard.y_train)} samples; "
        f"learner {made.name}"
    )
    return Site(plan, made, make_algorithm(plan.spec.algorithm, made, plan.spec.options), shard, client_id)

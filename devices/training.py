"""The computations of a device for a task. This module does not use the network."""

import logging
from collections.abc import Mapping
from typing import Any

from devices.learners import LEARNERS
from devices.local_dataset import LocalDataset
from edgefl.base.errors import DataError
from edgefl.base.types import Broadcast, ClientState, Mixture, Scalars, Shard, Weights
from edgefl.data.task_form import to_task_form
from edgefl.learning.algorithms import PHASE_PERSONALIZE, complete_algorithm_options
from edgefl.learning.algorithms.mixtures.gate_utilization import measure_gate_utilization
from edgefl.learning.algorithms.names import COMPARE_SCALAR
from edgefl.learning.client.blend import find_gated_weights
from edgefl.learning.client.local_training import fit_epochs
from edgefl.learning.client.runner import ClientRunner, WorkItem
from edgefl.program.learner.none import NoLearner
from edgefl.program.plan.spec import Plan, PlanSpec, read_task
from edgefl.protocol.wire.masked import MASKED_CODEC
from edgefl.protocol.wire.messages import Task

LOGGER = logging.getLogger("edgefl.device")


def check_shard(shard: Shard, spec: PlanSpec) -> None:
    """Check that a plan can be trained on a shard.

    Args:
        shard: the samples of this device.

    Raises:
        DataError: the samples do not have the input shape of the plan, or their labels do not fit its task.
    """
    to_task_form(shard, read_task(spec))
    expected = spec.input_shape
    if shard.x_train.shape[1:] != tuple(expected):
        raise DataError(
            f"a sample of this device has the shape {shard.x_train.shape[1:]}, the plan expects "
            f"{tuple(expected)}; reshape the shard, or build the plan with the shape of the samples as "
            "input_shape"
        )


def choose_epochs(task: Task, plan: Plan, previous: Scalars) -> int | None:
    """Return the number of epochs that fit into a task's budget, or None without a budget.

    Args:
        task: a task to train.
        previous: metrics of the device's last round, see `fit_epochs`.
    """
    if not task.budget_s:
        return None
    options = complete_algorithm_options(plan.spec.algorithm, plan.spec.options)
    return fit_epochs(task.budget_s, options["epochs"], previous)


def make_work_item(
    task: Task, models: Mapping[str, Weights], state: ClientState, client_id: str, epochs: int | None = None
) -> WorkItem:
    """Return the work item of a task for the client runner.

    Masks do not hide an accuracy or a score. A device with masked updates therefore measures neither, even if
    the task asks for it.

    Args:
        models: weights of the task's models, by name.
        state: the client state after the previous round.
        epochs: number of epochs to train. None uses the option of the algorithm.
    """
    scalars = task.scalars
    if task.codec == MASKED_CODEC:
        scalars = {name: value for name, value in scalars.items() if name != COMPARE_SCALAR}
    broadcast = Broadcast(round=task.round, phase=task.phase, models=models, scalars=scalars)
    evaluate = task.settings.get("evaluate", 0.0) > 0 and task.codec != MASKED_CODEC
    return WorkItem(
        broadcast=broadcast,
        state=state,
        client_id=client_id,
        codec=task.codec,
        epochs=epochs,
        evaluate=evaluate,
    )


def measure_gate(runner: ClientRunner, mixture: Mixture, client_id: str) -> dict[str, float]:
    """Return the mean gate weights of a mixture on the client's test samples.

    Returns:
        The metrics `gate_0`, `gate_1` and so on, see `measure_gate_utilization`.
    """
    gated = find_gated_weights(mixture)
    return measure_gate_utilization(runner.learner, gated, runner.shards[client_id].x_test)


def was_masked(task: Task, note: Mapping[str, Any]) -> bool:
    """Return whether a federation masks its updates.

    In such a federation, a device does not publish how much it uses each expert. A task to personalize is
    never masked. For such a task the note of the device decides, which records whether an earlier task was
    masked.

    Args:
        note: content of device.json, see `DeviceStore.read_note`.
    """
    return task.codec == MASKED_CODEC or (task.phase == PHASE_PERSONALIZE and note.get("masked") is True)


def open_runner(
    plan: Plan,
    samples: LocalDataset,
    seed: int,
    client_id: str,
    learner: str,
    threads: int,
) -> ClientRunner:
    """Return a client runner over this device's samples.

    Args:
        samples: this device's samples, which are split with `seed`.
        learner: a name of `LEARNERS`.
        threads: number of threads of the learner.

    Raises:
        DataError: the plan cannot be trained on the samples.
        PlanError: the learner cannot run the plan.
    """
    shape = plan.spec.input_shape
    shard = samples.load_shard(plan.spec, seed)
    check_shard(shard, plan.spec)
    for change in samples.changes:
        LOGGER.info(f"{samples.source.data}: {change}")
    if change := samples.describe_shape_change(shape):
        LOGGER.info(change)
    made = LEARNERS[learner](plan, threads) if plan.spec.signatures else NoLearner(plan)
    LOGGER.info(
        f"plan {plan.id[:8]}: {plan.spec.model}, {plan.spec.algorithm}; {len(shard.y_train)} samples; "
        f"learner {made.name}"
    )
    return ClientRunner(plan, made, {client_id: shard}, seed)

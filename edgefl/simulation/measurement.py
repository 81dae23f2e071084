"""Measures the clients of a simulation before a federation, as the aggregator does."""

from collections.abc import Callable, Mapping

from edgefl.base.types import ServerState, Shard, Weights
from edgefl.learning.algorithms.base import Algorithm
from edgefl.learning.algorithms.measurement import prepare_measurement, read_moments
from edgefl.learning.algorithms.range_test import (
    draw_test_clients,
    prepare_range_test,
    with_chosen_rate,
)
from edgefl.learning.algorithms.registry import has_range_test
from edgefl.program.learner.base import Learner
from edgefl.program.learner.litert import LiteRTLearner
from edgefl.program.learner.none import NoLearner
from edgefl.program.plan.normalization import has_placeholders, set_normalization
from edgefl.program.plan.spec import Plan
from edgefl.simulation.clients import SimulatedFederation, make_work_items, train_client
from edgefl.simulation.engines.base import SerialEngine


def normalize_plan(plan: Plan, shards: Mapping[str, Shard], seed: int) -> Plan:
    """Return the plan with mean and std of the clients' samples, or unchanged if both are set.

    Args:
        shards: samples by client id.
    """
    if not has_placeholders(plan.spec):
        return plan
    state = _play_round(*prepare_measurement(plan, seed), shards, seed, NoLearner)
    return set_normalization(plan, *read_moments(state))


def find_learning_rate(
    plan: Plan,
    initial: Weights,
    shards: Mapping[str, Shard],
    seed: int,
    open_learner: Callable[[Plan], Learner] = LiteRTLearner,
) -> Plan:
    """Return the plan with the learning rate that a range test over some clients finds.

    It is unchanged if the rate of its algorithm cannot be found, see `has_range_test`.

    Args:
        plan: the plan of the federation, with mean and std if its model normalizes its input.
        initial: the initial weights of the federation.
        shards: samples by client id.
        open_learner: makes the learner.
    """
    if not has_range_test(plan.spec):
        return plan
    tested = {client_id: shards[client_id] for client_id in draw_test_clients(shards, seed)}
    state = _play_round(*prepare_range_test(plan, initial, seed), tested, seed, open_learner)
    return with_chosen_rate(plan, state)


def _play_round(
    plan: Plan,
    algorithm: Algorithm,
    state: ServerState,
    shards: Mapping[str, Shard],
    seed: int,
    open_learner: Callable[[Plan], Learner],
) -> ServerState:
    """Return the server state after one round of all clients."""
    with SerialEngine(
        SimulatedFederation(plan=plan, seed=seed, shards=shards, open_learner=open_learner)
    ) as engine:
        items = make_work_items(algorithm, state, sorted(shards), {}, "fp32")
        return algorithm.aggregate(state, [update for update, _ in engine.run(train_client, items)])

"""Measures mean and standard deviation of simulated clients before a federation, as the aggregator does."""

from collections.abc import Mapping

from edgefl.algorithms.measurement import prepare_measurement, read_moments
from edgefl.learner.none import NoLearner
from edgefl.plan.normalization import has_placeholders, set_normalization
from edgefl.plan.spec import Plan
from edgefl.simulation.clients import SimulatedFederation, make_work_items, train_client
from edgefl.simulation.engines.base import SerialEngine
from edgefl.types import Shard


def normalize_plan(plan: Plan, shards: Mapping[str, Shard], seed: int) -> Plan:
    """Return the plan with mean and std of the clients' samples, or unchanged if both are set.

    Args:
        plan: the plan of the federation.
        shards: samples by client id.
        seed: the seed of the federation.
    """
    if not has_placeholders(plan.spec):
        return plan
    measured, algorithm, state = prepare_measurement(plan, seed)
    with SerialEngine(SimulatedFederation(measured, seed, shards, open_learner=NoLearner)) as engine:
        items = make_work_items(algorithm, state, sorted(shards), {}, "fp32")
        state = algorithm.aggregate(state, [update for update, _ in engine.run(train_client, items)])
    return set_normalization(plan, *read_moments(state))

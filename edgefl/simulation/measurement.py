"""Measures mean and standard deviation of simulated clients before a federation, as the aggregator does."""

from collections.abc import Mapping

from edgefl.algorithms.measurement import (
    MEAN,
    MOMENTS,
    STD,
    MeasurementOptions,
    make_measurement,
    make_measurement_plan,
    make_zero_moments,
)
from edgefl.learner.none import NoLearner
from edgefl.plan.normalization import has_placeholders, set_normalization
from edgefl.plan.spec import Plan
from edgefl.rng import derive_rng
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
    measured = make_measurement_plan(plan)
    algorithm = make_measurement(None, MeasurementOptions())
    state = algorithm.init(make_zero_moments(measured), derive_rng(seed, 0, "init"))
    with SerialEngine(SimulatedFederation(measured, seed, shards, open_learner=NoLearner)) as engine:
        items = make_work_items(algorithm, state, sorted(shards), {}, "fp32")
        state = algorithm.aggregate(state, [update for update, _ in engine.run(train_client, items)])
    moments = state.models[MOMENTS]
    return set_normalization(plan, moments[MEAN].tolist(), moments[STD].tolist())

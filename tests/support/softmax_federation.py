"""A simulated federation of the softmax learner."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from edgefl.base.config import FederationConfig
from edgefl.base.types import Shard
from edgefl.program.plan.spec import Plan, PlanSpec
from edgefl.simulation.simulate import Simulation, simulate
from tests.support.numpy_learner.softmax import SoftmaxLearner


def simulate_softmax(
    spec: PlanSpec,
    shards: Mapping[str, Shard],
    config: FederationConfig,
    *,
    seed: int = 7,
    scale: float = 0.5,
    **options: Any,
) -> Simulation:
    """Simulate a federation of the softmax learner in this process, from random weights.

    Args:
        spec: the spec of the plan, of `softmax_spec`.
        shards: samples by client id.
        config: the federation.
        seed: of the initial weights.
        scale: standard deviation of the initial weights.
        options: other arguments of `simulate`.
    """
    rng = np.random.default_rng(seed)
    initial = {each.name: rng.normal(0, scale, each.shape).astype(np.float32) for each in spec.weights}
    return simulate(
        Plan(spec=spec, program=b"", template=b""),
        initial,
        shards,
        config,
        open_learner=lambda plan: SoftmaxLearner(spec),
        **options,
    )


def make_permuted_shard(seed: int, labels: Sequence[int], noise: float) -> Shard:
    """Return 60 training and 20 test samples of three classes with permuted labels.

    Args:
        seed: of the samples.
        labels: the label of each class.
        noise: standard deviation around the centre of a class. Centres have a distance of 2.8.
    """
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, 80)
    x = (np.eye(3, 4)[y] * 2 + rng.normal(0, noise, (80, 4))).astype(np.float32)
    named = np.asarray(labels)[y]
    return Shard(x_train=x[:60], y_train=named[:60], x_test=x[60:], y_test=named[60:], num_classes=3)

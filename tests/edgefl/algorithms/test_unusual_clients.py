"""Every algorithm serves clients with one class, with a class of their own, with very few samples and without
test samples.
"""

import math
import warnings

import numpy as np
import pytest

from edgefl.algorithms import PERSONALIZE, REGISTRY
from edgefl.config import FederationConfig
from edgefl.plan.spec import Plan
from edgefl.simulation.simulate import simulate
from edgefl.types import Shard
from tests.support.numpy_learner.softmax import SoftmaxLearner, softmax_spec

PHASES = {  # all phases within three rounds
    "aem": {"local_epochs": 5, "gate_epochs": 5, "num_experts": 2},
    "fedap": {"pretrain_rounds": 1, "decay_rounds": 2},
}
FEW = {"one sample": 1, "two samples": 2, "three samples": 3}


def samples(seed: int, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    noise = np.random.default_rng(seed).normal(0, 0.7, (len(labels), 4))
    return (np.eye(4)[labels] * 2 + noise).astype(np.float32), labels.astype(np.int64)


def shard(seed: int, labels: np.ndarray, tested: int = 12) -> Shard:
    x, y = samples(seed, labels)
    return Shard(x, y, *samples(seed + 100, np.resize(labels, tested)), 4)


@pytest.fixture
def unusual() -> dict[str, Shard]:
    """Return shards of four classes. Class 3 is that of `own class` alone."""
    common = np.arange(30) % 3
    shards = {
        "usual": shard(1, common),
        "usual too": shard(2, common),
        "one class": shard(3, np.full(20, 1)),
        "own class": shard(4, np.resize([3, 3, 0], 30)),
        "own class alone": shard(5, np.full(20, 3)),
        "no test": shard(6, common, tested=0),
    }
    return shards | {name: shard(7 + count, common[:count]) for name, count in FEW.items()}


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_unusual_clients_take_part(name: str, unusual: dict[str, Shard]) -> None:
    options = PHASES.get(name, {})
    plan = Plan(
        softmax_spec(name, inputs=4, features=3, classes=4, options=REGISTRY[name].defaults | options),
        b"",
        b"",
    )
    rng = np.random.default_rng(7)
    initial = {w.name: rng.normal(0, 0.5, w.shape).astype(np.float32) for w in plan.spec.weights}
    config = FederationConfig(rounds=3, algorithm=name, options=options)
    rounds = []
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # a division by zero, a mean of nothing
        end = simulate(
            plan,
            initial,
            unusual,
            config,
            learner=SoftmaxLearner(plan.spec),
            progress=lambda state, record: rounds.append(record.updates),
        )
    assert [set(updates) for updates in rounds] == [set(unusual)] * 3
    for weights in [*end.state.models.values(), *(mixture.weights for mixture in end.mixtures.values())]:
        assert all(np.isfinite(array).all() for array in weights.values())
    assert end.state.phase in (PERSONALIZE, "done")
    for client_id, metrics in end.metrics.items():
        accuracy = {key: value for key, value in metrics.items() if key.startswith("accuracy_")}
        assert accuracy
        assert all(math.isnan(value) == (client_id == "no test") for value in accuracy.values()), accuracy

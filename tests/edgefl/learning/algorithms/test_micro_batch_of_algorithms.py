"""Every algorithm gives the same models with a micro-batch, apart from rounding.

FedBN is left out, because its models have batch norms, which a micro-batch refuses.
"""

from dataclasses import replace

import numpy as np
import pytest

from edgefl.base.config import PersonalizationConfig, TrainingConfig
from edgefl.base.types import Shard
from edgefl.learning.algorithms import REGISTRY, complete_algorithm_options
from edgefl.program.plan.spec import MICRO_BATCH_PLAN_FORMAT
from edgefl.simulation.simulate import simulate

OPTIONS = {"epochs": 1, "batch_size": 8, "learning_rate": 0.1, "num_experts": 2, "local_epochs": 2}
FAST = ("fedavg", "fedmix")


@pytest.mark.parametrize(
    "name",
    [
        name if name in FAST else pytest.param(name, marks=pytest.mark.slow)
        for name in sorted({*REGISTRY} - {"fedbn"})
    ],
)
def test_micro_batch_gives_the_models_of_whole_batches(name, tiny_config, digits):
    from edgefl.learning.algorithms.plans import build_plan

    defaults = complete_algorithm_options(name, {})
    config = replace(
        tiny_config,
        algorithm=name,
        options={key: value for key, value in OPTIONS.items() if key in defaults},
        rounds=2,
        personalization=PersonalizationConfig(epochs=1),
    )
    x, y = digits
    shards = {
        f"pi-{i}": Shard(
            x_train=x[i::10][:30],
            y_train=y[i::10][:30],
            x_test=x[i + 5 :: 10],
            y_test=y[i + 5 :: 10],
            num_classes=10,
        )
        for i in range(3)
    }
    runs = []
    for micro_batch in (0, 3):
        configured = replace(config, training=TrainingConfig(micro_batch=micro_batch))
        plan, initial = build_plan(configured)
        assert (plan.spec.format == MICRO_BATCH_PLAN_FORMAT) == bool(micro_batch)
        results = {}
        run = simulate(
            plan,
            initial,
            shards,
            configured,
            keep_result=lambda client_id, result, results=results: results.setdefault(client_id, result),
        )
        runs.append((run.state, results))
    (expected, expected_results), (received, results) = runs
    for model, weights in expected.models.items():
        for weight, array in weights.items():
            np.testing.assert_allclose(received.models[model][weight], array, rtol=1e-3, atol=1e-4)
    assert any(
        not np.array_equal(array, initial[weight])
        for result in expected_results.values()
        for peer in result.mixture.peers.values()
        for weight, array in peer.weights.items()
        if weight in initial
    )
    for client_id, result in expected_results.items():
        for weight, array in result.mixture.weights.items():
            np.testing.assert_allclose(
                results[client_id].mixture.weights[weight], array, rtol=1e-3, atol=1e-3
            )

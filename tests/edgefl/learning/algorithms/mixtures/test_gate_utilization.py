"""Gate utilization: by hand, and equal to the algorithms' diagnostics on training samples."""

from dataclasses import replace

import numpy as np
import pytest

from edgefl.base.rng import derive_rng
from edgefl.base.types import ClientState
from edgefl.learning.algorithms import PHASE_PERSONALIZE, make_algorithm
from edgefl.learning.algorithms.mixtures.gate_utilization import (
    measure_gate_by_class,
    measure_gate_utilization,
)
from tests.support.numpy_learner.softmax import SoftmaxLearner, softmax_spec


def make_learner_and_algorithm(name, options):
    learner = SoftmaxLearner(softmax_spec(name, inputs=4, features=4, classes=3, options=options))
    return learner, make_algorithm(name, learner, options)


def draw_initial_weights(learner):
    rng = np.random.default_rng(3)
    specs = learner.spec.weights
    return {spec.name: rng.normal(0, 0.3, spec.shape).astype(np.float32) for spec in specs}


def personalize_client(name, options, shard):
    learner, algorithm = make_learner_and_algorithm(name, options)
    state = replace(
        algorithm.init(draw_initial_weights(learner), derive_rng(1, 0, "init")), phase=PHASE_PERSONALIZE
    )
    mixture, _ = algorithm.personalize(
        algorithm.broadcast(state, "pi-1"), ClientState(), shard, derive_rng(1, 2, "pi-1")
    )
    return learner, mixture


def test_utilization_of_pfl_moe_by_hand():
    """Two samples with the gates sigmoid(0) = 1/2 and sigmoid(ln 3) = 3/4 for the federated classifier.

    The means are 5/8 and 3/8.
    """
    learner, _ = make_learner_and_algorithm("pfl-mf", {})
    weights = {
        "gate/kernel": np.array([[np.log(3)], [0], [0], [0]], np.float32),
        "gate/bias": np.zeros(1, np.float32),
    }
    x = np.array([[0, 1, 2, 3], [1, 5, 5, 5]], np.float32)
    assert measure_gate_utilization(learner, weights, x) == pytest.approx({"gate_0": 0.625, "gate_1": 0.375})
    learner, _ = make_learner_and_algorithm("pfl-mfe", {})
    trunk = {"trunk/kernel": 2 * np.eye(4, dtype=np.float32)}  # features are twice the samples
    assert measure_gate_utilization(learner, {**weights, **trunk}, x) == pytest.approx(
        {"gate_0": (0.5 + 0.9) / 2, "gate_1": 0.3}
    )


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("aem", {"num_experts": 2, "gate_epochs": 5, "local_epochs": 3, "gate_learning_rate": 0.1}),
        (
            "aem",
            {
                "num_experts": 3,
                "gate": "features",
                "gate_epochs": 5,
                "local_epochs": 3,
                "gate_learning_rate": 0.1,
            },
        ),
        ("fedmix", {"num_experts": 3, "gate_epochs": 5, "learning_rate": 0.1}),
    ],
)
def test_utilization_on_training_samples_equals_the_diagnostics(name, options, shards):
    shard = shards["pi-1"]
    learner, mixture = personalize_client(name, options, shard)
    gate_figures = [value for key, value in mixture.diagnostics.items() if key.startswith("gate/")]
    figures = measure_gate_utilization(learner, mixture.weights, shard.x_train)
    assert list(figures) == [f"gate_{k}" for k in range(len(gate_figures))]
    assert list(figures.values()) == pytest.approx(gate_figures, abs=1e-5)
    held_out = measure_gate_utilization(learner, mixture.weights, shard.x_test)
    assert sum(held_out.values()) == pytest.approx(1, abs=1e-5)
    assert held_out != figures


def test_utilization_by_class_by_hand():
    """The gates are 1/2 for the sample of class 2, and 3/4 and 9/10 for the samples of class 0."""
    learner, _ = make_learner_and_algorithm("pfl-mf", {})
    weights = {
        "gate/kernel": np.array([[np.log(3)], [0], [0], [0]], np.float32),
        "gate/bias": np.zeros(1, np.float32),
    }
    x = np.array([[1, 9, 9, 9], [0, 1, 2, 3], [2, 5, 5, 5]], np.float32)
    by_class = measure_gate_by_class(learner, weights, x, np.array([0, 2, 0]))
    np.testing.assert_allclose(by_class, [[0, 2, 0.825, 0.175], [2, 1, 0.5, 0.5]], atol=1e-6)
    assert measure_gate_by_class(learner, weights, x[:0], np.zeros(0, np.int64)).shape == (0, 2)


@pytest.mark.parametrize("name", ["fedavg", "ifca", "pfl-fb"])
def test_mixture_without_gate_has_no_utilization(name, shards):
    learner, mixture = personalize_client(name, {}, shards["pi-1"])
    assert measure_gate_utilization(learner, mixture.weights, shards["pi-1"].x_test) == {}
    assert not len(
        measure_gate_by_class(learner, mixture.weights, shards["pi-1"].x_test, shards["pi-1"].y_test)
    )


def test_utilization_without_samples_is_empty(shards):
    learner, mixture = personalize_client("pfl-mf", {}, shards["pi-1"])
    assert measure_gate_utilization(learner, mixture.weights, shards["pi-1"].x_test[:0]) == {}
    assert measure_gate_utilization(learner, mixture.weights, shards["pi-1"].x_test)

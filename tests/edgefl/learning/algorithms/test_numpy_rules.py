"""The gradients and predictions of the numpy learner equal TensorFlow's, for each kind of objective.

The tests by hand run the numpy learner. With these tests they also hold for the compiled plans.
"""

from dataclasses import replace

import numpy as np
import pytest

from edgefl.learning.algorithms import REGISTRY, complete_algorithm_options
from edgefl.learning.algorithms.registry import build_objectives
from tests.support.numpy_learner.softmax import SoftmaxLearner, softmax_spec

CASES = [
    ("fedmix", {}),
    ("fedmix", {"prune": 0.5, "bias": True}),
    ("fedmix", {"condition": "side", "num_sides": 2, "gate": "federated"}),
    ("fedmix", {"objective": "likelihood", "bias": True}),
    ("fedmix", {"client_entropy": True, "prune": 0.5}),
    ("fedmix-permutation", {"num_experts": 3}),
    ("fedem", {}),
    ("aem", {"num_experts": 2, "gate": "pixels"}),
    ("aem", {"num_experts": 2, "gate": "features"}),
    ("pfl-fb", {}),
    ("pfl-mf", {}),
    ("pfl-mfe", {}),
    ("pfl-ft", {}),
    ("fedprox", {"mu": 0.5}),
    ("ditto", {"penalty": 0.5}),
    ("apfl", {}),
    ("fedala", {}),
    ("fedrod", {}),
    ("fedrep", {}),
]
CASES += [(name, {}) for name in REGISTRY if name not in dict(CASES) | {"fedbn": {}}]
"""Every algorithm has a case. `fedbn` needs a network with batch norms."""

OTHER_OPTIMIZERS = {"aem", "pfl-fb", "pfl-ft", "pfl-mf", "pfl-mfe"}
FURTHER_RULES = {("aem", "pixels"): {"features"}, ("pfl-fb", None): {"train_gate"}}
"""Signatures that the numpy learner has for these algorithms and gates, and their plans do not."""


def draw_weights(signature, rng):
    weights = {
        spec.name: rng.normal(0, 0.7, spec.shape).astype(np.float32)
        for spec in (*signature.trained, *signature.frozen)
    }
    for name, array in weights.items():
        if name == "condition_share":
            weights[name] = rng.dirichlet(np.ones(array.size), 1).astype(np.float32)
        if name.startswith("responsibility/"):
            weights[name] = rng.uniform(0.1, 0.9, array.shape).astype(np.float32)
        if name == "chosen":
            weights[name] = np.eye(array.shape[0], dtype=np.float32)[:, -array.shape[1] :]
    return weights


def draw_data(signature, rng, count):
    data = {
        spec.name: rng.normal(size=(count, *spec.shape[1:])).astype(np.float32) for spec in signature.data
    }
    for name in {"condition", "responsibility"} & data.keys():
        data[name] = np.eye(data[name].shape[1], dtype=np.float32)[
            rng.integers(0, data[name].shape[1], count)
        ]
    if "likelihood" in data:
        data["likelihood"] = rng.uniform(0.1, 0.9, data["likelihood"].shape).astype(np.float32)
    return data


def compare_learners(learners, signature, tolerance):
    rng = np.random.default_rng(5)
    weights = draw_weights(signature, rng)
    y = rng.integers(0, 3, 13)
    data = draw_data(signature, rng, 13)
    if signature.kind == "predict":
        a, b = (item.predict(signature.name, weights, data) for item in learners)
        np.testing.assert_allclose(a, b, atol=tolerance, err_msg=signature.name)
        return
    hyper = {"learning_rate": 0.5}
    (a, first_loss), (b, second_loss) = (
        item.fit(signature.name, weights, data, y, epochs=1, rng=np.random.default_rng(1), hyper=hyper)
        for item in learners
    )
    assert first_loss == pytest.approx(second_loss, abs=tolerance), signature.name
    for name in a:
        np.testing.assert_allclose(a[name], b[name], atol=tolerance, err_msg=f"{signature.name} {name}")
        assert name == "phi" or not np.array_equal(a[name], weights[name])


@pytest.mark.parametrize(("algorithm", "more"), CASES, ids=[f"{name} {more}" for name, more in CASES])
def test_numpy_rules_equal_the_objectives(algorithm, more, linear_network):
    """They include the gradient of phi and the gate's gradient into the experts.

    AEM and PFL-MoE train by Adam or with weight decay. They take steps of plain SGD here, as the numpy
    learner does.
    """
    from edgefl.program.compiler.objective import PREDICT_BATCH, make_signature
    from edgefl.program.compiler.optimizer import sgd
    from edgefl.program.learner.keras import KerasLearner

    more = {"num_experts": 3, **more} if algorithm.startswith("fedmix") else more
    options = complete_algorithm_options(algorithm, {"batch_size": PREDICT_BATCH} | more)
    spec = softmax_spec(algorithm, inputs=4, features=3, classes=3, batch_size=PREDICT_BATCH, options=options)
    objectives = [
        replace(item, optimizer=sgd(0.5)) if item.optimizer and algorithm in OTHER_OPTIMIZERS else item
        for item in build_objectives(algorithm, linear_network, options)
    ]
    names = [item.name for item in objectives]
    further = {signature.name for signature in spec.signatures} - set(names)
    assert further == FURTHER_RULES.get((algorithm, more.get("gate")), set())
    assert set(names) <= {signature.name for signature in spec.signatures}
    if algorithm == "fedmix":
        assert names == [signature.name for signature in spec.signatures]
    learners = (
        SoftmaxLearner(spec),
        KerasLearner(
            replace(spec, signatures=tuple(make_signature(item) for item in objectives)), objectives
        ),
    )
    for signature in spec.signatures:
        if signature.name in names:
            compare_learners(learners, signature, 2e-5)

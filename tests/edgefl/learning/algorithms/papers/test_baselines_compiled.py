"""The baselines as programs: each training signature takes the same steps as Keras."""

from dataclasses import replace

import numpy as np
import pytest

from edgefl.base.errors import ConfigError
from edgefl.base.rng import derive_rng
from edgefl.learning.algorithms import build_objectives
from edgefl.program.learner.litert import LiteRTLearner

NAMES = {
    "fedprox": ["train"],
    "ditto": ["train_personal"],
    "apfl": ["train_both", "train_alpha"],
    "fedala": ["train_mixing"],
    "fedrod": ["train"],
    "pfl-ft": ["train_all"],
    "lg-fedavg": ["train"],
    "fedrep": ["train"],
}
OPTIONS = {"epochs": 1, "learning_rate": 0.1, "batch_size": 8}


FAST = ("apfl", "ditto", "fedala")  # each with an objective of its own


@pytest.fixture(
    scope="module",
    params=[name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in NAMES],
)
def built_plan(request, tiny_config):
    """Return (name of the algorithm, plan, initial weights). The layers are conv, dense, dropout, dense."""
    from edgefl.learning.algorithms.plans import build_plan

    return request.param, *build_plan(replace(tiny_config, algorithm=request.param, options=OPTIONS))


def test_training_takes_the_same_steps_as_keras(built_plan, digits):
    from edgefl.learning.algorithms.plans import make_keras_learner

    name, plan, initial = built_plan
    x = digits[0][:60]
    y = digits[1][:60]
    rng = np.random.default_rng(1)
    for signature in NAMES[name]:
        specs = (
            *plan.spec.find_signature(signature).trained,
            *plan.spec.find_signature(signature).frozen,
        )
        base_weights = {
            spec.name: (initial.get(spec.name.partition("/")[2], initial.get(spec.name)), spec.shape)
            for spec in specs
        }
        weights = {
            key: np.asarray((0.5 if base is None else base) + rng.normal(0, 0.01, shape), np.float32)
            for key, (base, shape) in base_weights.items()
        }
        results = [
            learner.fit(
                signature, weights, {"x": x}, y, epochs=2, rng=derive_rng(3, 1), hyper={"learning_rate": 0.05}
            )
            for learner in (LiteRTLearner(plan), make_keras_learner(plan.spec))
        ]
        assert results[0][1] == pytest.approx(results[1][1], abs=1e-4)
        for key in results[0][0]:
            np.testing.assert_allclose(
                results[0][0][key], results[1][0][key], atol=1e-4, err_msg=f"{signature}: {key}"
            )
            assert not np.array_equal(results[0][0][key], weights[key]), f"{signature} does not move {key}"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("biased-fedavg", {"output_bias": "fc1/bias"}, "not the output layer's bias"),
        ("lg-fedavg", {"local_layers": "cnov"}, "did you mean 'conv'"),
        ("fedprox", {"mu": -1.0}, "0 or more"),
    ],
)
def test_invalid_option_is_reported_before_compilation(name, options, message, tiny_config):
    from edgefl.program.compiler.build import make_network

    with pytest.raises(ConfigError, match=message):
        build_objectives(name, make_network(tiny_config), options)


def test_output_bias_must_be_named_when_layers_are_frozen():
    """Frozen weights are last in the plan, so the last kernel of rank 2 is not the output layer's.

    The plan builder asks for the name.
    """
    import keras

    from edgefl.program.compiler.network import Network

    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(6, name="fc1", trainable=False),
            layers.Dense(3, name="fc2"),
            layers.Dense(2, name="fc3"),
        ]
    )
    network = Network(model)
    with pytest.raises(ConfigError, match="output_bias"):
        build_objectives("biased-fedavg", network, {})
    assert build_objectives("biased-fedavg", network, {"output_bias": "fc3/bias"})

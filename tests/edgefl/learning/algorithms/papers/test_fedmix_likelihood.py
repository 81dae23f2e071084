"""FedMix without q(z|y): the likelihood of equation 3 by hand, and the options that it excludes."""

from dataclasses import replace

import numpy as np
import pytest

from edgefl.base.errors import ConfigError
from edgefl.base.rng import derive_rng
from edgefl.base.types import ClientState, Shard
from edgefl.learning.algorithms import make_algorithm
from edgefl.learning.algorithms.check import check_algorithm
from tests.support.numpy_learner.softmax import SoftmaxLearner, softmax_spec

OPTIONS = {
    "num_experts": 2,
    "epochs": 1,
    "learning_rate": 1.0,
    "objective": "likelihood",
    "server_optimizer": "none",
}


def start_algorithm(inputs, features, classes):
    learner = SoftmaxLearner(
        softmax_spec(
            "fedmix", inputs=inputs, features=features, classes=classes, batch_size=8, options=OPTIONS
        )
    )
    initial = {spec.name: np.zeros(spec.shape, np.float32) for spec in learner.spec.weights}
    algorithm = make_algorithm("fedmix", learner, OPTIONS)
    return learner, initial, algorithm, algorithm.init(initial, derive_rng(1, 0, "init"))


def test_one_sample_by_hand():
    """With x = 1, h = 1 and 2, p(y=0) = 1/4 1/2 + 3/4 3/4 = 11/16.

    The experts' parts of it are 2/11 and 9/11.
    """
    _, _, algorithm, state = start_algorithm(1, 1, 2)
    models = {
        f"expert{k}": {
            "trunk/kernel": np.array([[h]], np.float32),
            "head/kernel": np.zeros((1, 2), np.float32),
            "head/bias": np.array([bias, 0], np.float32),
        }
        for k, (h, bias) in enumerate([(1.0, 0.0), (2.0, np.log(3))])
    }
    state = replace(state, models={**models, "phi": state.models["phi"]})
    gate = {"gate/kernel": np.zeros((1, 2), np.float32), "gate/bias": np.log([1, 3]).astype(np.float32)}
    x = np.ones((1, 1), np.float32)
    y = np.zeros(1, np.int64)
    update, client_state = algorithm.local_update(
        algorithm.broadcast(state, "a"),
        ClientState(gate),
        Shard(x_train=x, y_train=y, x_test=x, y_test=y, num_classes=2),
        "a",
        derive_rng(1, 1),
    )
    assert update.metrics["loss"] == pytest.approx(np.log(16 / 11), abs=1e-6)
    np.testing.assert_allclose(update.deltas["expert0"]["head/bias"], [1 / 11, -1 / 11], atol=1e-6)
    np.testing.assert_allclose(update.deltas["expert1"]["head/bias"], [9 / 44, -9 / 44], atol=1e-6)
    # Gate: A <- A - h_s (g - part of the expert), h_s = (1 + 2) / 2.
    np.testing.assert_allclose(
        client_state.arrays["gate/bias"] - gate["gate/bias"], [-3 / 44, 3 / 44], atol=1e-6
    )
    np.testing.assert_allclose(client_state.arrays["gate/kernel"], [[-4.5 / 44, 4.5 / 44]], atol=1e-6)
    # The updated gate, softmax(-1.5 4.5/44 - 3/44, ln 3 + 1.5 4.5/44 + 3/44), weights the deltas.
    np.testing.assert_allclose(
        [update.metrics["q/0"], update.metrics["q/1"]], [0.176275, 0.823725], atol=1e-6
    )
    after = algorithm.aggregate(state, [update])
    np.testing.assert_allclose(after.models["expert1"]["head/bias"], [np.log(3) + 9 / 44, -9 / 44], atol=1e-6)
    np.testing.assert_array_equal(after.models["phi"]["phi"], 0)


def test_laws_hold_with_likelihood_objective(shards):
    learner, initial, _, _ = start_algorithm(4, 3, 3)
    rng = np.random.default_rng(7)
    weights = {
        name: array if name == "phi" else rng.normal(0, 0.5, array.shape).astype(np.float32)
        for name, array in initial.items()
    }
    check_algorithm(
        lambda any_learner: make_algorithm("fedmix", any_learner, OPTIONS), learner, weights, shards
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "likelyhood"}, "did you mean 'likelihood'"),
        ({"server_optimizer": "adm"}, "did you mean 'adam'"),
        ({"objective": "likelihood", "prune": 0.5}, "leave them out"),
        ({"objective": "likelihood", "condition": "side"}, "leave them out"),
        ({"objective": "likelihood", "client_entropy": True}, "leave them out"),
    ],
)
def test_invalid_or_conflicting_options_are_an_error(options, message):
    with pytest.raises(ConfigError, match=message):
        make_algorithm("fedmix", None, options)

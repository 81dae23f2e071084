"""One sample of class 0 and a model of five numbers, small enough to train by hand.

The model is logits = x * trunk * kernel + bias.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from edgefl.base.rng import derive_rng
from edgefl.base.types import Broadcast, ClientState, Mixture, Shard, Update, Weights
from edgefl.learning.algorithms import PHASE_FEDERATE, PHASE_PERSONALIZE, Algorithm, make_algorithm
from tests.support.numpy_learner.softmax import SoftmaxLearner, softmax_spec


@dataclass(frozen=True)
class OneSample:
    """The initial model gives both classes a probability of one half.

    The first step's gradient is (-.5, .5) for kernel and bias, and 0 for the trunk.
    """

    start: Weights
    shard: Shard

    def make_algorithm(self, name: str, **options: Any) -> Algorithm:
        """Make an algorithm with its learner.

        By default it trains with rate 1, no momentum and one epoch of the one sample.
        """
        full: dict[str, Any] = {
            "learning_rate": 1.0,
            "momentum": 0.0,
            "epochs": 1,
            "batch_size": 1,
            **options,
        }
        return make_algorithm(
            name,
            SoftmaxLearner(softmax_spec(name, inputs=1, features=1, classes=2, batch_size=1, options=full)),
            full,
        )

    def train(self, algorithm: Algorithm, state: ClientState, model: Weights) -> tuple[Update, ClientState]:
        """Train client `a` in round 1."""
        return algorithm.local_update(
            Broadcast(round=1, phase=PHASE_FEDERATE, models={"global": model}),
            state,
            self.shard,
            "a",
            derive_rng(1, 1, "a"),
        )

    def personalize(
        self, algorithm: Algorithm, state: ClientState, models: Mapping[str, Weights]
    ) -> tuple[Mixture, ClientState]:
        """Personalize client `a` after one round."""
        return algorithm.personalize(
            Broadcast(round=2, phase=PHASE_PERSONALIZE, models=models),
            state,
            self.shard,
            derive_rng(1, 2, "a"),
        )


@pytest.fixture(scope="session")
def one_sample() -> OneSample:
    """Return a `OneSample`."""
    start = {
        "trunk/kernel": np.ones((1, 1), np.float32),
        "head/kernel": np.zeros((1, 2), np.float32),
        "head/bias": np.zeros(2, np.float32),
    }
    x = np.ones((1, 1), np.float32)
    y = np.zeros(1, np.int64)
    return OneSample(start, Shard(x_train=x, y_train=y, x_test=x, y_test=y, num_classes=2))


@pytest.fixture(scope="session")
def linear_network():
    """Return the numpy learner's network in Keras."""
    keras = pytest.importorskip("keras", reason="the aggregator extra is not installed")
    from edgefl.program.compiler.network import Network

    layers = [
        keras.Input((4,)),
        keras.layers.Dense(3, use_bias=False, name="trunk"),
        keras.layers.Reshape((1, 3)),
        keras.layers.GlobalAveragePooling1D(),  # of one value, so that only the last layer is the head
        keras.layers.Dense(3, name="head"),
    ]
    return Network(keras.Sequential(layers))

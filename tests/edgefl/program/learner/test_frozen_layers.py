"""A model with frozen layers (transfer learning) federates and personalizes like any other.

The first convolution and the first dense layer are frozen.
"""

import keras
import numpy as np
from keras import layers

from edgefl.base.config import FederationConfig, ModelConfig
from edgefl.base.rng import derive_rng
from edgefl.base.types import ClientState, Shard
from edgefl.learning.algorithms import make_algorithm
from edgefl.learning.algorithms.check import check_algorithm
from edgefl.learning.algorithms.plans import build_plan
from edgefl.program.learner.litert import LiteRTLearner

FROZEN = ("conv", "fc1")


def test_frozen_weights_do_not_change_and_the_laws_hold(tmp_path, digits):
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(4, 3, activation="relu", name="conv", trainable=False),
            layers.Flatten(name="flatten"),
            layers.Dense(16, activation="relu", name="fc1", trainable=False),
            layers.Dense(10, name="fc2"),
        ]
    )
    model.save(tmp_path / "frozen.keras")
    settings = ModelConfig(name=str(tmp_path / "frozen.keras"), input_shape=(8, 8, 1), num_classes=10)
    plan, initial = build_plan(FederationConfig(algorithm="pfl-mfe", options={"epochs": 1}, model=settings))
    x, y = digits
    shards = {
        f"pi-{i}": Shard(
            x_train=x[i::4][:40],
            y_train=y[i::4][:40],
            x_test=x[i::4][40:60],
            y_test=y[i::4][40:60],
            num_classes=10,
        )
        for i in range(2)
    }
    learner = LiteRTLearner(plan)
    check_algorithm(
        lambda any_learner: make_algorithm("pfl-mfe", any_learner, {"epochs": 1}), learner, initial, shards
    )
    algorithm = make_algorithm("pfl-mfe", learner, {"epochs": 1})
    state = algorithm.init(initial, derive_rng(1, 0, "init"))
    update, _ = algorithm.local_update(
        algorithm.broadcast(state, "pi-0"), ClientState(), shards["pi-0"], "pi-0", derive_rng(1, 1, "pi-0")
    )
    after = algorithm.aggregate(state, [update]).models["global"]
    for name, array in initial.items():
        assert np.array_equal(after[name], array) == name.startswith(FROZEN), name

"""FedBN: all weights of batch norms stay on the device."""

from dataclasses import replace

import numpy as np
import pytest

from edgefl.base.config import FederationConfig, ModelConfig
from edgefl.base.errors import ConfigError
from edgefl.base.rng import derive_rng
from edgefl.base.types import ClientState, Shard
from edgefl.learning.algorithms import build_objectives, make_algorithm
from edgefl.learning.algorithms.papers.fedbn import select_norm_weights
from edgefl.learning.algorithms.partial import START_MODEL
from edgefl.learning.algorithms.plans import build_plan
from edgefl.program.learner.litert import LiteRTLearner

MODEL = ModelConfig(
    name="autoencoder", input_shape=(4,), num_classes=3, options={"hidden": 6, "code": 3, "depth": 1}
)
PARTS = ("gamma", "beta", "moving_mean", "moving_variance")


def make_weights(*names):
    return {name: np.zeros(2, np.float32) for name in names}


def test_layers_with_moving_statistics_are_batch_norms():
    """A layer norm has gamma and beta, and is shared."""
    norm = [f"block/norm/{part}" for part in PARTS]
    weights = make_weights("fc/kernel", "layer_norm/gamma", "layer_norm/beta", *norm)
    assert select_norm_weights(weights) == norm
    without_scale = make_weights("fc/kernel", "norm/moving_mean", "norm/moving_variance")
    assert select_norm_weights(without_scale) == ["norm/moving_mean", "norm/moving_variance"]


def test_model_without_batch_norm_is_an_error(one_sample, tiny_config):
    from edgefl.program.compiler.build import make_network

    message = "none of the . weights of the model belongs to a batch norm.*use mobilenetv2, autoencoder"
    with pytest.raises(ConfigError, match=message):
        make_algorithm("fedbn", None, {}).init(one_sample.start, derive_rng(1, 0, "init"))
    with pytest.raises(ConfigError, match=message):
        build_objectives("fedbn", make_network(replace(tiny_config, algorithm="fedbn")), {})


def test_clients_with_other_samples_keep_other_norms_of_one_model():
    """Two clients receive the same shared weights. Each has the statistics of its own samples."""
    options = {"epochs": 2, "learning_rate": 0.05}
    plan, initial = build_plan(FederationConfig(rounds=2, algorithm="fedbn", options=options, model=MODEL))
    norms = {f"norm{number}/{part}" for number in (1, 2, 3) for part in PARTS}
    algorithm = make_algorithm("fedbn", LiteRTLearner(plan), options)
    state = algorithm.init(initial, derive_rng(1, 0, "init"))
    assert set(state.models[START_MODEL]) == norms
    assert set(state.models["global"]) == set(initial) - norms
    rng = np.random.default_rng(1)
    y = np.arange(30) % 3
    updates, states = [], {}
    for client_id, offset in (("a", 0), ("b", 5)):
        x = (np.eye(3, 4)[y] + rng.normal(offset, 0.3, (30, 4))).astype(np.float32)
        shard = Shard(x_train=x, y_train=y, x_test=x, y_test=y, num_classes=3)
        update, states[client_id] = algorithm.local_update(
            algorithm.broadcast(state, client_id),
            ClientState(),
            shard,
            client_id,
            derive_rng(1, 1, client_id),
        )
        assert set(update.deltas) == {"global"} and not set(update.deltas["global"]) & norms
        assert set(states[client_id].arrays) == norms
        updates.append(update)
    after = algorithm.aggregate(state, updates)
    models = [algorithm.current(algorithm.broadcast(after, c), states[c], shard).weights for c in "ab"]
    for name in initial:
        is_equal = np.array_equal(models[0][name], models[1][name])
        assert is_equal == (name not in norms), name

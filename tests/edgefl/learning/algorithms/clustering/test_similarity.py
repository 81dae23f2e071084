"""Similarity of clients: the compared weights, each layer by hand, and the epochs of a pretraining."""

import numpy as np
import pytest

from edgefl.base.errors import ConfigError
from edgefl.base.types import Shard
from edgefl.learning.algorithms.clustering.hierarchical import cosine_similarity
from edgefl.learning.algorithms.clustering.similarity import (
    flatten_weights,
    measure_layer_similarities,
    pretrain,
    select_compared_weights,
)
from edgefl.learning.algorithms.names import extract_layer
from tests.support.numpy_learner.softmax import SoftmaxLearner, softmax_spec

SHAPES = {
    "conv1/kernel": (3, 3, 1, 2),
    "conv1/bias": (2,),
    "bn/gamma": (2,),
    "fc1/kernel": (4, 3),
    "fc1/bias": (3,),
    "fc10/kernel": (3, 2),
    "head/fc/kernel": (2, 2),
}
WEIGHTS = {name: np.full(shape, i, np.float32) for i, (name, shape) in enumerate(SHAPES.items())}


@pytest.mark.parametrize(
    ("layers", "names"),
    [
        ("", ("fc1/bias", "fc1/kernel", "fc10/kernel", "head/fc/kernel")),
        ("fc1", ("fc1/bias", "fc1/kernel")),
        ("head, conv1/", ("conv1/bias", "conv1/kernel", "head/fc/kernel")),
    ],
)
def test_dense_or_named_layers_are_compared_with_their_biases(layers, names):
    assert select_compared_weights(WEIGHTS, layers) == names
    assert select_compared_weights(dict(reversed(WEIGHTS.items())), layers) == names


@pytest.mark.parametrize(
    ("weights", "layers", "message"),
    [
        ({"conv/kernel": np.zeros((1, 1, 1, 1))}, "", "no dense layer"),
        (WEIGHTS, "fc", "'fc', which is no layer of the model; it has bn, conv1"),
    ],
)
def test_model_without_matching_layers_is_an_error(weights, layers, message):
    with pytest.raises(ConfigError, match=message):
        select_compared_weights(weights, layers)


def test_flattened_vector_holds_named_weights_in_order():
    assert flatten_weights(
        {"a": np.array([[1, 2], [3, 4]], np.float32), "b": np.array([5], np.float32)}, ("b", "a")
    ).tolist() == [5, 1, 2, 3, 4]
    assert extract_layer("block/fc/kernel") == "block/fc"
    assert extract_layer("w") == "w"


def make_models(*angles):
    return [
        {
            "conv/kernel": np.ones((1, 1, 1, 2), np.float32),
            "fc/kernel": np.array([[np.cos(a), np.sin(a)]], np.float32),
        }
        for a in angles
    ]


def test_similarity_of_each_layer_by_hand():
    similarities = measure_layer_similarities(make_models(0, np.pi / 3, np.pi / 2))
    assert list(similarities) == ["conv", "fc"]
    np.testing.assert_allclose(similarities["conv"], np.ones((3, 3)), atol=1e-6)
    np.testing.assert_allclose(
        similarities["fc"], [[1, 0.5, 0], [0.5, 1, np.sqrt(0.75)], [0, np.sqrt(0.75), 1]], atol=1e-6
    )


def measure_pair_similarities(checkpoints):
    """Return one row for each epoch with all pairs of clients: (0, 1), (0, 2), ... (n - 2, n - 1)."""
    names = select_compared_weights(checkpoints[0][0])
    pairs = np.triu_indices(len(checkpoints[0]), 1)
    return np.stack(
        [cosine_similarity([flatten_weights(model, names) for model in row])[pairs] for row in checkpoints]
    )


def test_pretraining_returns_checkpoint_per_epoch_and_separates_tasks():
    """Clients 0 and 1 see classes 0 and 1, and clients 2 and 3 see classes 2 and 3.

    The pairs (0, 1) and (2, 3) stay more similar than the others.
    """
    rng = np.random.default_rng(2)
    shards = {}
    for i in range(4):
        y = rng.integers(0, 2, 40) + 2 * (i // 2)
        x = (np.eye(4)[y] * 2 + rng.normal(0, 0.3, (40, 4))).astype(np.float32)
        shards[f"pi-{i}"] = Shard(x_train=x, y_train=y, x_test=x, y_test=y, num_classes=4)
    learner = SoftmaxLearner(softmax_spec("clustered", inputs=4, features=4, classes=4))
    initial = {s.name: rng.normal(0, 0.3, s.shape).astype(np.float32) for s in learner.spec.weights}
    checkpoints = pretrain(learner, initial, shards, 3, {"learning_rate": 0.1})
    similarities = measure_pair_similarities(checkpoints)
    assert similarities.shape == (3, 6)
    assert (similarities[:, [0, 5]].min(axis=1) > similarities[:, 1:5].max(axis=1)).all()
    again = pretrain(learner, initial, dict(reversed(shards.items())), 3, {"learning_rate": 0.1})
    np.testing.assert_array_equal(measure_pair_similarities(again), similarities)

"""Similarity of clients' models, by layer and by epoch.

The source shows that convolutions are similar whatever the data, that dense layers distinguish the tasks, and
that few epochs are enough.

Source: Filippakopoulos et al., Personalization in Distributed tinyML Applications via Adaptive Clustered
Federated Learning, figures 3 and 4.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from edgefl.base.errors import ConfigError
from edgefl.base.rng import derive_rng
from edgefl.base.types import Array, Shard, Update, Weights
from edgefl.learning.algorithms.clustering.hierarchical import Matrix, cosine_similarity
from edgefl.learning.algorithms.names import GLOBAL, extract_layer
from edgefl.learning.algorithms.server_optimizer import STATISTICS
from edgefl.program.learner.base import Learner


def select_compared_weights(weights: Weights, layers: str = "") -> tuple[str, ...]:
    """Return the names of the weights that clients are compared by, sorted.

    Args:
        weights: the weights of the model.
        layers: names of layers, separated by commas. Empty selects the dense layers, which are the layers
            with a kernel of rank 2, including their biases.

    Raises:
        ConfigError: the model has no such layer.
    """
    requested = {layer.strip().rstrip("/") for layer in layers.split(",") if layer.strip()}
    dense = {extract_layer(name) for name, array in weights.items() if array.ndim == 2}
    if not requested and not dense:
        raise ConfigError(
            "the model has no dense layer (a kernel of rank 2) to compare clients by; name layers in "
            "[algorithm] layers"
        )
    names_by_layer = {
        layer: tuple(name for name in weights if f"{name}/".startswith(f"{layer}/"))
        for layer in requested or dense
    }
    for layer, names in names_by_layer.items():
        if not names:
            have = ", ".join(sorted({extract_layer(name) for name in weights}))
            raise ConfigError(
                f"[algorithm] layers has {layer!r}, which is no layer of the model; it has {have}"
            )
    return tuple(sorted({name for names in names_by_layer.values() for name in names}))


def flatten_weights(weights: Weights, names: Sequence[str]) -> Array:
    """Return the named weights as one vector, shape (d,), float32.

    Args:
        weights: at least the named weights.
        names: the weights to join, in the order of the vector. At least one.
    """
    return np.concatenate([weights[name].ravel() for name in names])


def select_statistics(weights: Weights) -> dict[str, Array]:
    """Return the moving statistics among the weights, which have the names of Keras's batch norm."""
    return {name: array for name, array in weights.items() if name.rpartition("/")[2] in STATISTICS}


def flatten_delta(update: Update) -> Array:
    """Return the delta without moving statistics as one vector, shape (d,), float32."""
    delta = update.deltas[GLOBAL]
    return flatten_weights(delta, sorted(delta.keys() - select_statistics(delta).keys()))


def measure_layer_similarities(models: Sequence[Weights]) -> dict[str, Matrix]:
    """Return the cosine similarity of each pair of models by layer.

    Args:
        models: the model of each client, trained from the same weights. At least one.

    Returns:
        The similarities of each layer, shape (n, n), float64, in the order of the first model's weights.

    Source: Filippakopoulos et al., figure 3.
    """
    layers = dict.fromkeys(extract_layer(name) for name in models[0])
    names = {layer: sorted(name for name in models[0] if extract_layer(name) == layer) for layer in layers}
    return {
        layer: cosine_similarity([flatten_weights(model, names[layer]) for model in models])
        for layer in layers
    }


def pretrain(
    learner: Learner,
    initial: Weights,
    shards: Mapping[str, Shard],
    epochs: int,
    hyper: Mapping[str, float],
    seed: int = 1,
) -> list[list[Weights]]:
    """Train each client from the same weights, and return the models of all clients after each epoch.

    The optimizer slots start from zero in each epoch.

    Args:
        initial: the weights from which all clients start.
        shards: samples by client id.
        hyper: hyperparameters of the signature `train`.

    Returns:
        For each epoch, the models in the order of the sorted client ids.
    """
    checkpoints: list[list[Weights]] = []
    before: list[Weights] = [initial] * len(shards)
    for epoch in range(1, epochs + 1):
        trained: list[Weights] = []
        for weights, client_id in zip(before, sorted(shards), strict=True):
            shard = shards[client_id]
            rng = derive_rng(seed, epoch, client_id)
            after, _ = learner.fit(
                "train", weights, {"x": shard.x_train}, shard.y_train, epochs=1, rng=rng, hyper=hyper
            )
            trained.append({**weights, **after})
        checkpoints.append(trained)
        before = trained
    return checkpoints

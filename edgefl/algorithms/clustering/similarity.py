"""How alike clients' models are, layer by layer and epoch by epoch.

Filippakopoulos et al., Personalization in Distributed tinyML Applications via Adaptive Clustered Federated
Learning, figures 3 and 4: convolutions are much alike whatever the data, dense layers tell the tasks apart,
and few epochs are enough.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from edgefl.algorithms.clustering.clustering import Matrix, cosine_similarity
from edgefl.algorithms.names import layer_of
from edgefl.errors import ConfigError
from edgefl.learner.base import Learner
from edgefl.rng import rng_for
from edgefl.types import Array, Shard, Weights


def compared(weights: Weights, layers: str = "") -> tuple[str, ...]:
    """Return the names of the weights that clients are compared by, sorted.

    layers: names of layers, with commas between; empty means the dense layers, which are those with a kernel
    of rank 2, with their biases. Raises ConfigError when there is no such layer.
    """
    wanted = {each.strip().rstrip("/") for each in layers.split(",") if each.strip()}
    dense = {layer_of(name) for name, array in weights.items() if array.ndim == 2}
    if not wanted and not dense:
        raise ConfigError(
            "the model has no dense layer (a kernel of rank 2) to compare clients by; name layers in "
            "[algorithm] layers"
        )
    found = {
        each: tuple(name for name in weights if f"{name}/".startswith(f"{each}/")) for each in wanted or dense
    }
    for each, names in found.items():
        if not names:
            have = ", ".join(sorted({layer_of(name) for name in weights}))
            raise ConfigError(f"[algorithm] layers names {each!r}, which the model has not; it has {have}")
    return tuple(sorted({name for names in found.values() for name in names}))


def vector(weights: Weights, names: Sequence[str]) -> Array:
    """Return the named weights as one vector, float32[d]."""
    return np.concatenate([weights[name].ravel() for name in names])


def layer_similarities(models: Sequence[Weights]) -> dict[str, Matrix]:
    """Return the heat map of each layer: the cosine similarity of each two models, float64[n, n] (figure 3).

    models: one a client, trained from the same weights. Layers are in the order of the first model's weights.
    """
    layers = dict.fromkeys(layer_of(name) for name in models[0])
    names = {layer: sorted(name for name in models[0] if layer_of(name) == layer) for layer in layers}
    return {layer: cosine_similarity([vector(model, names[layer]) for model in models]) for layer in layers}


def pretrain(
    learner: Learner,
    initial: Weights,
    shards: Mapping[str, Shard],
    epochs: int,
    hyper: Mapping[str, float],
    seed: int = 1,
) -> list[list[Weights]]:
    """Train each client from the same weights, and return after each epoch the models of all, by sorted
    client id.

    hyper: of the signature `train`. Optimizer slots start anew with each epoch.
    """
    checkpoints: list[list[Weights]] = []
    before: list[Weights] = [initial] * len(shards)
    for epoch in range(1, epochs + 1):
        trained: list[Weights] = []
        for weights, client_id in zip(before, sorted(shards), strict=True):
            shard = shards[client_id]
            rng = rng_for(seed, epoch, client_id)
            after, _ = learner.fit(
                "train", weights, {"x": shard.x_train}, shard.y_train, epochs=1, rng=rng, hyper=hyper
            )
            trained.append({**weights, **after})
        checkpoints.append(trained)
        before = trained
    return checkpoints

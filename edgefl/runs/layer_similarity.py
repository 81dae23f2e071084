"""How alike clients' layers are after each epoch of training alone, from the same weights: what a clustering
would have to go by.

Filippakopoulos et al., Personalization in Distributed tinyML Applications via Adaptive Clustered Federated
Learning, figures 3 and 4.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from edgefl.algorithms import complete_algorithm_options
from edgefl.algorithms.clustering.cluster_models import MAX_COMPARED_CLIENTS
from edgefl.algorithms.clustering.hierarchical import cosine_similarity
from edgefl.algorithms.clustering.similarity import (
    flatten_weights,
    measure_layer_similarities,
    pretrain,
    select_compared_weights,
)
from edgefl.errors import ConfigError
from edgefl.learner.base import Learner
from edgefl.types import Shard, Weights

WHOLE_MODEL_ALGORITHMS = {
    "fedavg",
    "clustered",
    "fedap",
    "ifca",
    "aem",
    "local",
    "pfl-ft",
    "pfl-fb",
    "pfl-mf",
    "pfl-mfe",
}
"""Algorithms whose clients train the whole model on their samples, by the plan's signature `train`."""
SIMILARITY_DIGITS = 5
"""Weights that were the same not long ago differ in the fourth."""
_HYPERPARAMETERS = ("learning_rate", "momentum", "weight_decay")


def check_layers(algorithm: str, clients: int) -> None:
    """Raise ConfigError where `layers_over` cannot be asked for."""
    if algorithm not in WHOLE_MODEL_ALGORITHMS:
        raise ConfigError(
            f"--layers-over trains whole models, {algorithm} does not; take one of "
            f"{', '.join(sorted(WHOLE_MODEL_ALGORITHMS))}"
        )
    if clients > MAX_COMPARED_CLIENTS:
        raise ConfigError(
            f"--layers-over of {clients} clients, expected {MAX_COMPARED_CLIENTS} at most: it compares "
            f"each two of "
            "them"
        )


def compare_layers(
    learner: Learner,
    initial: Weights,
    shards: Mapping[str, Shard],
    epochs: int,
    truth: Mapping[str, int],
    seed: int,
) -> dict[str, Any]:
    """Return the content of layers.json.

    Returns:
        Epochs, clients, their true clusters, and the cosine similarity of each two clients after each
        epoch: `layers` by layer, and `compared` for the dense layers together, or for the algorithm's
        option `layers`.
    """
    options = complete_algorithm_options(learner.spec.algorithm, learner.spec.options)
    hyper = {name: options[name] for name in _HYPERPARAMETERS if name in options}
    clients = sorted(shards)
    checkpoints = pretrain(learner, initial, shards, epochs, hyper, seed)
    names = select_compared_weights(initial, options.get("layers", ""))
    by_layer: dict[str, list[Any]] = {}
    for models in checkpoints:
        for layer, matrix in measure_layer_similarities(models).items():
            by_layer.setdefault(layer, []).append(np.round(matrix, SIMILARITY_DIGITS).tolist())
    together = [
        np.round(
            cosine_similarity([flatten_weights(model, names) for model in models]), SIMILARITY_DIGITS
        ).tolist()
        for models in checkpoints
    ]
    return {
        "epochs": list(range(1, epochs + 1)),
        "clients": clients,
        "truth": [truth.get(client, -1) for client in clients],
        "layers": by_layer,
        "dense": sorted({name.rpartition("/")[0] for name in names}),
        "compared": together,
    }

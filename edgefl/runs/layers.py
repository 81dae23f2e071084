"""How alike clients' layers are after each epoch of training alone, from the same weights: what a clustering
would have to go by.

Filippakopoulos et al., Personalization in Distributed tinyML Applications via Adaptive Clustered Federated
Learning, figures 3 and 4.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from edgefl.algorithms import full_options
from edgefl.algorithms.clustering.clustering import cosine_similarity
from edgefl.algorithms.clustering.clusters import MOST_COMPARED as MOST_CLIENTS
from edgefl.algorithms.clustering.similarity import compared, layer_similarities, pretrain, vector
from edgefl.errors import ConfigError
from edgefl.learner.base import Learner
from edgefl.types import Shard, Weights

TRAINED_AS = {"fedavg", "clustered", "fedap", "ifca", "aem", "local", "pfl-ft", "pfl-fb", "pfl-mf", "pfl-mfe"}
"""Algorithms whose clients train the whole model on their samples, by the plan's signature `train`."""
DIGITS = 5
"""Weights that were the same not long ago differ in the fourth."""
_HYPER = ("learning_rate", "momentum", "weight_decay")


def check_layers(algorithm: str, clients: int) -> None:
    """Raise ConfigError where `layers_over` cannot be asked for."""
    if algorithm not in TRAINED_AS:
        raise ConfigError(
            f"--layers-over trains whole models, {algorithm} does not; take one of "
            f"{', '.join(sorted(TRAINED_AS))}"
        )
    if clients > MOST_CLIENTS:
        raise ConfigError(
            f"--layers-over of {clients} clients, expected {MOST_CLIENTS} at most: it compares each two of "
            "them"
        )


def layers_over(
    learner: Learner,
    initial: Weights,
    shards: Mapping[str, Shard],
    epochs: int,
    truth: Mapping[str, int],
    seed: int,
) -> dict[str, Any]:
    """Return what layers.json holds: epochs, clients, their true clusters, and the cosine similarity of each
    two clients after each epoch.

    `layers`: by layer; `compared`: of the dense layers together, or of those that the algorithm's option
    `layers` names.
    """
    options = full_options(learner.spec.algorithm, learner.spec.options)
    hyper = {name: options[name] for name in _HYPER if name in options}
    clients = sorted(shards)
    checkpoints = pretrain(learner, initial, shards, epochs, hyper, seed)
    names = compared(initial, options.get("layers", ""))
    by_layer: dict[str, list[Any]] = {}
    for models in checkpoints:
        for layer, matrix in layer_similarities(models).items():
            by_layer.setdefault(layer, []).append(np.round(matrix, DIGITS).tolist())
    together = [
        np.round(cosine_similarity([vector(model, names) for model in models]), DIGITS).tolist()
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

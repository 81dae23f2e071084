"""Measures the similarity of clients' layers after each epoch, when every client trains alone.

All clients start from the same weights. The similarities show what a clustering of these clients can use.

Source: Filippakopoulos et al., Personalization in Distributed tinyML Applications via Adaptive Clustered
Federated Learning, figures 3 and 4.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from edgefl.base.errors import ConfigError
from edgefl.base.types import Shard, Weights
from edgefl.learning.algorithms import complete_algorithm_options
from edgefl.learning.algorithms.clustering.cluster_models import MAX_COMPARED_CLIENTS
from edgefl.learning.algorithms.clustering.hierarchical import cosine_similarity
from edgefl.learning.algorithms.clustering.similarity import (
    flatten_weights,
    measure_layer_similarities,
    pretrain,
    select_compared_weights,
)
from edgefl.program.learner.base import Learner

WHOLE_MODEL_ALGORITHMS = {
    "fedavg",
    "cfl",
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
"""Algorithms whose clients train the whole model with the plan's signature `train`."""
SIMILARITY_DIGITS = 5
"""Decimals of a similarity. Models that have trained for a few steps differ in the fourth decimal."""
_HYPERPARAMETERS = ("learning_rate", "momentum", "weight_decay")


def check_layers(algorithm: str, clients: int) -> None:
    """Check that a run can measure the similarity of layers, for `--layers-over`.

    Raises:
        ConfigError: clients of the algorithm do not train the whole model, or there are too many clients.
    """
    if algorithm not in WHOLE_MODEL_ALGORITHMS:
        raise ConfigError(
            f"--layers-over needs clients that train the whole model, which {algorithm} does not do; use one "
            f"of {', '.join(sorted(WHOLE_MODEL_ALGORITHMS))}"
        )
    if clients > MAX_COMPARED_CLIENTS:
        raise ConfigError(
            f"--layers-over would compare each pair of {clients} clients, expected at most "
            f"{MAX_COMPARED_CLIENTS}; lower num_clients of [partition]"
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

    Args:
        initial: the weights from which all clients start.
        shards: samples by client id.
        truth: true cluster by client id. Clients that are missing get -1.
        seed: random seed of the order of the samples.

    Returns:
        A JSON object:

            epochs: numbers of the epochs, from 1.
            clients: client ids, sorted.
            truth: true cluster of each client.
            layers: cosine similarities by layer, shape (epochs, clients, clients).
            dense: names of the compared layers. These are the dense layers, or the algorithm's option
                `layers`.
            compared: cosine similarities over all compared layers, shape (epochs, clients, clients).

    Raises:
        ConfigError: the model has no layer to compare.
        DivergedError: the loss of a client is not finite.
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


def measure_layer_gaps(layers: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return by how much clients of a true cluster are more similar than clients of different clusters.

    Args:
        layers: the result of `compare_layers`.

    Returns:
        Differences of mean similarities by epoch: for the compared layers (`dense`), and for the mean of the
            others (`others`) if there are any. `dense_relative` and `others_relative` are divided by 1 minus
            the mean similarity of clients of different clusters. So they do not grow by themselves while all
            clients move away from their common first weights. NaN if there are no two clusters, or no two
            clients of one cluster. `dense_between` and `others_between` are the mean similarities of clients
            of different clusters. The keys of the epochs are their numbers.

    Source: Filippakopoulos et al., figures 3 and 4.
    """
    truth = np.asarray(layers["truth"])
    is_same = truth[:, None] == truth[None, :]
    is_pair = ~np.eye(len(truth), dtype=np.bool_)

    def measure(matrices: Any) -> tuple[Any, Any, Any]:
        array = np.asarray(matrices)
        if is_same.all() or not (is_same & is_pair).any():
            missing = np.full(len(array), np.nan)
            return missing, missing, missing
        between = array[:, ~is_same].mean(axis=1)
        gaps = array[:, is_same & is_pair].mean(axis=1) - between
        distances = 1 - between
        return gaps, np.divide(gaps, distances, out=np.zeros_like(gaps), where=distances > 0), between

    kinds = {"dense": measure(layers["compared"])}
    others = [measure(matrices) for name, matrices in layers["layers"].items() if name not in layers["dense"]]
    if others:
        kinds["others"] = np.mean(others, axis=0)
    rows = {
        f"{kind}{suffix}": values
        for kind, parts in kinds.items()
        for suffix, values in zip(("", "_relative", "_between"), parts, strict=True)
    }
    return {
        name: {str(epoch): float(gap) for epoch, gap in zip(layers["epochs"], values, strict=True)}
        for name, values in rows.items()
    }

"""How alike clients were when they were clustered, told in full: similarities, merges and cut, for a heat map with its dendrogram.

What is compared is what the algorithm itself compares: `clustered` dense layers by cosine (or the layers that its options name),
`fedap` whole models by Euclidean distance and Ward's method. Both are told with the cosine similarity, which has a scale.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from edgefl.algorithms.base import assignments
from edgefl.algorithms.clustering import Matrix, cosine_similarity, euclidean_distance, linkage
from edgefl.algorithms.fedap import statistics
from edgefl.algorithms.fedavg import GLOBAL
from edgefl.algorithms.similarity import compared, layer_of, vector
from edgefl.types import Array, ServerState, Update, Weights

MOST_CLIENTS = 100
DIGITS = 3


def comparable(algorithm: str, options: Mapping[str, Any], start: Weights, delta: Weights) -> tuple[str, Array] | None:
    """Return what is compared in words, and the vector of one client, float32[d]; None for an algorithm that compares no models.

    options: all of them, with their defaults; start: the model that clients began with; delta: what one client has added to it.
    """
    if algorithm == "fedap":
        return "what training changed in the whole model", vector(delta, sorted(delta.keys() - statistics(delta).keys()))
    if algorithm != "clustered":
        return None
    names = compared(start, options["layers"])
    layers = ", ".join(sorted({layer_of(name) for name in names}))
    if options["compare"] == "deltas":
        return f"what training changed in {layers}", vector(delta, names)
    return f"the weights of {layers}", vector(start, names) + vector(delta, names)


def merges_of(algorithm: str, vectors: Sequence[Array]) -> Matrix:
    """Return the merges that the algorithm cuts, float64[n - 1, 4]; see `clustering.linkage`."""
    if algorithm == "fedap":
        return linkage(euclidean_distance(vectors), "ward")
    return linkage(1.0 - cosine_similarity(vectors), "average")


def likeness(algorithm: str, layer: str, vectors: Mapping[str, Array], after: ServerState) -> dict[str, Any] | None:
    """Return what clusters.json holds: matrix (three digits), linkage, cut and the clusters; None of more than 100 clients.

    vectors: by client id, in the order of the updates; after: the state that the clustering gave.
    """
    placed = assignments(after)
    if not 0 < len(vectors) <= MOST_CLIENTS or not placed:
        return None
    found = list(vectors.values())
    return {
        "round": after.round - 1, "layer": layer, "clients": list(vectors), "assignment": placed,
        "matrix": np.round(cosine_similarity(found), DIGITS).tolist(),
        "linkage": [[int(a), int(b), float(height), int(size)] for a, b, height, size in merges_of(algorithm, found)],
        "cut": after.scalars.get("cut/at"),
    }  # fmt: skip


def likeness_of(
    algorithm: str, options: Mapping[str, Any], state: ServerState, updates: Iterable[Update], after: ServerState
) -> dict[str, Any] | None:
    """Return what `likeness` does of a clustering round: the state before it, its updates, read once, and the state after it."""
    layer, vectors = "", dict[str, Array]()
    for update in updates:
        found = comparable(algorithm, options, state.models[GLOBAL], update.deltas[GLOBAL])
        if found is None:
            return None
        layer, vectors[update.client_id] = found
    return likeness(algorithm, layer, vectors, after)

"""How alike clients were when they were clustered, told in full: similarities, merges and cut, for a heat map with its dendrogram.

What is compared is what the algorithm itself compares: `clustered` dense layers by cosine (or the layers that its options name),
`fedap` whole models by Euclidean distance and Ward's method. Both are told with the cosine similarity, which has a scale.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from edgefl.algorithms.clustering import Matrix, cosine_similarity, euclidean_distance, linkage
from edgefl.algorithms.fedap import statistics
from edgefl.algorithms.similarity import compared, layer_of, vector
from edgefl.types import Array, ServerState, Weights

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
    """Return round, layer, clients, matrix (three digits), linkage and cut as JSON holds them; None of more than 100 clients.

    vectors: by client id, in the order of the updates; after: the state that the clustering gave.
    """
    if not 0 < len(vectors) <= MOST_CLIENTS:
        return None
    found = list(vectors.values())
    cut = after.scalars.get("cut/at")
    return {
        "round": after.round - 1, "layer": layer, "clients": list(vectors),
        "matrix": np.round(cosine_similarity(found), DIGITS).tolist(),
        "linkage": [[int(a), int(b), float(height), int(size)] for a, b, height, size in merges_of(algorithm, found)], "cut": cut,
    }  # fmt: skip

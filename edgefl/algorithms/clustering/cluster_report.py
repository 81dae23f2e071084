"""The report of a clustering round, for a heat map with its dendrogram.

It holds the clients' similarities, the merges and the cut.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from edgefl.algorithms.base import read_assignments
from edgefl.algorithms.clustering.cluster_models import (
    LINKAGE,
    MATRIX,
    list_compared_clients,
    read_comparison,
)
from edgefl.algorithms.clustering.similarity import select_compared_weights
from edgefl.algorithms.names import INITIAL, extract_layer
from edgefl.types import ServerState


def make_cluster_report(options: Mapping[str, Any], after: ServerState) -> dict[str, Any] | None:
    """Return the content of clusters.json, or None if the last round was not a clustering round.

    Args:
        options: all options of the algorithm, with defaults.
        after: the server state after the round.

    Returns:
        Round, description of the compared weights, clients, assignment, cosine similarities, merges and cut.
    """
    comparison = read_comparison(after)
    clusters = read_assignments(after)
    if (
        comparison is None
        or comparison[0] != after.round - 1
        or len(comparison[1][MATRIX]) != len(list_compared_clients(after))
    ):
        return None
    round, similarity, cut_height = comparison
    return {
        "round": round,
        "layer": _describe_comparison(options, after),
        "clients": list_compared_clients(after),
        "assignment": dict(sorted(clusters.items())),
        "matrix": np.round(similarity[MATRIX].astype(np.float64), 3).tolist(),
        "linkage": [
            [int(a), int(b), float(f"{height:.6g}"), int(size)]
            for a, b, height, size in similarity[LINKAGE].tolist()
        ],
        "cut": cut_height,
    }


def _describe_comparison(options: Mapping[str, Any], after: ServerState) -> str:
    if "layers" not in options:
        return "what training changed in the whole model"
    names = select_compared_weights(after.models[INITIAL], options["layers"])
    layers = ", ".join(sorted({extract_layer(name) for name in names}))
    return (
        f"what training changed in {layers}"
        if options.get("compare") == "deltas"
        else f"the weights of {layers}"
    )

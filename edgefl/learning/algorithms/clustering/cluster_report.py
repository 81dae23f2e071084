"""The report of a clustering round, for a heat map with its dendrogram.

It holds the clients' similarities, the merges and the cut.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from edgefl.base.types import ServerState
from edgefl.learning.algorithms.base import read_assignments
from edgefl.learning.algorithms.clustering.cluster_models import LastCut, list_compared_clients
from edgefl.learning.algorithms.clustering.similarity import select_compared_weights
from edgefl.learning.algorithms.names import INITIAL, extract_layer


def make_cluster_report(options: Mapping[str, Any], after: ServerState) -> dict[str, Any] | None:
    """Return the content of clusters.json, or None if the last round was not a clustering round.

    Args:
        options: all options of the algorithm, with defaults.
        after: the server state after the round.

    Returns:
        Round, description of the compared weights, clients, assignment, cosine similarities, merges and cut.
    """
    cut = after.read_record(LastCut)
    clients = list_compared_clients(after)
    if (
        cut.similarity is None
        or cut.merges is None
        or cut.round != after.round - 1
        or len(cut.similarity) != len(clients)
    ):
        return None
    return {
        "round": cut.round,
        "layer": _describe_comparison(options, after),
        "clients": clients,
        "assignment": dict(sorted(read_assignments(after).items())),
        "matrix": np.round(cut.similarity.astype(np.float64), 3).tolist(),
        "linkage": [
            [int(a), int(b), float(f"{height:.6g}"), int(size)] for a, b, height, size in cut.merges.tolist()
        ],
        "cut": cut.height,
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

"""How alike clients were when they were clustered, as a file: similarities, merges and cut, for a heat map
with its dendrogram.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from edgefl.algorithms.base import assignments
from edgefl.algorithms.clustering.clusters import LINKAGE, MATRIX, compared_clients, compared_in
from edgefl.algorithms.clustering.similarity import compared
from edgefl.algorithms.names import INITIAL, layer_of
from edgefl.types import ServerState


def likeness(algorithm: str, options: Mapping[str, Any], after: ServerState) -> dict[str, Any] | None:
    """Return what clusters.json holds: round, what was compared, clients, their clusters, cosine
    similarities, merges and cut.

    options: all of the algorithm's, with their defaults. None but for the state that a clustering round has
    given.
    """
    found = compared_in(after)
    placed = assignments(after)
    if found is None or found[0] != after.round - 1 or len(found[1][MATRIX]) != len(compared_clients(after)):
        return None
    round, kept, cut = found
    return {
        "round": round,
        "layer": _words(algorithm, options, after),
        "clients": sorted(placed),
        "assignment": dict(sorted(placed.items())),
        "matrix": np.round(kept[MATRIX].astype(np.float64), 3).tolist(),
        "linkage": [
            [int(a), int(b), float(f"{height:.6g}"), int(size)]
            for a, b, height, size in kept[LINKAGE].tolist()
        ],
        "cut": cut,
    }


def _words(algorithm: str, options: Mapping[str, Any], after: ServerState) -> str:
    if algorithm == "fedap":
        return "what training changed in the whole model"
    names = compared(after.models[INITIAL], options.get("layers", ""))
    layers = ", ".join(sorted({layer_of(name) for name in names}))
    return (
        f"what training changed in {layers}"
        if options.get("compare") == "deltas"
        else f"the weights of {layers}"
    )

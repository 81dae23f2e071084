"""Weights arithmetic: element-wise, name by name, float64 inside where sums are long, float32 out."""

from collections.abc import Iterable

import numpy as np

from edgefl.types import Weights


def add(a: Weights, b: Weights) -> Weights:
    """Return a + b."""
    return {name: np.asarray(a[name] + b[name], np.float32) for name in a}


def subtract(a: Weights, b: Weights) -> Weights:
    """Return a - b."""
    return {name: np.asarray(a[name] - b[name], np.float32) for name in a}


def weighted_mean(terms: Iterable[tuple[Weights, float]]) -> Weights | None:
    """Return sum(n * w) / sum(n) over (w, n), read once and one at a time; None when there is no weight at all.

    The order of the terms fixes the bits: give them sorted by client id.
    """
    total: dict[str, np.ndarray] = {}
    weight = 0.0
    for arrays, n in terms:
        weight += n
        for name, array in arrays.items():
            term = array.astype(np.float64) * n
            total[name] = total[name] + term if name in total else term
    if weight == 0:
        return None
    return {name: (array / weight).astype(np.float32) for name, array in total.items()}

"""Weights arithmetic: element-wise, name by name, float64 inside where sums are long, float32 out."""

from collections.abc import Iterable

import numpy as np

from edgefl.types import Array, Weights


def add(a: Weights, b: Weights) -> Weights:
    """Return a + b."""
    return {name: np.asarray(a[name] + b[name], np.float32) for name in a}


def subtract(a: Weights, b: Weights) -> Weights:
    """Return a - b."""
    return {name: np.asarray(a[name] - b[name], np.float32) for name in a}


def weighted_mean(terms: Iterable[tuple[Weights, float]]) -> Weights | None:
    """Return sum(n * w) / sum(n) over (w, n), read once and one at a time.

    None when there is no weight at all.

    The order of the terms fixes the bits: give them sorted by client id.
    """
    return average_by_group(("", arrays, n) for arrays, n in terms).get("")


def average_by_group(terms: Iterable[tuple[str, Weights, float]]) -> dict[str, Weights]:
    """Return the weighted mean of each group over (group, w, n), read once and one at a time.

    A group without weight is left out.

    The order of the terms fixes the bits: give them sorted by client id.
    """
    totals: dict[str, dict[str, np.ndarray]] = {}
    weights: dict[str, float] = {}
    for group, arrays, n in terms:
        total = totals.setdefault(group, {})
        weights[group] = weights.get(group, 0.0) + n
        for name, array in arrays.items():
            term = np.multiply(array, n, dtype=np.float64)
            if name in total:
                total[name] += term
            else:
                total[name] = term
    return {
        group: {name: (array / weights[group]).astype(np.float32) for name, array in total.items()}
        for group, total in totals.items()
        if weights[group]
    }


def redraw(weights: Weights, rng: np.random.Generator) -> dict[str, Array]:
    """Return other first weights with the same values: those of each array are permuted, kernels first, then
    biases.

    This is a draw from an initializer that draws values independently. It is none for orthogonal kernels, and
    of trained weights it makes noise: the plan builder makes better draws, see `edgefl.algorithms.draws`.
    Names are taken in sorted order, so that the draw does not depend on the mapping's.
    """
    names = sorted(weights, key=lambda name: (weights[name].ndim < 2, name))
    drawn = {name: rng.permuted(weights[name].ravel()).reshape(weights[name].shape) for name in names}
    return {name: drawn[name] for name in weights}

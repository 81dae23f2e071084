"""Element-wise arithmetic of weights by name.

Long sums are computed in float64. All results are float32.
"""

from collections.abc import Iterable

import numpy as np

from edgefl.base.types import Array, Weights


def add(a: Weights, b: Weights) -> Weights:
    """Return a + b, with the names of `a`.

    Args:
        a: the first weights.
        b: the second weights, at least those that `a` names, with the same shapes.
    """
    return {name: np.asarray(a[name] + b[name], np.float32) for name in a}


def subtract(a: Weights, b: Weights) -> Weights:
    """Return a - b, with the names of `a`.

    Args:
        b: the weights to subtract, at least those that `a` names, with the same shapes.
    """
    return {name: np.asarray(a[name] - b[name], np.float32) for name in a}


def weighted_mean(terms: Iterable[tuple[Weights, float]]) -> Weights | None:
    """Return sum(n * w) / sum(n), or None if the weights n sum to zero.

    Args:
        terms: pairs (w, n), read once and one at a time. Their order affects the bits of the result, so sort
            them by client id.
    """
    return average_by_group(("", arrays, n) for arrays, n in terms).get("")


def average_by_group(terms: Iterable[tuple[str, Weights, float]]) -> dict[str, Weights]:
    """Return the weighted mean of each group. A group whose weights n sum to zero is left out.

    Args:
        terms: triples (group, w, n), read once and one at a time. Their order affects the bits of the result,
            so sort them by client id.
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
    """Return new initial weights by permuting the values of each array.

    This equals a draw from an initializer that draws values independently. It does not for orthogonal
    kernels, and it turns trained weights into noise. The plan builder makes better draws
    (`edgefl.learning.algorithms.draws`). Kernels are permuted before biases, each in sorted order of names,
    so the draw does not depend on the order of the mapping.

    Args:
        weights: the weights to permute.
        rng: draws the permutations.
    """
    names = sorted(weights, key=lambda name: (weights[name].ndim < 2, name))
    drawn = {name: rng.permuted(weights[name].ravel()).reshape(weights[name].shape) for name in names}
    return {name: drawn[name] for name in weights}

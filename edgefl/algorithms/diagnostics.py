"""Measures of how a federation goes, of what the server sees anyway: pure functions, for analysis and plots.

Reisser et al., Federated Mixture of Experts, arXiv:2107.06724, appendix D, equations 16 and 17.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from edgefl.types import Weights


def gradient_divergence(deltas: Sequence[Weights], shares: ArrayLike) -> float:
    """Return sum_i sum_j p_i p_j (1 - cos(delta_i, delta_j)) / 2, summed over the tensors: 0 aligned, 1 a tensor at most.

    deltas: one client each, all with the same names; shares: p(s|k) of the clients (p(s) for a single model), scaled to one.
    A delta that is zero in a tensor points nowhere: its cosine with any other is taken as zero, with itself as one.
    """
    weights = np.asarray(shares, np.float64)
    weights = weights / weights.sum()
    total = 0.0
    for name in deltas[0]:
        rows = np.stack([np.asarray(delta[name], np.float64).ravel() for delta in deltas])
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        directions = rows / np.where(lengths > 0, lengths, 1.0)
        cosines = directions @ directions.T
        np.fill_diagonal(cosines, 1.0)
        total += float(weights @ (0.5 * (1 - cosines)) @ weights)
    return total

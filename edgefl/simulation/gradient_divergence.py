"""How far the clients' deltas of a round point apart.

Reisser et al., Federated Mixture of Experts, arXiv:2107.06724, appendix D, equations 16 and 17.
"""

from collections.abc import Mapping

import numpy as np

from edgefl.types import Array, Weights


class GradientDivergence:
    """Divergence of deltas that come one at a time. It keeps one sum of directions a model.

    It is sum_ij p_i p_j (1 - cos(delta_i, delta_j)) / 2, summed over the tensors, where p_i is p(s|k) of a
    client, scaled to one. It is 0 for aligned deltas, and at most 1 a tensor. A delta that is zero in a
    tensor points nowhere: its cosine with any other is zero, with itself one.

    The double sum over pairs is the square of one: sum_ij p_i p_j (1 - u_i u_j) / 2 = (1 - |sum_i p_i u_i|^2)
    / 2 for unit vectors u.
    """

    def __init__(self) -> None:
        self._sums: dict[str, dict[str, Array]] = {}
        self._weights: dict[str, float] = {}
        self._still: dict[str, dict[str, float]] = {}

    def add(self, model: str, delta: Weights, weight: float) -> None:
        """Add the delta of a client.

        Args:
            weight: p(s|k) of the client or N_s, up to a factor.
        """
        if weight <= 0:
            return
        sums = self._sums.setdefault(model, {})
        still = self._still.setdefault(model, {})
        self._weights[model] = self._weights.get(model, 0.0) + weight
        for name, array in delta.items():
            length = float(np.linalg.norm(array))
            if length > 0:
                direction = np.asarray(array, np.float32) * np.float32(weight / length)
                sums[name] = sums[name] + direction if name in sums else direction
            else:  # it points nowhere: like itself alone
                sums.setdefault(name, np.zeros_like(array, np.float32))
                still[name] = still.get(name, 0.0) + weight**2

    def compute(self) -> Mapping[str, float]:
        """Return the divergence of each model that had a delta."""
        divergences = {}
        for model, sums in self._sums.items():
            total = self._weights[model] ** 2
            parts = (
                float(np.sum(np.square(s, dtype=np.float64))) + self._still[model].get(name, 0.0)
                for name, s in sums.items()
            )
            divergences[model] = sum(max(0.0, 0.5 * (1 - part / total)) for part in parts)
        return divergences

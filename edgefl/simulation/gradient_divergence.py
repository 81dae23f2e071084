"""Measures how much the directions of the clients' deltas differ in a round.

Source: Reisser et al., Federated Mixture of Experts, arXiv:2107.06724, appendix D, equations 16 and 17.
"""

from collections.abc import Mapping

import numpy as np

from edgefl.base.types import Array, Weights


class GradientDivergence:
    """Computes the divergence of deltas that are added one at a time. It stores one sum per model.

    The divergence of a tensor is sum_ij p_i p_j (1 - cos(delta_i, delta_j)) / 2, where p_i is the weight of
    client i, p(s|k), and all p_i sum to one. The divergence of a model is the sum over its tensors. It is 0
    for aligned deltas, and at most 1/2 per tensor. The cosine of a zero tensor with another tensor counts as
    0, and with itself as 1.

    With unit vectors u_i, the double sum equals (1 - |sum_i p_i u_i|^2) / 2. It therefore needs only the
    weighted sum of the directions.
    """

    def __init__(self) -> None:
        self._sums: dict[str, dict[str, Array]] = {}
        self._weights: dict[str, float] = {}
        self._still: dict[str, dict[str, float]] = {}

    def add(self, model: str, delta: Weights, weight: float) -> None:
        """Add the delta of a client.

        Args:
            model: name of the model.
            delta: the delta of the model, float32 arrays by name.
            weight: p_i up to a common factor, such as the client's number of samples. A delta whose weight is
                not above 0 is ignored.
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
            else:  # a zero tensor has no direction, and counts as similar only to itself
                sums.setdefault(name, np.zeros_like(array, np.float32))
                still[name] = still.get(name, 0.0) + weight**2

    def compute(self) -> Mapping[str, float]:
        """Return the divergence of each model that has a delta, by the model's name."""
        divergences = {}
        for model, sums in self._sums.items():
            total = self._weights[model] ** 2
            parts = (
                float(np.sum(np.square(s, dtype=np.float64))) + self._still[model].get(name, 0.0)
                for name, s in sums.items()
            )
            divergences[model] = sum(max(0.0, 0.5 * (1 - part / total)) for part in parts)
        return divergences

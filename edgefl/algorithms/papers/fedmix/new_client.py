"""FedMix for a client without labels: the gates of all the others, each by its share of the samples.

Reisser et al., Federated Mixture of Experts, arXiv:2107.06724, appendix F: p(z|x) = sum_s p_theta_s(z|x, s)
p(s), p(s) = N_s / N, then p(y|x) = sum_z p_wz(y|x, z) p(z|x). Gates are private: this is for a simulation,
where the mixtures of all clients lie on one machine. In a federation such a client has the uniform ensemble,
or with `gate = "federated"` that gate (`federated` of its peers).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from edgefl.algorithms.mixtures import responsibility as rs
from edgefl.algorithms.papers.fedmix.gate import seen_by
from edgefl.algorithms.papers.fedmix.objectives import BIAS, KERNEL
from edgefl.learner.base import Learner
from edgefl.types import Array, Mixture, Weights


@dataclass(frozen=True)
class ClientGate:
    """theta_s = (A: float32[width, experts], b: float32[experts]), q(z|s) float64[experts] and N_s of one
    client.
    """

    kernel: Array
    bias: Array
    responsibility: rs.Real
    num_samples: float


def gate_in(mixture: Mixture, num_samples: float) -> ClientGate:
    """Return the gate in a client's mixture; num_samples: of the client's training split."""
    weights = mixture.weights
    count = len(weights[BIAS])
    responsibility = np.array([float(weights[f"responsibility/{k}"][0]) for k in range(count)])
    return ClientGate(weights[KERNEL], weights[BIAS], responsibility, num_samples)


def marginal_gate(hidden: ArrayLike, gates: Sequence[ClientGate]) -> rs.Real:
    """Return p(z|x): float64[n, experts], from h_k(x): float32[experts, n, width]."""
    values = np.asarray(hidden, np.float64)
    total = sum(gate.num_samples for gate in gates)
    parts = []
    for gate in gates:
        logits = np.tensordot(gate.responsibility, values, axes=1) @ gate.kernel + gate.bias
        parts.append(gate.num_samples / total * rs.by_condition(logits))
    return np.asarray(sum(parts), np.float64)


def predict_unlabelled(
    learner: Learner, models: Mapping[int, Weights], gates: Sequence[ClientGate], x: Array
) -> rs.Real:
    """Return p(y|x) for a client without labels: float64[n, classes], from all experts of the server by
    index.
    """
    seen = [seen_by(learner, models[k], x) for k in sorted(models)]
    gate = marginal_gate(np.stack([hidden for hidden, _ in seen]), gates)
    parts = [gate[:, k : k + 1] * rs.by_condition(logits) for k, (_, logits) in enumerate(seen)]
    return np.asarray(sum(parts), np.float64)

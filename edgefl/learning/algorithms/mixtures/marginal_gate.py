"""The gate of a client that has no labels to train one: the mean over the gates of the participants.

p(z|x) = sum_s p_theta_s(z|x,s) p(s), where p(s) is the participant's share of all training samples. The
client then predicts p(y|x) = sum_z p_wz(y|x,z) p(z|x).

Gates are private. So this needs all participants on one machine, as in a simulation, or a federated gate.

Source: Reisser et al., Federated Mixture of Experts, arXiv:2107.06724, appendix F.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from edgefl.base.types import Array, Weights
from edgefl.learning.algorithms.mixtures import responsibility as rs
from edgefl.learning.algorithms.mixtures.gate import HIDDEN_LOGITS
from edgefl.program.learner.base import Learner

CHUNK_SAMPLES = 1024
"""Number of samples whose hidden features are in memory at the same time."""


@dataclass(frozen=True)
class ParticipantGate:
    """The gate of one participant.

    Attributes:
        kernel: A_s, shape (hidden_width, experts), float32.
        bias: b_s, shape (experts,), float32.
        responsibility: q(z|s), by which the gate weighs the hidden features, shape (experts,), float64.
        num_samples: number of training samples of the participant.
    """

    kernel: Array
    bias: Array
    responsibility: rs.Real
    num_samples: float


def marginalize_gates(hidden: ArrayLike, gates: Sequence[ParticipantGate]) -> rs.Real:
    """Return p(z|x) = sum_s p_theta_s(z|x,s) p(s).

    Args:
        hidden: h_k(x), the input of each expert's last layer, shape (experts, n, hidden_width).
        gates: the gates of the participants. At least one.

    Returns:
        The probabilities, shape (n, experts), float64.
    """
    features = np.asarray(hidden, np.float64)
    total = sum(gate.num_samples for gate in gates)
    return np.asarray(
        sum(
            gate.num_samples
            / total
            * rs.normalize_logits(
                np.tensordot(gate.responsibility, features, axes=1) @ gate.kernel + gate.bias
            )
            for gate in gates
        ),
        np.float64,
    )


def predict_without_labels(
    learner: Learner, models: Mapping[int, Weights], gates: Sequence[ParticipantGate], x: Array
) -> tuple[rs.Real, rs.Real]:
    """Return the predictions for a client without labels.

    Args:
        models: all experts of the server by index, in ascending order.
        gates: the gates of the participants. At least one.
        x: samples, shape (n, *input_shape), float32.

    Returns:
        p(y|x), shape (n, classes), and p(z|x), shape (n, experts), float64.
    """
    width = len(gates[0].kernel)

    def predict_chunks() -> Iterator[tuple[rs.Real, rs.Real]]:
        for start in range(0, len(x), CHUNK_SAMPLES):
            outputs = np.stack(
                [
                    learner.predict(HIDDEN_LOGITS, model, {"x": x[start : start + CHUNK_SAMPLES]})
                    for model in models.values()
                ]
            )
            gated = marginalize_gates(outputs[:, :, :width], gates)
            yield np.einsum("nk,knc->nc", gated, rs.normalize_logits(outputs[:, :, width:])), gated

    classes, experts = zip(*predict_chunks(), strict=True)
    return np.concatenate(classes), np.concatenate(experts)

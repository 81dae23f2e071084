"""The gate over the experts of a mixture: its input, its probabilities, and the samples that train it."""

from collections.abc import Mapping

import numpy as np

from edgefl.algorithms.mixtures import responsibility as rs
from edgefl.data.holdout import hold_out
from edgefl.learner.base import Learner
from edgefl.types import Array, Labels, Weights

GATE_KERNEL = "gate/kernel"
GATE_BIAS = "gate/bias"
HIDDEN_LOGITS = "hidden_logits"
TRAIN_GATE = "train_gate"


def split_gate_samples(
    labels: Labels, share: float, rng: np.random.Generator, groups: Labels | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Split a client's training samples into D_per and D_gate; each holds at least one sample.

    A gate that trains on samples which resemble those of an expert trusts this expert too much. So a group is
    not divided where there are two or more.

    Args:
        labels: int64[n].
        share: share of the samples for D_gate.
        rng: the draw.
        groups: int64[n], the recording of each sample, where it is known.

    Returns:
        Sorted int64 indices. A single sample is in both.
    """
    count = len(labels)
    if count < 2:
        return np.arange(count), np.arange(count)
    if groups is not None and 0 < share < 1:
        per, gated = hold_out(labels, groups, share, rng)
        if len(gated):
            return per, gated
    order = rng.permutation(count)
    gate = min(max(1, round(count * share)), count - 1)
    return np.sort(order[gate:]), np.sort(order[:gate])


def mix_hidden_features(
    learner: Learner, models: Mapping[int, Weights], responsibility: rs.Real, x: Array
) -> Array:
    """Return h_s = sum_k q(k|s) h_k over these experts: float32[n, hidden_width]."""
    width = next(
        spec.shape[0] for spec in learner.spec.find_signature(TRAIN_GATE).trained if spec.name == GATE_KERNEL
    )
    terms = (
        responsibility[k] * learner.predict(HIDDEN_LOGITS, models[k], {"x": x})[:, :width] for k in models
    )
    return np.asarray(sum(terms), np.float32)


def apply_gate(hidden: Array, gate: Weights) -> rs.Real:
    """Return p(z|x,s) of each sample: float64[n, experts]."""
    return rs.normalize_logits(hidden.astype(np.float64) @ gate[GATE_KERNEL] + gate[GATE_BIAS])

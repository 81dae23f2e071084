"""The gate over the experts of a mixture: its input, its probabilities, and its training samples."""

from collections.abc import Mapping

import numpy as np

from edgefl.base.types import Array, Labels, Weights
from edgefl.data.holdout import hold_out
from edgefl.learning.algorithms.mixtures import responsibility as rs
from edgefl.program.learner.base import Learner

GATE_KERNEL = "gate/kernel"
GATE_BIAS = "gate/bias"
HIDDEN_LOGITS = "hidden_logits"
TRAIN_GATE = "train_gate"


def split_gate_samples(
    labels: Labels, share: float, rng: np.random.Generator, groups: Labels | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Split a client's training samples into D_per for the expert and D_gate for the gate.

    A gate that trains on samples similar to an expert's samples trusts this expert too much. So with two or
    more groups, no group is divided.

    Args:
        labels: labels of the samples, shape (n,), int64.
        share: share of the samples for D_gate.
        groups: the recording of each sample, shape (n,), int64, or None.

    Returns:
        Sorted indices of D_per and D_gate, int64. Each has at least one sample if there are samples. A single
            sample is in both.
    """
    count = len(labels)
    if count < 2:
        return np.arange(count), np.arange(count)
    if groups is not None and 0 < share < 1:
        expert_rows, gate_rows = hold_out(labels, groups, share, rng)
        if len(gate_rows):
            return expert_rows, gate_rows
    order = rng.permutation(count)
    gate = min(max(1, round(count * share)), count - 1)
    return np.sort(order[gate:]), np.sort(order[:gate])


def mix_hidden_features(
    learner: Learner, models: Mapping[int, Weights], responsibility: rs.Real, x: Array
) -> Array:
    """Return h_s = sum_k q(k|s) h_k over these experts.

    Args:
        models: experts by index. At least one.
        responsibility: q(z|s), shape (experts,), float64.
        x: samples, shape (n, *input_shape), float32.

    Returns:
        h_s of each sample, shape (n, hidden_width), float32.
    """
    width = next(
        spec.shape[0] for spec in learner.spec.find_signature(TRAIN_GATE).trained if spec.name == GATE_KERNEL
    )
    terms = (
        responsibility[k] * learner.predict(HIDDEN_LOGITS, models[k], {"x": x})[:, :width] for k in models
    )
    return np.asarray(sum(terms), np.float32)


def apply_gate(hidden: Array, gate: Weights) -> rs.Real:
    """Return p(z|x,s) of each sample.

    Args:
        hidden: h_s of each sample, shape (n, hidden_width), float32.

    Returns:
        The probabilities, shape (n, experts), float64.
    """
    return rs.normalize_logits(hidden.astype(np.float64) @ gate[GATE_KERNEL] + gate[GATE_BIAS])

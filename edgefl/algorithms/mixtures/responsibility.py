"""Responsibilities of experts, as pure functions: for a label, for a client, for a round.

Reisser et al., Federated Mixture of Experts, arXiv:2107.06724: sections 2.1 (q(z|y), q(z|s), pruning, the
marginal entropy; equation 8) and appendix B (q(z|s) in closed form; equations 11 to 13, and damping).
A condition c is what the responsibility of an expert hangs on: a label, or side information. float64
throughout.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edgefl.types import Labels

Real = NDArray[np.float64]


def normalize_logits(phi: ArrayLike) -> Real:
    """Return q(z|c) = softmax(phi_c): float64[conditions, experts] from logits of that shape."""
    logits = np.asarray(phi, np.float64)
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def measure_shares(conditions: Labels, count: int) -> Real:
    """Return p(c|s), the share of each of `count` conditions in a client's samples int64[n]:
    float64[count].
    """
    return np.asarray(np.bincount(conditions, minlength=count) / len(conditions), np.float64)


def measure_specialization(responsibilities: ArrayLike) -> float:
    """Return 1 - mean H(q(z|y)) / log K of q float[conditions, experts]: 0 when all experts share each alike,
    1 when each has one.
    """
    q = np.asarray(responsibilities, np.float64)
    if q.shape[1] < 2:
        return 0.0
    return float(1 + (q * _log(q)).sum(axis=1).mean() / np.log(q.shape[1]))


def average_responsibilities(responsibilities: ArrayLike, shares: ArrayLike) -> Real:
    """Return q(z|s) = sum_c p(c|s) q(z|c): float64[experts].

    Of several clients' shares, float64[clients, experts].
    """
    return np.asarray(np.asarray(shares, np.float64) @ np.asarray(responsibilities, np.float64))


def filter_experts(responsibility: ArrayLike, threshold: float) -> tuple[int, ...]:
    """Return the experts whose q(k|s) is at least the threshold, in order.

    The likeliest where there is none.
    """
    values = np.asarray(responsibility, np.float64)
    experts = tuple(int(k) for k in np.flatnonzero(values >= threshold))
    return experts or (int(values.argmax()),)


def prune_experts(responsibility: ArrayLike, experts: tuple[int, ...]) -> Real:
    """Return q(k|s) with all but these experts at zero, summing to one: float64[experts]."""
    values = np.asarray(responsibility, np.float64)
    left = np.zeros_like(values)
    left[list(experts)] = values[list(experts)]
    total = left.sum()
    if total > 0:
        return np.asarray(left / total)
    left[list(experts)] = 1 / len(experts)
    return left


def differentiate_marginal_entropy(phi: ArrayLike, shares: ArrayLike) -> Real:
    """Return the derivative of H(sum_c p(c) q(.|c)), in nats, by phi: float64[conditions, experts].

    The entropy says how evenly the experts are used over all conditions.
    """
    responsibilities = normalize_logits(phi)
    log_marginal = _log(average_responsibilities(responsibilities, shares))
    expected = (responsibilities * log_marginal).sum(axis=1, keepdims=True)
    return np.asarray(-np.asarray(shares, np.float64)[:, None] * responsibilities * (log_marginal - expected))


def from_joints(log_joints: ArrayLike, beta: float = 1.0) -> Real:
    """Return q(k|s) proportional to exp(mean_i log p(y_i, k | x_i) / beta) (equation 11): float64[experts]
    from float64[n, experts].
    """
    return normalize_logits(np.asarray(log_joints, np.float64).mean(axis=0) / beta)


def damp_responsibility(before: ArrayLike, now: ArrayLike, damping: float) -> Real:
    """Return damping * before + (1 - damping) * now."""
    return np.asarray(damping * np.asarray(before, np.float64) + (1 - damping) * np.asarray(now, np.float64))


def _log(values: Real) -> Real:
    return np.asarray(np.log(np.maximum(values, 1e-300)))

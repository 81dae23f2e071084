"""Responsibilities of experts as pure functions, for a condition, a client and a round.

A condition c determines the responsibilities of a sample. It is the sample's label, or its side information.
All arrays are float64.

Source: Reisser et al., Federated Mixture of Experts, arXiv:2107.06724. Section 2.1: q(z|y), q(z|s), pruning
and the marginal entropy, equation 8. Appendix B: q(z|s) in closed form, equations 11 to 13, and damping.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edgefl.base.types import Labels

Real = NDArray[np.float64]


def normalize_logits(phi: ArrayLike) -> Real:
    """Return q(z|c) = softmax(phi_c).

    Args:
        phi: logits, shape (conditions, experts).

    Returns:
        The responsibilities, with the shape of `phi`, float64.
    """
    logits = np.asarray(phi, np.float64)
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def measure_shares(conditions: Labels, count: int) -> Real:
    """Return p(c|s), the share of each condition in a client's samples.

    Args:
        conditions: the condition of each sample, shape (n,), int64. At least one sample.

    Returns:
        The shares, shape (count,), float64.
    """
    return np.asarray(np.bincount(conditions, minlength=count) / len(conditions), np.float64)


def measure_specialization(responsibilities: ArrayLike) -> float:
    """Return 1 - mean H(q(z|y)) / log K, which measures how specialized the experts are.

    Args:
        responsibilities: q(z|y), shape (conditions, experts).

    Returns:
        0 if all experts share each condition equally, 1 if each condition has a single expert.
    """
    q = np.asarray(responsibilities, np.float64)
    if q.shape[1] < 2:
        return 0.0
    return float(1 + (q * _log(q)).sum(axis=1).mean() / np.log(q.shape[1]))


def average_responsibilities(responsibilities: ArrayLike, shares: ArrayLike) -> Real:
    """Return q(z|s) = sum_c p(c|s) q(z|c).

    Args:
        responsibilities: q(z|c), shape (conditions, experts).
        shares: p(c|s) of one client, shape (conditions,), or of several, shape (clients, conditions).

    Returns:
        q(z|s), shape (experts,) or (clients, experts), float64.
    """
    return np.asarray(np.asarray(shares, np.float64) @ np.asarray(responsibilities, np.float64))


def filter_experts(responsibility: ArrayLike, threshold: float) -> tuple[int, ...]:
    """Return the experts with q(k|s) of at least the threshold, in ascending order.

    If there is none, it is the expert with the highest q(k|s).

    Args:
        responsibility: q(z|s), shape (experts,).
        threshold: minimum q(k|s).
    """
    values = np.asarray(responsibility, np.float64)
    experts = tuple(int(k) for k in np.flatnonzero(values >= threshold))
    return experts or (int(values.argmax()),)


def prune_experts(responsibility: ArrayLike, experts: tuple[int, ...]) -> Real:
    """Return q(k|s) with all other experts at zero, scaled to sum to 1.

    If all of these experts are at zero, they share it equally.

    Args:
        responsibility: q(z|s), shape (experts,).
        experts: the experts to keep. At least one.

    Returns:
        The responsibilities, shape (experts,), float64.
    """
    values = np.asarray(responsibility, np.float64)
    pruned = np.zeros_like(values)
    pruned[list(experts)] = values[list(experts)]
    total = pruned.sum()
    if total > 0:
        return np.asarray(pruned / total)
    pruned[list(experts)] = 1 / len(experts)
    return pruned


def differentiate_marginal_entropy(phi: ArrayLike, shares: ArrayLike) -> Real:
    """Return the derivative of the marginal entropy H(sum_c p(c) q(.|c)), in nats, by phi.

    The entropy measures how evenly the experts are used over all conditions.

    Args:
        phi: logits, shape (conditions, experts).
        shares: p(c), shape (conditions,).

    Returns:
        The derivative, shape (conditions, experts), float64.
    """
    responsibilities = normalize_logits(phi)
    log_marginal = _log(average_responsibilities(responsibilities, shares))
    expected = (responsibilities * log_marginal).sum(axis=1, keepdims=True)
    return np.asarray(-np.asarray(shares, np.float64)[:, None] * responsibilities * (log_marginal - expected))


def from_joints(log_joints: ArrayLike, beta: float = 1.0) -> Real:
    """Return q(k|s) proportional to exp(mean_i log p(y_i, k | x_i) / beta).

    Args:
        log_joints: log p(y_i, k | x_i), shape (n, experts).
        beta: temperature, above 0.

    Returns:
        q(z|s), shape (experts,), float64.

    Source: Reisser et al., arXiv:2107.06724, equation 11.
    """
    return normalize_logits(np.asarray(log_joints, np.float64).mean(axis=0) / beta)


def damp_responsibility(before: ArrayLike, now: ArrayLike, damping: float) -> Real:
    """Return damping * before + (1 - damping) * now.

    Args:
        before: responsibilities before the step, shape (experts,).
        now: responsibilities of the step, shape (experts,).
        damping: from 0 to 1.
    """
    return np.asarray(damping * np.asarray(before, np.float64) + (1 - damping) * np.asarray(now, np.float64))


def _log(values: Real) -> Real:
    return np.asarray(np.log(np.maximum(values, 1e-300)))

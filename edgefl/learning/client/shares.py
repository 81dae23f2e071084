"""Fits the shares of a blend's members, and the bias of a model, to the samples of a client.

A blend predicts p(y|x) = sum_m pi_m p_m(y|x). The shares pi are fitted by expectation maximization on
samples that no member was trained on. In a regression, p_m is a distribution around the prediction of the
member, and the blend predicts the mean of p. It is a normal distribution for squared errors. For other losses
it is a Laplace distribution, which large errors move less.

Source: A. P. Dempster, N. M. Laird and D. B. Rubin, Maximum likelihood from incomplete data via the EM
algorithm, 1977. FedEM fits its constant shares by the same steps on training samples (O. Marfoq et al.,
Federated multi-task learning under a mixture of distributions, 2021, algorithm 1).
"""

import numpy as np

from edgefl.base.types import Labels
from edgefl.learning.algorithms.mixtures.constant_shares import infer_responsibilities
from edgefl.learning.algorithms.mixtures.responsibility import Real, normalize_logits

MIN_LOG_P = -1e6
"""Takes the place of log 0. A sample that no member explains then says nothing about the shares."""
EM_STEPS = 20
LARGEST_ERROR = 1e100
"""Takes the place of an infinite error. Its square is finite."""
SQUARED_LOSS = "mse"
PSEUDO_COUNT = 1.0
"""Number of samples that each member counts in its favour in every step."""
NEWTON_STEPS = 30
LEAST_STEP = 1e-9


def fit_shares(log_p: Real, group: Labels | None = None, steps: int = EM_STEPS) -> Real:
    """Return the shares with which the members' probabilities of the labels are most likely.

    Windows of one recording tend to be right or wrong together, so a recording counts as one sample.

    Args:
        log_p: log p_m(y|x) of each sample and member, shape (n, members). -inf is allowed.
        group: recording of each sample, shape (n,), int64. None if samples are independent.
        steps: number of steps, from equal shares.

    Returns:
        The shares, shape (members,), whose sum is 1. Without samples they are equal.
    """
    count = log_p.shape[1]
    weight = _weigh_samples(len(log_p), group)
    shares = np.full(count, 1 / count)
    for _ in range(steps):
        responsibility = infer_responsibilities(shares, np.maximum(log_p, MIN_LOG_P))
        shares = (weight @ responsibility + PSEUDO_COUNT) / (weight.sum() + PSEUDO_COUNT * count)
    return shares


def compute_error_log_p(errors: Real, loss: str, group: Labels | None = None) -> Real:
    """Return log p_m(y|x) in a regression. The width of p_m comes from the errors of the member.

    Args:
        errors: target minus prediction of each sample, member and output, shape (n, members, outputs), n at
            least 1. They may be infinite or NaN.
        loss: loss of the task. `mse` has a normal distribution with the mean square as variance, others a
            Laplace distribution with the mean absolute error as scale.
        group: recording of each sample, shape (n,), int64. None if samples are independent.

    Returns:
        The logarithms of the densities, shape (n, members).
    """
    weight = _weigh_samples(len(errors), group)
    sizes = np.abs(np.nan_to_num(errors, nan=LARGEST_ERROR, posinf=LARGEST_ERROR, neginf=LARGEST_ERROR))
    if loss == SQUARED_LOSS:
        sizes = sizes**2
    mean = np.tensordot(weight / weight.sum(), sizes, axes=1) + np.finfo(np.float64).tiny
    if loss == SQUARED_LOSS:
        log_p = -0.5 * (sizes / mean + np.log(2 * np.pi * mean))
    else:
        log_p = -sizes / mean - np.log(2 * mean)
    return np.asarray(log_p.sum(axis=2))


def fit_output_offset(errors: Real, loss: str) -> Real:
    """Return the numbers to add to a regression's outputs so that its loss on a client's samples falls.

    For `mse` it is the sum of the errors divided by n + 1, and for other losses the median of the errors and
    one 0.

    Args:
        errors: target minus prediction of each sample, shape (n, outputs), finite.
        loss: loss of the task.

    Returns:
        The offset, shape (outputs,). Without samples it is 0.
    """
    if loss == SQUARED_LOSS:
        return np.asarray(errors.sum(axis=0) / (len(errors) + PSEUDO_COUNT))
    return np.asarray(np.median(np.concatenate([errors, np.zeros((1, errors.shape[1]))]), axis=0))


def _weigh_samples(count: int, group: Labels | None) -> Real:
    """Return the weight of each sample, 1 divided by the number of samples of its recording."""
    if group is None:
        return np.ones(count)
    _, members, sizes = np.unique(group, return_inverse=True, return_counts=True)
    return np.asarray(1 / sizes[members.reshape(-1)], np.float64)


def fit_output_bias(logits: Real, y: Labels) -> Real:
    """Return the numbers to add to a model's logits so that it predicts a client's labels best.

    They maximize sum_i log softmax(logits_i + b)[y_i] - |b|^2 / 2 by Newton's method. The maximum is unique.

    Args:
        logits: outputs of the model, shape (n, classes), finite.
        y: labels, shape (n,), int64.

    Returns:
        The bias b, shape (classes,). Its sum is 0. Without samples it is 0.
    """
    classes = logits.shape[1]
    counts = np.bincount(y, minlength=classes).astype(np.float64)
    bias = np.zeros(classes)
    value = _measure_likelihood(logits, y, bias)
    for _ in range(NEWTON_STEPS):
        p = normalize_logits(logits + bias)
        gradient = counts - p.sum(axis=0) - bias
        curvature = np.diag(p.sum(axis=0) + 1) - p.T @ p
        step = np.linalg.solve(curvature, gradient)
        scale = 1.0
        while np.abs(scale * step).max(initial=0.0) > LEAST_STEP:
            after = _measure_likelihood(logits, y, bias + scale * step)
            if after >= value:
                break
            scale /= 2
        else:
            break
        bias, value = bias + scale * step, after
    return bias


def _measure_likelihood(logits: Real, y: Labels, bias: Real) -> float:
    shifted = logits + bias
    log_p = shifted[np.arange(len(y)), y] - np.logaddexp.reduce(shifted, axis=1)
    return float(log_p.sum() - bias @ bias / 2)

"""How many of a client's samples are of each class, read off its update of the output layer. Pure functions.

Reisser et al., Federated Mixture of Experts, arXiv:2107.06724, appendix C, equations 14 and 15 (with the sign
of a descent step). For softmax cross-entropy, the gradient of the output bias is the mean of p_i -
onehot(y_i) over the samples. While p is still uniform, one step of size eta on all samples moves the bias by
d = eta (p(y|s) - 1/C): the shares p(y|s) are 1/C + d / eta. After several steps the scale is no longer known,
and the direction of d alone is taken. The kernel tells the same: its gradient is the mean of h_i (p_i -
onehot(y_i))^T, so its sum over the inputs is the bias' gradient with each sample weighted by its sum of
features. And so does the layer before: the gradient of its bias is the mean of W (p_i - onehot(y_i)) where
its units are active, with W the output kernel that the server itself sent; least squares gives back p -
onehot.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edgefl.types import Array, Labels

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Reading:
    """Shares by class, float64[classes], and what they were read from: `bias`, `kernel`, `hidden` or
    `nothing`.
    """

    shares: Vector
    source: str


def count_shares(labels: Labels, num_classes: int) -> Vector:
    """Return p(y|s), float64[num_classes]."""
    return np.bincount(labels, minlength=num_classes) / max(1, len(labels))


def infer_shares_from_step(delta: ArrayLike, learning_rate: float) -> Vector:
    """Return the shares after one step on all samples: 1/C + d / eta, negative ones cut off; delta:
    float[classes].
    """
    d = np.asarray(delta, np.float64)
    shares = np.maximum(1 / len(d) + d / learning_rate, 0)
    return _normalize(shares)


def infer_shares_from_direction(delta: ArrayLike) -> Vector:
    """Return the shares after several steps, or any other change of scale: d - min d, made to sum to one.

    That is 1/C + a d with the largest a that leaves no share negative: right where the client lacks a class.
    Uniform for d = 0.
    """
    d = np.asarray(delta, np.float64)
    return _normalize(d - d.min())


def _normalize(shares: Vector) -> Vector:
    total = shares.sum()
    return shares / total if total > 0 else np.full(len(shares), 1 / len(shares))


@dataclass(frozen=True)
class OutputLayer:
    """Names of the output layer's kernel and bias and of the bias of the dense layer before it (empty: none),
    and the kernel as sent.
    """

    kernel: str
    bias: str
    hidden: str
    sent: Array


def read_labels(delta: Mapping[str, Array], layer: OutputLayer, step: float = 0.0) -> Reading:
    """Return what the first of these that moved tells: output bias, output kernel, the bias before.

    step: the learning rate, when the bias made one step on all samples and was not rescaled since; 0
    otherwise. What is not in `delta`, or zero in it, was withheld.
    """
    kernel = layer.kernel
    bias = layer.bias
    if bias in delta and delta[bias].any():
        return Reading(
            infer_shares_from_step(delta[bias], step) if step else infer_shares_from_direction(delta[bias]),
            "bias",
        )
    if kernel in delta and delta[kernel].any():
        return Reading(infer_shares_from_direction(delta[kernel].sum(axis=0, dtype=np.float64)), "kernel")
    if layer.hidden in delta and delta[layer.hidden].any():
        solved = np.linalg.lstsq(
            layer.sent.astype(np.float64), delta[layer.hidden].astype(np.float64), rcond=None
        )[0]
        return Reading(infer_shares_from_direction(solved), "hidden")
    classes = layer.sent.shape[1]
    return Reading(np.full(classes, 1 / classes), "nothing")


def total_variation(p: ArrayLike, q: ArrayLike) -> float:
    """Return half the sum of |p - q|: the share of the samples whose class was told wrong, 0 for the truth,
    at most 1.
    """
    return float(np.abs(np.asarray(p, np.float64) - np.asarray(q, np.float64)).sum() / 2)


def correlation(p: ArrayLike, q: ArrayLike) -> float:
    """Return Pearson's correlation over the classes; NaN when either is constant."""
    a = np.asarray(p, np.float64)
    b = np.asarray(q, np.float64)
    a = a - a.mean()
    b = b - b.mean()
    scale = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / scale if scale > 0 else float("nan")

"""Infers the class shares of a client's samples from its update of the output layer. Pure functions.

For softmax cross-entropy, the gradient of the output bias is the mean of p_i - onehot(y_i) over the samples.
While p is still uniform, one step of size eta on all samples moves the bias by d = eta (p(y|s) - 1/C). The
shares p(y|s) are therefore 1/C + d / eta. After several steps the scale is unknown, and only the direction of
d is used.

The output kernel reveals the same. Its gradient is the mean of h_i (p_i - onehot(y_i))^T. The sum over the
inputs is the gradient of the bias, with each sample weighted by its sum of features.

The layer before reveals it, too. The gradient of its bias is the mean of W (p_i - onehot(y_i)) where its
units are active. W is the output kernel, which the server itself sent, so that least squares yields p -
onehot.

Source: Reisser et al., Federated Mixture of Experts, arXiv:2107.06724, appendix C, equations 14 and 15 (with
the sign of a descent step).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edgefl.base.types import Array, Labels

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Reading:
    """The class shares that an update reveals.

    Attributes:
        shares: share of each class, shape (num_classes,), float64. They sum to 1.
        source: the array that revealed them: `bias`, `kernel`, `hidden` or `nothing`.
    """

    shares: Vector
    source: str


def count_shares(labels: Labels, num_classes: int) -> Vector:
    """Return the class shares p(y|s) of labels, shape (num_classes,), float64.

    Args:
        labels: class labels, shape (n,), int.
    """
    return np.bincount(labels, minlength=num_classes) / max(1, len(labels))


def infer_shares_from_step(delta: ArrayLike, learning_rate: float) -> Vector:
    """Return the class shares after one step on all samples: 1/C + d / eta, with negative shares set to 0.

    Args:
        delta: change d of the output bias, shape (num_classes,), float.
        learning_rate: step size eta.

    Returns:
        Shares that sum to 1, shape (num_classes,), float64.

    Source: arXiv:2107.06724, equation 15.
    """
    d = np.asarray(delta, np.float64)
    shares = np.maximum(1 / len(d) + d / learning_rate, 0)
    return _normalize(shares)


def infer_shares_from_direction(delta: ArrayLike) -> Vector:
    """Return the class shares after several steps, when the scale of the change is unknown.

    The shares are d - min d, normalized. This is 1/C + a d with the largest a that leaves no share negative.
    It is right when the client lacks a class. The shares are uniform for d = 0.

    Args:
        delta: change d of the output bias, shape (num_classes,), float.

    Returns:
        Shares that sum to 1, shape (num_classes,), float64.
    """
    d = np.asarray(delta, np.float64)
    return _normalize(d - d.min())


def _normalize(shares: Vector) -> Vector:
    total = shares.sum()
    return shares / total if total > 0 else np.full(len(shares), 1 / len(shares))


@dataclass(frozen=True)
class OutputLayer:
    """The output layer of a model.

    Attributes:
        kernel: name of the output kernel.
        bias: name of the output bias.
        hidden: name of the bias of the dense layer before it. Empty if there is none.
        sent: the output kernel that the server sent, shape (features, num_classes), float32.
    """

    kernel: str
    bias: str
    hidden: str
    sent: Array


def read_labels(delta: Mapping[str, Array], layer: OutputLayer, step: float = 0.0) -> Reading:
    """Infer the class shares from an update.

    The first array that changed is used: the output bias, the output kernel, or the bias of the layer before.
    An array that is missing or zero was withheld.

    Args:
        delta: trained minus received weights by name, float32.
        step: learning rate, if the bias made exactly one step on all samples and was not rescaled. Otherwise
            0.
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
    """Return the total variation distance, half the sum of |p - q|.

    It is the share of the samples whose class is inferred wrongly, between 0 and 1.

    Args:
        p: class shares, shape (num_classes,), float.
        q: class shares, shape (num_classes,), float.
    """
    return float(np.abs(np.asarray(p, np.float64) - np.asarray(q, np.float64)).sum() / 2)


def correlation(p: ArrayLike, q: ArrayLike) -> float:
    """Return Pearson's correlation over the classes, or NaN if one of the arguments is constant.

    Args:
        p: class shares, shape (num_classes,), float.
        q: class shares, shape (num_classes,), float.
    """
    a = np.asarray(p, np.float64)
    b = np.asarray(q, np.float64)
    a = a - a.mean()
    b = b - b.mean()
    scale = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / scale if scale > 0 else float("nan")

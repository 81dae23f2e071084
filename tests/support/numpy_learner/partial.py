"""The signatures of FedRep and FedBN in numpy."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from edgefl.program.plan.spec import TensorSpec
from tests.support.numpy_learner.pfl import head_slope
from tests.support.numpy_learner.rules import (
    HEAD,
    TRUNK,
    Named,
    Rule,
    Sizes,
    classifier,
    classifier_slope,
    cross_entropy,
    predicts,
    trains,
)

GAMMA = "norm/gamma"
MEAN = "norm/moving_mean"
VARIANCE = "norm/moving_variance"


def rules(algorithm: str, sizes: Sizes, options: Mapping[str, Any]) -> tuple[Rule, ...]:
    """Return the rules of fedrep or fedbn."""
    return _normalized(sizes) if algorithm == "fedbn" else _alternating(sizes)


def more(algorithm: str, sizes: Sizes, options: Mapping[str, Any]) -> tuple[TensorSpec, ...]:
    """Return the weights of the batch norm of fedbn."""
    return _norm(sizes) if algorithm == "fedbn" else ()


def _alternating(sizes: Sizes) -> tuple[Rule, ...]:
    h = TensorSpec("features", (sizes.batch, sizes.features))
    return (
        trains("train", sizes, (sizes.x,), sizes.trunk, classifier_slope, sizes.head),
        *classifier(sizes)[1:],
        predicts(
            "features",
            sizes,
            (sizes.x,),
            sizes.trunk,
            lambda w, data: np.asarray(data["x"] @ w[TRUNK]),
            sizes.features,
        ),
        trains("train_head", sizes, (h,), sizes.head, head_slope),
    )


def _norm(sizes: Sizes) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name, (sizes.features,)) for name in (GAMMA, MEAN, VARIANCE))


def _normalized(sizes: Sizes) -> tuple[Rule, ...]:
    """Return the classifier with a scaling of its features by 1 + gamma, whose statistics never move.

    Tests draw initial weights around 0, and the scale of a batch norm starts at 1.
    """
    norm = _norm(sizes)
    others = classifier(sizes)[1:]
    weights = (*sizes.trunk, *norm, *sizes.head)
    return (
        trains("train", sizes, (sizes.x,), (*sizes.trunk, norm[0], *sizes.head), _norm_slope, norm[1:]),
        *(replace(rule, signature=replace(rule.signature, frozen=weights), out=_norm_out) for rule in others),
    )


def _norm_slope(
    w: Named, data: Named, hyper: Named, share: np.ndarray
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    centred = data["x"] @ w[TRUNK] - w[MEAN]
    h = centred * (1 + w[GAMMA])
    d, loss = cross_entropy(h @ w[HEAD[0]] + w[HEAD[1]], data["y"], share)
    dh = d @ w[HEAD[0]].T
    return {
        TRUNK: data["x"].T @ (dh * (1 + w[GAMMA])),
        GAMMA: (dh * centred).sum(axis=0),
        HEAD[0]: h.T @ d,
        HEAD[1]: d.sum(axis=0),
    }, loss


def _norm_out(w: Named, data: Named) -> np.ndarray:
    h = (data["x"] @ w[TRUNK] - w[MEAN]) * (1 + w[GAMMA])
    return np.asarray(h @ w[HEAD[0]] + w[HEAD[1]])

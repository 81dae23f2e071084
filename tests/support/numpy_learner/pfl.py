"""The signatures of the PFL-MoE family in numpy."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from edgefl.program.plan.spec import TensorSpec
from tests.support.numpy_learner.rules import (
    HEAD,
    TRUNK,
    Named,
    Rule,
    Sizes,
    classifier,
    cross_entropy,
    predicts,
    sigmoid,
    trains,
    under,
)


def rules(algorithm: str, sizes: Sizes, options: Mapping[str, Any]) -> tuple[Rule, ...]:
    """Return the rules of pfl-fb, pfl-mf or pfl-mfe."""
    kind = algorithm.removeprefix("pfl-")
    h = TensorSpec("features", (sizes.batch, sizes.features))
    width = sizes.features if kind == "mfe" else sizes.inputs
    gate = (TensorSpec("gate/kernel", (width, 1)), TensorSpec("gate/bias", (1,)))
    gated = (
        TensorSpec("gate_input", (sizes.batch, width)),
        TensorSpec("logits", (sizes.batch, 2, sizes.classes)),
    )
    heads = (
        under("local", sizes.head)
        if kind == "fb"
        else (*under("global", sizes.head), *under("local", sizes.head), *gate)
    )
    return (
        *classifier(sizes)[:2],
        predicts(
            "features",
            sizes,
            (sizes.x,),
            sizes.trunk,
            lambda w, data: np.asarray(data["x"] @ w[TRUNK]),
            sizes.features,
        ),
        trains("train_head", sizes, (h,), sizes.head, head_slope),
        predicts(
            "predict_head",
            sizes,
            (h,),
            sizes.head,
            lambda w, data: np.asarray(data["features"] @ w[HEAD[0]] + w[HEAD[1]]),
        ),
        trains("train_gate", sizes, gated, gate, _gate_slope),
        predicts("predict_mixture", sizes, (sizes.x,), (*sizes.trunk, *heads), partial(_mixture, kind)),
    )


def head_slope(
    w: Named, data: Named, hyper: Named, share: np.ndarray
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the slope of cross-entropy for logits = features @ kernel + bias."""
    h = data["features"]
    d, loss = cross_entropy(h @ w[HEAD[0]] + w[HEAD[1]], data["y"], share)
    return {HEAD[0]: h.T @ d, HEAD[1]: d.sum(axis=0)}, loss


def _gate_slope(
    w: Named, data: Named, hyper: Named, share: np.ndarray
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    z = data["gate_input"]
    logits = data["logits"]
    g = sigmoid(z @ w["gate/kernel"] + w["gate/bias"])
    d, loss = cross_entropy(g * logits[:, 0] + (1 - g) * logits[:, 1], data["y"], share)
    dz = (d * (logits[:, 0] - logits[:, 1])).sum(axis=1, keepdims=True) * g * (1 - g)
    return {"gate/kernel": z.T @ dz, "gate/bias": dz.sum(axis=0)}, loss


def _mixture(kind: str, w: Named, data: Named) -> np.ndarray:
    h = data["x"] @ w[TRUNK]
    local = h @ w["local/head/kernel"] + w["local/head/bias"]
    if kind == "fb":
        return np.asarray(local)
    g = sigmoid((h if kind == "mfe" else data["x"]) @ w["gate/kernel"] + w["gate/bias"])
    return np.asarray(g * (h @ w["global/head/kernel"] + w["global/head/bias"]) + (1 - g) * local)

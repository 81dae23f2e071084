"""The signatures of Adaptive Expert Models in numpy: a local model of the same form and a linear gate."""

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
    classifier_out,
    classifier_slope,
    predicts,
    softmax,
    trains,
    under,
)

TINY = 1e-7


def rules(algorithm: str, sizes: Sizes, options: Mapping[str, Any]) -> tuple[Rule, ...]:
    """Return the rules of aem, for the gates `pixels` and `features` and a local model of the federated
    form.
    """
    num_experts = options.get("num_experts", 6)
    features = options.get("gate", "pixels") == "features"
    sees, width = ("features", sizes.features) if features else ("x", sizes.inputs)
    seen = TensorSpec(sees, (sizes.batch, width))
    gate = (TensorSpec("gate/kernel", (width, num_experts + 1)), TensorSpec("gate/bias", (num_experts + 1,)))
    own = (*sizes.trunk, *sizes.head)
    names = (*(f"expert{index}" for index in range(num_experts)), "local")
    parts = tuple(spec for name in names for spec in under(name, own))
    likelihood = TensorSpec("likelihood", (sizes.batch, num_experts + 1))
    return (
        *classifier(sizes)[:2],
        trains("train_local", sizes, (sizes.x,), own, classifier_slope),
        predicts(
            "features",
            sizes,
            (sizes.x,),
            sizes.trunk,
            lambda w, data: np.asarray(data["x"] @ w[TRUNK]),
            sizes.features,
        ),
        trains("train_gate", sizes, (seen, likelihood), gate, partial(_gate_slope, sees)),
        predicts("predict_gate", sizes, (seen,), gate, lambda w, data: _gate(w, data[sees]), num_experts + 1),
        predicts("predict_mixture", sizes, (sizes.x,), (*parts, *gate), partial(_mixture, names, features)),
    )


def _gate(w: Named, seen: np.ndarray) -> np.ndarray:
    return softmax(seen @ w["gate/kernel"] + w["gate/bias"])


def _gate_slope(
    sees: str, w: Named, data: Named, hyper: Named, share: np.ndarray
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    g = _gate(w, data[sees])
    likelihood = data["likelihood"]
    mixed = (g * likelihood).sum(axis=1, keepdims=True)
    # of -log(mixed + tiny) by the logits: what the gate gives an expert, less what the expert earned
    d = g * (mixed - likelihood) / (mixed + TINY) * share[:, None]
    return {"gate/kernel": data[sees].T @ d, "gate/bias": d.sum(axis=0)}, -np.log(mixed[:, 0] + TINY)


def _mixture(names: tuple[str, ...], features: bool, w: Named, data: Named) -> np.ndarray:
    parts = [{key: w[f"{name}/{key}"] for key in (TRUNK, *HEAD)} for name in names]
    seen = np.sum([data["x"] @ part[TRUNK] for part in parts[:-1]], axis=0) if features else data["x"]
    g = _gate(w, seen)
    mixed = sum(g[:, [i]] * softmax(classifier_out(part, data)) for i, part in enumerate(parts))
    return np.asarray(np.log(mixed + TINY))

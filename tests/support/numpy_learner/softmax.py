"""A learner in numpy alone: a linear trunk under a softmax classifier. For fast tests of algorithms, not for
devices.

It answers to the same signatures as a compiled plan; each family of algorithms has its rules in a module of
its own.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np

from edgefl.learner.loop import StepLearner
from edgefl.plan.spec import PlanSpec, TensorSpec
from tests.support.numpy_learner.rules import TRUNK, Rule, Sizes, classifier

_FAMILIES = {
    "aem": "aem",
    "apfl": "baselines",
    "ditto": "baselines",
    "fedmix": "fedmix",
    "fedmix-permutation": "fedmix",
    "fedprox": "baselines",
    "pfl-fb": "pfl",
    "pfl-ft": "baselines",
    "pfl-mf": "pfl",
    "pfl-mfe": "pfl",
}
"""Algorithm -> the module with its `rules(algorithm, sizes, options)`, and `more` for
weights beside the network's own; all others run the plain classifier.
"""


def _rules(algorithm: str, sizes: Sizes, options: Mapping[str, Any]) -> tuple[Rule, ...]:
    if algorithm not in _FAMILIES:
        return classifier(sizes)
    found: tuple[Rule, ...] = import_module(f"tests.support.numpy_learner.{_FAMILIES[algorithm]}").rules(
        algorithm, sizes, options
    )
    return found


def _more(algorithm: str, sizes: Sizes, options: Mapping[str, Any]) -> tuple[TensorSpec, ...]:
    if algorithm not in _FAMILIES:
        return ()
    more = getattr(import_module(f"tests.support.numpy_learner.{_FAMILIES[algorithm]}"), "more", None)
    found: tuple[TensorSpec, ...] = more(algorithm, sizes, options) if more else ()
    return found


def softmax_spec(
    algorithm: str,
    *,
    inputs: int,
    features: int,
    classes: int,
    batch_size: int = 8,
    options: Mapping[str, Any] | None = None,
    more: tuple[TensorSpec, ...] = (),
) -> PlanSpec:
    """Return the spec of h = x @ trunk, logits = h @ kernel + bias, with the algorithm's signatures.

    `more` are weights beside the network's own that the algorithm's `init` takes, besides those that its
    family names.
    """
    sizes = Sizes(inputs, features, classes, batch_size)
    signatures = tuple(rule.signature for rule in _rules(algorithm, sizes, options or {}))
    weights = (*sizes.trunk, *sizes.head, *_more(algorithm, sizes, options or {}), *more)
    return PlanSpec("softmax", algorithm, options or {}, (inputs,), classes, weights, signatures)


class SoftmaxLearner(StepLearner):
    """Runs a `softmax_spec`; see `Learner`."""

    name = "numpy"

    def __init__(self, spec: PlanSpec) -> None:
        self.spec = spec
        trunk = next(weight for weight in spec.weights if weight.name == TRUNK)
        sizes = Sizes(trunk.shape[0], trunk.shape[1], spec.num_classes, spec.signatures[0].batch_size)
        self._rules = {rule.signature.name: rule for rule in _rules(spec.algorithm, sizes, spec.options)}

    def step(self, signature: str, arguments: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Run the signature once; see `StepLearner.step`."""
        rule = self._rules[signature]
        spec = self.spec.signature(signature)
        weights = {each.name: arguments[f"f_{i}"] for i, each in enumerate(spec.frozen)}
        data = {name[2:]: array for name, array in arguments.items() if name.startswith("d_")}
        if rule.out is not None:
            return {"out": rule.out(weights, data).astype(np.float32)}
        assert rule.slope is not None
        weights |= {each.name: arguments[f"t_{i}"] for i, each in enumerate(spec.trained)}
        hyper = {name[2:]: array for name, array in arguments.items() if name.startswith("h_")}
        share = data["sample_weight"] / max(float(data["sample_weight"].sum()), 1.0)
        with np.errstate(over="ignore", invalid="ignore"):  # the loop reports a loss that is not finite
            gradients, losses = rule.slope(weights, data, hyper, share)
            out: dict[str, np.ndarray] = {"loss": np.asarray((losses * share).sum(), np.float32)}
            for i, each in enumerate(spec.trained):
                velocity = (
                    hyper["momentum"] * arguments[f"s_{i}"] - hyper["learning_rate"] * gradients[each.name]
                )
                out[f"s_{i}"] = velocity.astype(np.float32)
                out[f"t_{i}"] = (weights[each.name] + velocity).astype(np.float32)
        return out

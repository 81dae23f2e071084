"""A learner in numpy alone: a linear trunk under a softmax classifier. For fast tests of algorithms, not for
devices.

It answers to the same signatures as a compiled plan; each family of algorithms has its rules in a module of
its own.
"""

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np

from edgefl.program.learner.loop import StepLearner
from edgefl.program.plan.spec import TRAIN_SINGLE, PlanSpec, TensorSpec
from tests.support.numpy_learner.rules import TRUNK, Rule, Sizes, classifier

_FAMILIES = {
    "aem": "aem",
    "apfl": "baselines",
    "ditto": "baselines",
    "fedala": "baselines",
    "fedbn": "partial",
    "fedem": "fedmix",
    "fedmix": "fedmix",
    "fedmix-permutation": "fedmix",
    "fedprox": "baselines",
    "fedrep": "partial",
    "fedrod": "baselines",
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


def _single(sizes: Sizes, personalization: Mapping[str, Any]) -> tuple[Rule, ...]:
    """Return the training of one model on a client's own samples, where the personalization needs it."""
    if not personalization:
        return ()
    rule = next(each for each in classifier(sizes) if each.slope is not None)
    return (replace(rule, signature=replace(rule.signature, name=TRAIN_SINGLE)),)


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
    personalization: Mapping[str, Any] | None = None,
) -> PlanSpec:
    """Return the spec of h = x @ trunk, logits = h @ kernel + bias, with the algorithm's signatures.

    With `personalization`, the settings of the plan, a client also trains models of its own.
    `more` are weights beside the network's own that the algorithm's `init` takes, besides those that its
    family names.
    """
    sizes = Sizes(inputs=inputs, features=features, classes=classes, batch=batch_size)
    chosen = personalization or {}
    rules = (*_rules(algorithm, sizes, options or {}), *_single(sizes, chosen))
    signatures = tuple(rule.signature for rule in rules)
    weights = (*sizes.trunk, *sizes.head, *_more(algorithm, sizes, options or {}), *more)
    return PlanSpec(
        model="softmax",
        algorithm=algorithm,
        options=options or {},
        input_shape=(inputs,),
        num_classes=classes,
        weights=weights,
        signatures=signatures,
        personalization=chosen,
    )


class SoftmaxLearner(StepLearner):
    """Runs a `softmax_spec`; see `Learner`."""

    name = "numpy"

    def __init__(self, spec: PlanSpec) -> None:
        self.spec = spec
        trunk = next(weight for weight in spec.weights if weight.name == TRUNK)
        sizes = Sizes(
            inputs=trunk.shape[0],
            features=trunk.shape[1],
            classes=spec.num_classes,
            batch=spec.signatures[0].batch_size,
        )
        rules = (*_rules(spec.algorithm, sizes, spec.options), *_single(sizes, spec.personalization))
        self._rules = {rule.signature.name: rule for rule in rules}

    def step(self, signature: str, arguments: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Run the signature once; see `StepLearner.step`."""
        rule = self._rules[signature]
        spec = self.spec.find_signature(signature)
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

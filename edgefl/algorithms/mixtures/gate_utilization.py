"""How much a mixture leans on each of its experts: the mean of its gate over samples, for whoever looks at a
fleet.

Isaksson et al., Adaptive Expert Models, 2022, figure 6, and Reisser et al., arXiv:2107.06724, figure 7, draw
it a client each.
"""

import numpy as np
from numpy.typing import NDArray

from edgefl.algorithms.mixtures.gate import TRAIN_GATE, apply_gate, mix_hidden_features
from edgefl.algorithms.names import name_expert, strip_prefix
from edgefl.learner.base import Learner
from edgefl.plan.spec import PlanSpec
from edgefl.types import Array, Labels, Weights

GATE_METRIC_PREFIX = "gate_"
LOCAL_EXPERT_PREFIX = "local"
PREDICT_GATE = "predict_gate"
GATE_WEIGHT_PREFIXES = ("gate/", "responsibility/")
"""What the names of a gate's weights begin with."""


def measure_gate_utilization(learner: Learner, mixture: Weights, x: Array) -> dict[str, float]:
    """Return the mean gate weight of each expert as metrics `gate_0`, `gate_1`, ..., which sum to 1. x:
    float32[n, *input_shape].

    In AEM and in PFL-MoE (`gate_0` is the federated classifier) the last is the client's own. Empty for a
    mixture without a gate, and without samples.
    """
    weights = predict_gate_weights(learner, mixture, x) if len(x) else None
    return (
        {}
        if weights is None
        else {f"{GATE_METRIC_PREFIX}{k}": float(value) for k, value in enumerate(weights.mean(axis=0))}
    )


def count_local_experts(spec: PlanSpec) -> int:
    """Return how many of a mixture's experts no other client has: 1 with a local expert, which is the last of
    its gate, else 0.
    """
    mixtures = (signature for signature in spec.signatures if signature.name == "predict_mixture")
    return int(
        any(
            weight.name.startswith(f"{LOCAL_EXPERT_PREFIX}/")
            for signature in mixtures
            for weight in signature.frozen
        )
    )


def measure_gate_by_class(learner: Learner, mixture: Weights, x: Array, y: Labels) -> NDArray[np.float64]:
    """Return (class, samples of it, mean gate weight of each expert): float64[classes that occur, 2 +
    experts], sorted by class.

    No row without a gate. It tells a client's labels, so it is for a simulation and never sent.
    """
    weights = predict_gate_weights(learner, mixture, x) if len(x) else None
    if weights is None:
        return np.zeros((0, 2))
    classes, counts = np.unique(y, return_counts=True)
    return np.column_stack(
        [classes, counts, [weights[y == label].mean(axis=0, dtype=np.float64) for label in classes]]
    )


def predict_gate_weights(learner: Learner, mixture: Weights, x: Array) -> NDArray[np.floating] | None:
    """Return the gate's weight for each sample and expert, [n, experts].

    None where the mixture has no gate that is known here.
    """
    if not any(key.startswith(GATE_WEIGHT_PREFIXES) for key in mixture):
        return None
    name = learner.spec.algorithm
    signatures = {signature.name for signature in learner.spec.signatures}
    count = _count_experts(mixture)
    if PREDICT_GATE in signatures:
        signature = learner.spec.find_signature(PREDICT_GATE)
        input_name = signature.data[0].name
        # The kernel holds the mean's division: `for_sum`
        data = x if input_name == "x" else _sum_features(learner, mixture, count, x)
        return learner.predict(
            PREDICT_GATE, {spec.name: mixture[spec.name] for spec in signature.frozen}, {input_name: data}
        )
    # Permuted labels have responsibilities and no gate
    if "responsibility/0" in mixture and TRAIN_GATE in signatures:
        models = {k: strip_prefix(name_expert(k), mixture) for k in range(count)}
        share = np.array([float(mixture[f"responsibility/{k}"][0]) for k in range(count)])
        used = {k: model for k, model in models.items() if share[k] > 0}
        return apply_gate(mix_hidden_features(learner, used, share, x), mixture)
    if name in ("pfl-mf", "pfl-mfe") and "gate/kernel" in mixture:
        inputs = _predict_features(learner, mixture, x) if name == "pfl-mfe" else x.reshape(len(x), -1)
        of_global = 0.5 * (
            1 + np.tanh(0.5 * (inputs.astype(np.float64) @ mixture["gate/kernel"] + mixture["gate/bias"]))
        )
        return np.concatenate([of_global, 1 - of_global], axis=1)
    return None


def _count_experts(mixture: Weights) -> int:
    return len({key.partition("/")[0] for key in mixture if key.startswith(name_expert(0)[:-1])})


def _predict_features(learner: Learner, weights: Weights, x: Array) -> Array:
    return learner.predict(
        "features",
        {spec.name: weights[spec.name] for spec in learner.spec.find_signature("features").frozen},
        {"x": x},
    )


def _sum_features(learner: Learner, mixture: Weights, count: int, x: Array) -> Array:
    return np.asarray(
        sum(_predict_features(learner, strip_prefix(name_expert(k), mixture), x) for k in range(count)),
        np.float32,
    )

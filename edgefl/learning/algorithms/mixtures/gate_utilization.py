"""How much a mixture uses each of its experts: the mean of its gate over samples.

Source: one such figure for each client: Isaksson et al., Adaptive Expert Models, 2022, figure 6, and Reisser
et al., arXiv:2107.06724, figure 7.
"""

import numpy as np
from numpy.typing import NDArray

from edgefl.base.types import Array, Labels, Weights
from edgefl.learning.algorithms.mixtures.gate import TRAIN_GATE, apply_gate, mix_hidden_features
from edgefl.learning.algorithms.names import name_expert, strip_prefix
from edgefl.program.learner.base import Learner
from edgefl.program.plan.spec import PlanSpec

GATE_METRIC_PREFIX = "gate_"
LOCAL_EXPERT_PREFIX = "local"
PREDICT_GATE = "predict_gate"
GATE_WEIGHT_PREFIXES = ("gate/", "responsibility/")
"""Prefixes of the names of a gate's weights."""


def measure_gate_utilization(learner: Learner, mixture: Weights, x: Array) -> dict[str, float]:
    """Return the mean gate weight of each expert as metrics.

    Args:
        x: samples, shape (n, *input_shape), float32.

    Returns:
        The metrics `gate_0`, `gate_1`, ..., which sum to 1. In AEM and PFL-MoE, the last expert is the
            client's local expert. In PFL-MoE, `gate_0` is the federated classifier. Empty for a mixture
            without a gate, and without samples.
    """
    weights = predict_gate_weights(learner, mixture, x) if len(x) else None
    return (
        {}
        if weights is None
        else {f"{GATE_METRIC_PREFIX}{k}": float(value) for k, value in enumerate(weights.mean(axis=0))}
    )


def count_local_experts(spec: PlanSpec) -> int:
    """Return the number of a mixture's experts that belong to a single client.

    It is 1 for a mixture with a local expert, which is the last expert of the gate. Otherwise it is 0.
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
    """Return the mean gate weights of each class.

    The result reveals a client's labels. Only simulations use it, and it is never sent.

    Args:
        x: samples, shape (n, *input_shape), float32.
        y: labels, shape (n,), int64.

    Returns:
        One row for each class that occurs, sorted by class, shape (classes, 2 + experts), float64. A row
            holds the class, its number of samples, and the mean gate weight of each expert. No rows without a
            gate or without samples.
    """
    weights = predict_gate_weights(learner, mixture, x) if len(x) else None
    if weights is None:
        return np.zeros((0, 2))
    classes, counts = np.unique(y, return_counts=True)
    return np.column_stack(
        [classes, counts, [weights[y == label].mean(axis=0, dtype=np.float64) for label in classes]]
    )


def predict_gate_weights(learner: Learner, mixture: Weights, x: Array) -> NDArray[np.floating] | None:
    """Return the gate's weight for each sample and expert.

    Args:
        x: samples, shape (n, *input_shape), float32.

    Returns:
        The gate weights, shape (n, experts), float32 or float64. None if the mixture has no gate, or an
            unknown one.
    """
    if not any(key.startswith(GATE_WEIGHT_PREFIXES) for key in mixture):
        return None
    name = learner.spec.algorithm
    signatures = {signature.name for signature in learner.spec.signatures}
    count = _count_experts(mixture)
    if PREDICT_GATE in signatures:
        signature = learner.spec.find_signature(PREDICT_GATE)
        input_name = signature.data[0].name
        # The kernel includes the division of the mean, see `aem.scale_gate_for_sum`.
        data = x if input_name == "x" else _sum_features(learner, mixture, count, x)
        return learner.predict(
            PREDICT_GATE, {spec.name: mixture[spec.name] for spec in signature.frozen}, {input_name: data}
        )
    # FedMix for permuted labels has responsibilities, but no gate.
    if "responsibility/0" in mixture and TRAIN_GATE in signatures:
        models = {k: strip_prefix(name_expert(k), mixture) for k in range(count)}
        share = np.array([float(mixture[f"responsibility/{k}"][0]) for k in range(count)])
        used = {k: model for k, model in models.items() if share[k] > 0}
        return apply_gate(mix_hidden_features(learner, used, share, x), mixture)
    if name in ("pfl-mf", "pfl-mfe") and "gate/kernel" in mixture:
        inputs = (
            _predict_features(learner, mixture, x)
            if name == "pfl-mfe"
            else learner.spec.normalize_input(x).reshape(len(x), -1)
        )
        global_share = compute_global_share(inputs, mixture)
        return np.concatenate([global_share, 1 - global_share], axis=1)
    return None


def compute_global_share(inputs: Array, gate: Weights) -> NDArray[np.float64]:
    """Return the weight of PFL-MoE's gate for the global classifier. The local one has the rest.

    Args:
        inputs: what the gate reads of each sample, shape (n, width), float32.

    Returns:
        The sigmoid of the gate, shape (n, 1).
    """
    logits = inputs.astype(np.float64) @ gate["gate/kernel"] + gate["gate/bias"]
    return np.asarray(0.5 * (1 + np.tanh(0.5 * logits)), np.float64)


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

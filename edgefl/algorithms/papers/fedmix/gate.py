"""A client's own part of FedMix: which experts it uses, its gate, and the mixture that it ends with.

Reisser et al., Federated Mixture of Experts, arXiv:2107.06724, equation 9 and appendix I. Nothing of this
leaves the device.
"""

from collections.abc import Mapping

import numpy as np

from edgefl.algorithms.mixtures import responsibility as rs
from edgefl.algorithms.papers.fedmix.objectives import (
    BIAS,
    HIDDEN_LOGITS,
    KERNEL,
    PERSONAL,
    TRAIN,
    TRAIN_GATE,
)
from edgefl.errors import DataError
from edgefl.learner.base import Learner
from edgefl.types import Array, Broadcast, ClientState, Labels, Shard, Weights

GATE = "gate"
CLOSED = -16.0
"""Added to the gate's logit of an expert that the client has not: e^-16 of its share is left, in float and in
int8.
"""


def conditions_of(shard: Shard, condition: str, count: int) -> Labels:
    """Return what the responsibility of each training sample hangs on, int64[n]; DataError for side
    information that is not there.
    """
    if condition == "label":
        return shard.y_train
    side = shard.side_train
    if side is None:
        raise DataError(
            'condition = "side" needs side information of each training sample; give the shard side_train, '
            'or take "label"'
        )
    if len(side) != len(shard.y_train) or (len(side) and not 0 <= side.min() <= side.max() < count):
        raise DataError(
            f"side_train has {len(side)} values for {len(shard.y_train)} samples, expected one each from 0 "
            f"to {count - 1}; set num_sides to how many kinds there are"
        )
    return side


def used_of(models: Mapping[int, Weights], responsibility: rs.Real, threshold: float) -> tuple[int, ...]:
    """Return the experts that a client uses: those received with q(k|s) of at least the threshold, or else
    the likeliest received.
    """
    left = tuple(k for k in rs.kept(responsibility, threshold) if k in models)
    return left or (max(models, key=lambda k: responsibility[k]),)


def private_of(learner: Learner, broadcast: Broadcast, state: ClientState) -> dict[str, Array]:
    """Return gate and output bias: the federation's gate where it comes down, else what the client kept, else
    zeros.
    """
    found = {}
    for spec in learner.spec.signature(TRAIN).trained:
        if spec.name in (KERNEL, BIAS) or spec.name.startswith(f"{PERSONAL}/"):
            own = broadcast.models.get(GATE, {}).get(spec.name, state.arrays.get(spec.name))
            found[spec.name] = (
                own if own is not None and own.shape == spec.shape else np.zeros(spec.shape, np.float32)
            )
    return found


def seen_by(learner: Learner, model: Weights, x: Array) -> tuple[Array, Array]:
    """Return an expert's h_k, float32[n, hidden_width], and its logits, float32[n, classes]."""
    width = next(spec.shape[0] for spec in learner.spec.signature(TRAIN_GATE).trained if spec.name == KERNEL)
    seen = learner.predict(HIDDEN_LOGITS, model, {"x": x})
    return seen[:, :width], seen[:, width:]


def hidden_of(learner: Learner, models: Mapping[int, Weights], responsibility: rs.Real, x: Array) -> Array:
    """Return h_s = sum_k q(k|s) h_k over these experts: float32[n, hidden_width]."""
    return np.asarray(sum(responsibility[k] * seen_by(learner, models[k], x)[0] for k in models), np.float32)


def gate_probabilities(hidden: Array, gate: Weights) -> rs.Real:
    """Return p(z|x,s) of each sample: float64[n, experts]."""
    return rs.by_condition(hidden.astype(np.float64) @ gate[KERNEL] + gate[BIAS])


def mixture_of(models: Mapping[int, Weights], responsibility: rs.Real, private: Weights) -> dict[str, Array]:
    """Return the weights of `predict_mixture`, for the experts that the client has.

    The place of one that it has not is taken by its likeliest, under a gate that is closed: the graph is the
    same for every client.
    """
    count = len(responsibility)
    likeliest = max(models, key=lambda k: responsibility[k])
    closed = np.array([0.0 if k in models else CLOSED for k in range(count)], np.float32)
    added = {
        name.removeprefix(f"{PERSONAL}/"): array
        for name, array in private.items()
        if name.startswith(f"{PERSONAL}/")
    }
    placed = {
        f"expert{k}/{name}": array + added[name] if name in added else array
        for k in range(count)
        for name, array in models.get(k, models[likeliest]).items()
    }
    shares = {f"responsibility/{k}": np.array([value], np.float32) for k, value in enumerate(responsibility)}
    return {**placed, **shares, KERNEL: private[KERNEL], BIAS: private[BIAS] + closed}

"""The blend of a client's models: p(y|x) = sum_m pi_m p_m(y|x), or in a regression sum_m pi_m f_m(x).

Its members are models that a client has made anyway: its local model, the fine-tuned model, the federated
model and the algorithm's mixture. They are run one after the other, so the plan needs no signature for them.
The weights of a blend are the weights of its members, named `MEMBER/WEIGHT`, and the shares, named
`share/MEMBER`.

`docs/decisions/0034-a-device-ships-a-blend.md` has the figures.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from edgefl.base.errors import ConfigError, PlanError
from edgefl.base.types import Array, Labels, Mixture, Peer, Shard, Weights
from edgefl.base.verdict import UNTRAINED_LAYER_ALGORITHMS
from edgefl.learning.algorithms.mixtures.responsibility import Real, normalize_logits
from edgefl.learning.algorithms.names import (
    FEDERATED_MODEL,
    FINE_TUNED_MODEL,
    LOCAL_MODEL,
    MIXTURE_MODEL,
    find_output_weights,
    strip_prefix,
    with_prefix,
)
from edgefl.learning.client.shares import compute_error_log_p, fit_output_bias, fit_output_offset, fit_shares
from edgefl.program.learner.base import Learner, predict_label_log_p
from edgefl.program.plan.spec import PREDICT_BLEND, PREDICT_MIXTURE, PREDICT_SINGLE, PlanSpec, read_task

SHARE_NAME = "share"
MEMBER_ORDER = (LOCAL_MODEL, FINE_TUNED_MODEL, FEDERATED_MODEL, MIXTURE_MODEL)
MIN_BLENDED_PROBABILITY = 1e-7
"""Keeps the logarithm of a probability finite."""
BIAS_TOLERANCE = 1e-3
BIAS_PROBE_SAMPLES = 8
"""Number of samples that show whether a bias is added to the outputs."""
WEIGHT_ROUNDING = 1e-5
"""Largest difference of two equal weights, as a share of the largest weight of the tensor."""
MAX_CHECKED_SAMPLES = 1000
"""Maximum number of training samples for a bias, and to look for outputs that are not finite."""


@dataclass(frozen=True)
class BlendMember:
    """One model of a blend.

    Attributes:
        name: name of the model, such as `local`.
        peer: the model.
        share: its share, from 0 to 1.
    """

    name: str
    peer: Peer
    share: float


def choose_members(learner: Learner, models: Mapping[str, Peer], shard: Shard) -> dict[str, Peer]:
    """Return the models of a client that its blend consists of, by name.

    The federated model gets a bias for the client's samples, see `with_fitted_bias`. A federated model that
    consists of several experts is left out, because the algorithm's mixture has the same experts. A mixture
    that is the federated model, apart from rounding, is left out too. So are a federated model with untrained
    layers and a model whose outputs are not finite. The result is empty if the client has neither the
    federated nor the fine-tuned model.

    Args:
        learner: runs the plan, a classification or a regression.
        models: the client's models by name.
        shard: the samples that the models were trained on.
    """
    if not {FEDERATED_MODEL, FINE_TUNED_MODEL} & models.keys():
        return {}
    members = {name: _cut(learner.spec, models[name]) for name in MEMBER_ORDER if name in models}
    if learner.spec.algorithm in UNTRAINED_LAYER_ALGORITHMS:
        members.pop(FEDERATED_MODEL, None)
    federated, mixture = members.get(FEDERATED_MODEL), members.get(MIXTURE_MODEL)
    if federated is not None and mixture is not None and _are_equal(federated.weights, mixture.weights):
        del members[MIXTURE_MODEL]
    if federated is not None and federated.signature == PREDICT_SINGLE:
        members[FEDERATED_MODEL] = with_fitted_bias(learner, federated, shard.x_train, shard.y_train)
    elif federated is not None and MIXTURE_MODEL in members:
        del members[FEDERATED_MODEL]
    x = shard.x_train[_spread_rows(len(shard.x_train))]
    return {
        name: peer for name, peer in members.items() if np.isfinite(predict_outputs(learner, peer, x)).all()
    }


def with_fitted_bias(learner: Learner, peer: Peer, x: Array, y: Labels) -> Peer:
    """Return a model whose output layer has a bias that is fitted to the classes or targets of a client.

    Args:
        peer: the model. It is returned unchanged if its output layer has no bias that is added to the
            outputs.
        x: samples of the client, shape (n, *input_shape), float32. At most `MAX_CHECKED_SAMPLES` are used.
        y: their labels, shape (n,), int64, or their targets, shape (n, outputs), float32.
    """
    try:
        _, name = find_output_weights(peer.weights)
    except ConfigError:
        return peer
    rows = _spread_rows(len(x))  # a shard may be sorted by class
    x, y = x[rows], y[rows]

    def add(bias: Real) -> Peer:
        return Peer(peer.signature, {**peer.weights, name: np.asarray(peer.weights[name] + bias, np.float32)})

    outputs = predict_outputs(learner, peer, x).astype(np.float64)
    if peer.weights[name].shape != outputs.shape[1:] or not np.isfinite(outputs).all():
        return peer
    probed = x[:BIAS_PROBE_SAMPLES], outputs[:BIAS_PROBE_SAMPLES]
    scale = 1 + float(np.abs(probed[1]).max())
    steps = scale * np.arange(1, outputs.shape[1] + 1) / outputs.shape[1]
    for probe in (steps, -steps):  # an activation after the output layer may act on one sign only
        moved = predict_outputs(learner, add(probe), probed[0]) - probed[1]
        if np.abs(moved - probe).max() > BIAS_TOLERANCE * scale:
            return peer
    task = read_task(learner.spec)
    if task.is_classification:
        return add(fit_output_bias(outputs, y))
    return add(fit_output_offset(y - outputs, task.loss_name))


def fit_member_shares(
    learner: Learner, members: Mapping[str, Peer], x: Array, y: Labels, group: Labels | None
) -> dict[str, float]:
    """Return the share of each member that fits samples on which no member was trained, by name.

    Args:
        x: the samples, shape (n, *input_shape), float32.
        y: their labels, shape (n,), int64, or their targets, shape (n, outputs), float32.
        group: their recordings, shape (n,), int64. None if samples are independent.
    """
    if not members:
        return {}
    if learner.spec.is_classification:
        log_p = np.stack(
            [predict_label_log_p(learner, peer.signature, peer.weights, x, y) for peer in members.values()],
            axis=1,
        )
    else:
        errors = [y - predict_outputs(learner, peer, x).astype(np.float64) for peer in members.values()]
        log_p = compute_error_log_p(np.stack(errors, axis=1), read_task(learner.spec).loss_name, group)
    shares = fit_shares(np.nan_to_num(log_p, nan=-np.inf), group)
    return dict(zip(members, map(float, shares), strict=True))


def join_members(members: Mapping[str, Peer], shares: Mapping[str, float]) -> Peer:
    """Return the blend of these members.

    Args:
        shares: their shares by name. A member without a share is left out, and the others are divided by
            their sum. If no member has a share, all are equal.
    """
    positive = {name: shares[name] for name in members if shares.get(name, 0.0) > 0}
    positive = positive or dict.fromkeys(members, 1.0)
    total = sum(positive.values())
    weights: dict[str, Array] = {}
    for name, share in positive.items():
        weights |= with_prefix(name, members[name].weights)
        weights[f"{SHARE_NAME}/{name}"] = np.array([share / total], np.float32)
    return Peer(PREDICT_BLEND, weights)


def split_members(spec: PlanSpec, weights: Weights) -> tuple[BlendMember, ...]:
    """Return the members of a blend, the one with the largest share first.

    Raises:
        PlanError: a member has other weights than the plan's models, or there is no member.
    """
    by_names = {
        frozenset(tensor.name for tensor in signature.frozen): signature.name
        for signature in reversed(spec.signatures)
        if signature.name in (PREDICT_SINGLE, PREDICT_MIXTURE)
    }
    members = []
    for name, array in strip_prefix(SHARE_NAME, weights).items():
        member = strip_prefix(name, weights)
        signature = by_names.get(frozenset(member))
        share = float(array.sum())
        if signature is None or name not in MEMBER_ORDER or not 0 < share < math.inf:
            raise PlanError(
                f"the member {name} of this blend does not have the weights of a model of the plan and a "
                "share above 0, expected a blend of the same plan; copy the model and its plan again, or let "
                "the device personalize again"
            )
        members.append(BlendMember(name, Peer(signature, member), share))
    if not members:
        raise PlanError(
            "this blend has no members, expected shares named share/MEMBER; copy the model again, or let the "
            "device personalize again"
        )
    return tuple(sorted(members, key=lambda member: (-member.share, MEMBER_ORDER.index(member.name))))


def predict_outputs(learner: Learner, peer: Peer, x: Array) -> Array:
    """Return the outputs of a model, which may be a blend.

    Args:
        x: samples, shape (n, *input_shape), float32, n at least 1.

    Returns:
        The outputs, shape (n, outputs), float32. For a blend of classifiers these are log probabilities.

    Raises:
        PlanError: the weights do not fit the plan.
        DataError: the samples do not fit the plan.
    """
    if peer.signature != PREDICT_BLEND:
        return learner.predict(peer.signature, peer.weights, {"x": x})
    is_classification = learner.spec.is_classification
    total: Real = np.zeros((len(x), learner.spec.num_classes))
    for member in split_members(learner.spec, peer.weights):
        outputs = predict_outputs(learner, member.peer, x).astype(np.float64)
        total += member.share * (normalize_logits(outputs) if is_classification else outputs)
    return (np.log(total + MIN_BLENDED_PROBABILITY) if is_classification else total).astype(np.float32)


def find_gated_weights(mixture: Mixture) -> Weights:
    """Return the weights of the algorithm's mixture, which may have a gate, also if a client ships a blend.

    Args:
        mixture: the personal model of a client, with its peers.
    """
    peer = mixture.peers.get(MIXTURE_MODEL) if mixture.signature == PREDICT_BLEND else None
    return mixture.weights if peer is None else peer.weights


def _spread_rows(count: int) -> Labels:
    """Return at most `MAX_CHECKED_SAMPLES` rows at equal distances."""
    return np.unique(np.linspace(0, count - 1, min(count, MAX_CHECKED_SAMPLES)).astype(np.int64))


def _cut(spec: PlanSpec, peer: Peer) -> Peer:
    """Return a model with the weights of its signature, in their order."""
    names = (tensor.name for tensor in spec.find_signature(peer.signature).frozen)
    return Peer(peer.signature, {name: peer.weights[name] for name in names})


def _are_equal(weights: Weights, others: Weights) -> bool:
    """Return whether two models have the same weights, apart from the rounding of a sum or a mean."""
    return weights.keys() == others.keys() and all(
        np.allclose(
            array,
            others[name],
            rtol=0,
            atol=WEIGHT_ROUNDING
            * min(float(np.abs(values).max(initial=0.0)) for values in (array, others[name])),
        )
        for name, array in weights.items()
    )

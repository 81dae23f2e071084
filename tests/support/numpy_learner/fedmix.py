"""The signatures of FedMix in numpy; the features of the linear trunk are what goes into an expert's last
layer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
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
    cross_entropy,
    predicts,
    softmax,
    trains,
    under,
)

FLOOR = 1e-7
OUTPUT_BIAS = "personal/head/bias"


@dataclass(frozen=True)
class _Form:
    """How many experts there are, on what their responsibility hangs, whether there is an output bias, and
    whether there is no q(z|y).
    """

    num_experts: int
    conditions: int
    by_label: bool
    biased: bool
    direct: bool
    with_entropy: bool = False


def _form(sizes: Sizes, options: Mapping[str, Any]) -> _Form:
    by_label = options.get("condition", "label") == "label"
    conditions = sizes.classes if by_label else options.get("num_sides", 8)
    return _Form(
        num_experts=options.get("num_experts", 4),
        conditions=conditions,
        by_label=by_label,
        biased=options.get("bias", False),
        direct=options.get("objective") == "likelihood",
        with_entropy=options.get("client_entropy", False),
    )


def _gate_specs(sizes: Sizes, num_experts: int) -> tuple[TensorSpec, ...]:
    return TensorSpec("gate/kernel", (sizes.features, num_experts)), TensorSpec("gate/bias", (num_experts,))


def more(algorithm: str, sizes: Sizes, options: Mapping[str, Any]) -> tuple[TensorSpec, ...]:
    """Return the weights beside the network's that the federation starts from."""
    if algorithm != "fedmix":
        return ()
    form = _form(sizes, options)
    gate = _gate_specs(sizes, form.num_experts) if options.get("gate", "local") == "federated" else ()
    return (TensorSpec("phi", (form.conditions, form.num_experts)), *gate)


def rules(algorithm: str, sizes: Sizes, options: Mapping[str, Any]) -> tuple[Rule, ...]:
    """Return the rules of fedmix, fedmix-permutation or fedem."""
    form = _form(sizes, {"num_experts": 3, **options} if algorithm == "fedem" else options)
    own = (*sizes.trunk, *sizes.head)
    parts = tuple(spec for k in range(form.num_experts) for spec in under(f"expert{k}", own))
    if algorithm == "fedem":
        shares = tuple(TensorSpec(f"responsibility/{k}", (1,)) for k in range(form.num_experts))
        weighted = (sizes.x, TensorSpec("responsibility", (sizes.batch, 1)))
        return (
            trains("train", sizes, weighted, own, _weighted_slope),
            classifier(sizes)[1],
            predicts("predict_mixture", sizes, (sizes.x,), (*parts, *shares), partial(_fixed_mixture, form)),
        )
    if algorithm == "fedmix-permutation":
        shares = tuple(TensorSpec(f"responsibility/{k}", (1,)) for k in range(form.num_experts))
        if options.get("mixture") == "likeliest":
            return classifier(sizes)
        whole = predicts(
            "predict_mixture", sizes, (sizes.x,), (*parts, *shares), partial(_fixed_mixture, form)
        )
        return (*classifier(sizes)[:2], whole)
    gate = _gate_specs(sizes, form.num_experts)
    output_bias = (TensorSpec(OUTPUT_BIAS, (sizes.classes,)),) * form.biased
    shares = tuple(TensorSpec(f"responsibility/{k}", (1,)) for k in range(form.num_experts))
    gated = (
        TensorSpec("hidden", (sizes.batch, sizes.features)),
        TensorSpec("responsibility", (sizes.batch, form.num_experts)),
    )
    return (
        *(
            _train(sizes, form, count, output_bias)
            for count in range(1 if options.get("prune") else form.num_experts, form.num_experts + 1)
        ),
        predicts("hidden_logits", sizes, (sizes.x,), own, _hidden_logits, sizes.features + sizes.classes),
        trains("train_gate", sizes, gated, gate, _gate_slope),
        predicts("predict", sizes, (sizes.x,), own, classifier_out),
        predicts("predict_mixture", sizes, (sizes.x,), (*parts, *shares, *gate), partial(_mixture, form)),
    )


def _weighted_slope(
    w: Named, data: Named, hyper: Named, share: np.ndarray
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the slope of q * cross-entropy."""
    q = data["responsibility"][:, 0]
    gradients, losses = classifier_slope(w, data, hyper, share * q)
    return gradients, losses * q


def _train(sizes: Sizes, form: _Form, count: int, output_bias: tuple[TensorSpec, ...]) -> Rule:
    name = "train_mixture" if count == form.num_experts else f"train_mixture_{count}"
    side = () if form.by_label else (TensorSpec("condition", (sizes.batch, form.conditions)),)
    phi = TensorSpec("phi", (form.conditions, form.num_experts))
    share = TensorSpec("condition_share", (1, form.conditions))
    chosen = (TensorSpec("chosen", (form.num_experts, count)),) * (count < form.num_experts)
    parts = tuple(spec for k in range(count) for spec in under(f"expert{k}", (*sizes.trunk, *sizes.head)))
    weights = (*parts, *(phi,) * (not form.direct), *_gate_specs(sizes, form.num_experts), *output_bias)
    if form.direct:
        return trains(name, sizes, (sizes.x,), weights, partial(_likelihood_slope, form), (phi, share))
    return trains(name, sizes, (sizes.x, *side), weights, partial(_slope, form, count), (share, *chosen))


def _part(w: Named, k: int) -> dict[str, np.ndarray]:
    return {name: w[f"expert{k}/{name}"] for name in (TRUNK, *HEAD)}


def _among(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    total = values.sum(axis=1, keepdims=True)
    return values / total, total


def _slope(
    form: _Form, count: int, w: Named, data: Named, hyper: Named, share: np.ndarray
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    x = data["x"]
    y = data["y"]
    s = share[:, None]
    q = softmax(w["phi"])
    condition = np.eye(form.conditions)[y] if form.by_label else data["condition"]
    chosen = w["chosen"] if count < form.num_experts else np.eye(count)
    used, used_total = _among(condition @ q @ chosen)
    marginal, marginal_total = _among(w["condition_share"] @ q @ chosen)
    parts = [_part(w, k) for k in range(count)]
    hidden = [x @ part[TRUNK] for part in parts]
    gradients: dict[str, np.ndarray] = {}
    seen = sum(marginal[0, k] * hidden[k] for k in range(count))
    gated = seen @ w["gate/kernel"] + w["gate/bias"]
    log_gate = np.log(np.maximum(softmax(gated), 1e-30))
    for_gate = condition @ q
    d_gate = (softmax(gated) - for_gate) * s
    gradients["gate/kernel"] = seen.T @ d_gate
    gradients["gate/bias"] = d_gate.sum(axis=0)
    d_seen = d_gate @ w["gate/kernel"].T
    bias = w.get(OUTPUT_BIAS, np.zeros(()))
    losses = np.zeros((len(y), count))
    d_bias = np.zeros(w[f"expert0/{HEAD[1]}"].shape)
    for k, part in enumerate(parts):
        d, losses[:, k] = cross_entropy(
            hidden[k] @ part[HEAD[0]] + part[HEAD[1]] + bias, y, share * used[:, k]
        )
        d_hidden = d @ part[HEAD[0]].T + marginal[0, k] * d_seen
        gradients |= {
            f"expert{k}/{TRUNK}": x.T @ d_hidden,
            f"expert{k}/{HEAD[0]}": hidden[k].T @ d,
            f"expert{k}/{HEAD[1]}": d.sum(axis=0),
        }
        d_bias = d_bias + d.sum(axis=0)
    if form.biased:
        gradients[OUTPUT_BIAS] = d_bias
    d_used = losses * s
    d_marginal = np.array([[(d_seen * each).sum() for each in hidden]])
    d_q = condition.T @ (_back_among(d_used, used, used_total) @ chosen.T - log_gate * s)
    d_q = d_q + w["condition_share"].T @ (_back_among(d_marginal, marginal, marginal_total) @ chosen.T)
    if form.with_entropy:  # the slope of sum q log q is log q + 1, and the softmax cancels the 1
        d_q = d_q + condition.T @ (np.log(for_gate) * s)
        log_gate = log_gate - np.log(for_gate)
    gradients["phi"] = q * (d_q - (d_q * q).sum(axis=1, keepdims=True))
    return gradients, (used * losses).sum(axis=1) - (for_gate * log_gate).sum(axis=1)


def _likelihood_slope(
    form: _Form, w: Named, data: Named, hyper: Named, share: np.ndarray
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the slope of -log sum_k g_k p_k(y), of which expert k has the part g_k p_k(y) / sum."""
    x = data["x"]
    y = data["y"]
    count = form.num_experts
    parts = [_part(w, k) for k in range(count)]
    hidden = [x @ part[TRUNK] for part in parts]
    marginal = (w["condition_share"] @ softmax(w["phi"]))[0]
    seen = np.asarray(sum(marginal[k] * hidden[k] for k in range(count)))
    gate = softmax(seen @ w["gate/kernel"] + w["gate/bias"])
    bias = w.get(OUTPUT_BIAS, np.zeros(()))
    right = np.stack(
        [
            softmax(h @ part[HEAD[0]] + part[HEAD[1]] + bias)[np.arange(len(y)), y]
            for h, part in zip(hidden, parts, strict=True)
        ],
        1,
    )
    mixed = (gate * right).sum(axis=1, keepdims=True)
    of_expert = gate * right / mixed
    d_gate = (gate - of_expert) * share[:, None]
    gradients = {"gate/kernel": seen.T @ d_gate, "gate/bias": d_gate.sum(axis=0)}
    d_seen = d_gate @ w["gate/kernel"].T
    d_bias = np.zeros(w[f"expert0/{HEAD[1]}"].shape)
    for k, part in enumerate(parts):
        d, _ = cross_entropy(hidden[k] @ part[HEAD[0]] + part[HEAD[1]] + bias, y, share * of_expert[:, k])
        d_hidden = d @ part[HEAD[0]].T + marginal[k] * d_seen
        gradients |= {
            f"expert{k}/{TRUNK}": x.T @ d_hidden,
            f"expert{k}/{HEAD[0]}": hidden[k].T @ d,
            f"expert{k}/{HEAD[1]}": d.sum(axis=0),
        }
        d_bias = d_bias + d.sum(axis=0)
    if form.biased:
        gradients[OUTPUT_BIAS] = d_bias
    return gradients, -np.log(mixed[:, 0])


def _back_among(d: np.ndarray, scaled: np.ndarray, total: np.ndarray) -> np.ndarray:
    return np.asarray((d - (d * scaled).sum(axis=1, keepdims=True)) / total)


def _gate_slope(
    w: Named, data: Named, hyper: Named, share: np.ndarray
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    p = softmax(data["hidden"] @ w["gate/kernel"] + w["gate/bias"])
    target = data["responsibility"]
    d = (p * target.sum(axis=1, keepdims=True) - target) * share[:, None]
    return {"gate/kernel": data["hidden"].T @ d, "gate/bias": d.sum(axis=0)}, -(
        target * np.log(np.maximum(p, 1e-30))
    ).sum(axis=1)


def _hidden_logits(w: Named, data: Named) -> np.ndarray:
    return np.concatenate([data["x"] @ w[TRUNK], classifier_out(w, data)], axis=1)


def _mixture(form: _Form, w: Named, data: Named) -> np.ndarray:
    parts = [_part(w, k) for k in range(form.num_experts)]
    seen = sum(w[f"responsibility/{k}"] * (data["x"] @ part[TRUNK]) for k, part in enumerate(parts))
    gate = softmax(seen @ w["gate/kernel"] + w["gate/bias"])
    mixed = sum(gate[:, k : k + 1] * softmax(classifier_out(part, data)) for k, part in enumerate(parts))
    return np.asarray(np.log(mixed + FLOOR))


def _fixed_mixture(form: _Form, w: Named, data: Named) -> np.ndarray:
    shares = [w[f"responsibility/{k}"] for k in range(form.num_experts)]
    mixed = sum(share * softmax(classifier_out(_part(w, k), data)) for k, share in enumerate(shares))
    return np.asarray(np.log(mixed + FLOOR))

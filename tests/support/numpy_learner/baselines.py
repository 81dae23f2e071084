"""The signatures of FedProx, Ditto, APFL, PFL-FT, FedALA and FedRoD in numpy."""

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
    classifier_slope,
    cross_entropy,
    trains,
    under,
)

ALPHA = TensorSpec("alpha", ())
Slopes = tuple[dict[str, np.ndarray], np.ndarray]


def rules(algorithm: str, sizes: Sizes, options: Mapping[str, Any]) -> tuple[Rule, ...]:
    """Return the rules of fedprox, ditto, apfl, pfl-ft, fedala or fedrod."""
    train, *others = classifier(sizes)
    weights = (*sizes.trunk, *sizes.head)
    received = under("received", weights)
    own = under("own", weights)
    new = partial(trains, sizes=sizes, data=(sizes.x,))
    found: dict[str, tuple[Rule, ...]] = {
        "fedprox": (
            new("train", weights=weights, slope=partial(_proximal, options.get("mu", 0.01)), frozen=received),
            *others,
        ),
        "ditto": (
            train,
            *others,
            new(
                "train_personal",
                weights=weights,
                slope=partial(_proximal, options.get("penalty", 1.0)),
                frozen=received,
            ),
        ),
        "apfl": (
            train,
            *others,
            new("train_both", weights=(*weights, *own), slope=_both, frozen=(ALPHA,)),
            new("train_alpha", weights=(ALPHA,), slope=_alpha, frozen=(*weights, *own)),
        ),
        "fedala": (
            train,
            *others,
            new(
                "train_mixing",
                weights=under("mixing", sizes.head),
                slope=_mixing,
                frozen=(*weights, *under("local", sizes.head)),
            ),
        ),
        "fedrod": (
            new(
                "train",
                weights=(*weights, *under("personal", sizes.head)),
                slope=_two_heads,
                frozen=(TensorSpec("log_prior", (sizes.classes,)),),
            ),
            *others,
        ),
        "pfl-ft": (train, *others, new("train_all", weights=weights, slope=classifier_slope)),
    }
    return found[algorithm]


def _proximal(mu: float, w: Named, data: Named, hyper: Named, share: np.ndarray) -> Slopes:
    slopes, loss = classifier_slope(w, data, hyper, share)
    away = {name: w[name] - w[f"received/{name}"] for name in slopes}
    penalty = mu / 2 * sum(float(np.square(each).sum()) for each in away.values())
    return {name: slope + mu * away[name] for name, slope in slopes.items()}, loss + penalty


def _on_mixture(w: Named, data: Named, hyper: Named, share: np.ndarray) -> Slopes:
    names = [name.removeprefix("own/") for name in w if name.startswith("own/")]
    mixed = {name: w["alpha"] * w[f"own/{name}"] + (1 - w["alpha"]) * w[name] for name in names}
    return classifier_slope(mixed, data, hyper, share)


def _both(w: Named, data: Named, hyper: Named, share: np.ndarray) -> Slopes:
    slopes, loss = classifier_slope(w, data, hyper, share)
    personal, more = _on_mixture(w, data, hyper, share)
    return {**slopes, **{f"own/{name}": w["alpha"] * slope for name, slope in personal.items()}}, loss + more


def _alpha(w: Named, data: Named, hyper: Named, share: np.ndarray) -> Slopes:
    slopes, loss = _on_mixture(w, data, hyper, share)
    return {
        "alpha": np.asarray(sum(float((slope * (w[f"own/{n}"] - w[n])).sum()) for n, slope in slopes.items()))
    }, loss


def _mixing(w: Named, data: Named, hyper: Named, share: np.ndarray) -> Slopes:
    away = {name: w[name] - w[f"local/{name}"] for name in HEAD}
    merged = {name: w[f"local/{name}"] + away[name] * w[f"mixing/{name}"] for name in HEAD}
    slopes, loss = classifier_slope({**w, **merged}, data, hyper, share)
    return {f"mixing/{name}": slopes[name] * away[name] for name in HEAD}, loss


def _two_heads(w: Named, data: Named, hyper: Named, share: np.ndarray) -> Slopes:
    h = data["x"] @ w[TRUNK]
    logits = h @ w[HEAD[0]] + w[HEAD[1]]
    d, loss = cross_entropy(logits + w["log_prior"], data["y"], share)
    own = logits + h @ w[f"personal/{HEAD[0]}"] + w[f"personal/{HEAD[1]}"]
    e, more = cross_entropy(own, data["y"], share)
    return {
        TRUNK: data["x"].T @ (d @ w[HEAD[0]].T),
        HEAD[0]: h.T @ d,
        HEAD[1]: d.sum(axis=0),
        f"personal/{HEAD[0]}": h.T @ e,
        f"personal/{HEAD[1]}": e.sum(axis=0),
    }, loss + more

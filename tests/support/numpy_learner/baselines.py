"""The signatures of FedProx, Ditto, APFL and PFL-FT in numpy."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from edgefl.plan.spec import TensorSpec
from tests.support.numpy_learner.rules import Named, Rule, Sizes, classifier, classifier_slope, trains, under

ALPHA = TensorSpec("alpha", ())
Slopes = tuple[dict[str, np.ndarray], np.ndarray]


def rules(algorithm: str, sizes: Sizes, options: Mapping[str, Any]) -> tuple[Rule, ...]:
    """Return the rules of fedprox, ditto, apfl or pfl-ft."""
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

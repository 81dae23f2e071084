"""Which of several models a client ships: the first in a fixed order that is as good as the best.

Few validation samples say little about small differences. Within that noise the choice follows what is known
before: one model that a client fine-tunes from the federation's weights needs few samples, one that it trains
alone needs many, and a mixture has the most weights to fit. `docs/results/outcomes.md` has the figures.

Source: the one-standard-error rule of Breiman, Friedman, Olshen and Stone, Classification and Regression
Trees, 1984, section 3.4.3; here with the standard error of the paired difference, since all models are
measured on the same samples.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from edgefl.algorithms.names import FEDERATED, FINE_TUNED, LOCAL, MIXED

MODELS = (LOCAL, FEDERATED, FINE_TUNED, MIXED)
"""The models that a client compares; the metric `shipped` is an index into them."""
PREFERENCE = (FINE_TUNED, LOCAL, FEDERATED, MIXED)
"""The same, those that a client prefers within the noise first."""


def choose(correct: Mapping[str, NDArray[np.bool_]], order: Sequence[str] = PREFERENCE) -> str:
    """Return the name of the first model in `order` that is not worse than the best beyond the noise.

    A model is not worse beyond the noise if the best one is ahead of it by at most one standard error of
    their difference. Of the samples that exactly one of the two is right about, the best one has g and the
    other l. If both were equally good, g - l would have the standard error sqrt(g + l). Whole numbers decide
    alike on every processor.

    Args:
        correct: whether a model is right about each validation sample, bool[n], by the model's name.
        order: names, the preferred one first. Others are not chosen.

    Raises:
        ValueError: no name of `order` is among the models.
    """
    names = [name for name in order if name in correct]
    if not names:
        raise ValueError(f"no model of {', '.join(order)} among {', '.join(correct) or 'none'}")
    scores = {name: correct[name].mean() if len(correct[name]) else 0.0 for name in names}
    best = max(names, key=lambda name: scores[name])
    return next(name for name in names if _within_noise(correct[best], correct[name]))


def _within_noise(best: NDArray[np.bool_], other: NDArray[np.bool_]) -> bool:
    gained = int((best & ~other).sum())
    lost = int((other & ~best).sum())
    return (gained - lost) ** 2 <= gained + lost

"""Selection of the model that a client ships: the first in a fixed order that is as good as the best.

A few validation samples say little about small differences. Within that noise, the order decides. The order
comes from the scores of all clients (`edgefl.learning.client.comparison`). Without these scores, the simpler
model comes first:

- A local model needs no federation.
- A fine-tuned model starts from the federated model.
- The federated model has no personal weights.
- A mixture has the most weights.

`docs/decisions/0018-which-model-a-device-ships.md` has the figures.

Source: the one-standard-error rule of Breiman, Friedman, Olshen and Stone, Classification and Regression
Trees, 1984, section 3.4.3. The standard error here is the error of the paired difference, because all models
are measured on the same samples. With groups it is the cluster-robust standard error of Liang and Zeger,
Biometrika 73 (1986).
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from edgefl.base.types import Labels
from edgefl.learning.algorithms.names import (
    BLEND_MODEL,
    FEDERATED_MODEL,
    FINE_TUNED_MODEL,
    LOCAL_MODEL,
    MIXTURE_MODEL,
)

COMPARED_MODELS = (LOCAL_MODEL, FEDERATED_MODEL, FINE_TUNED_MODEL, MIXTURE_MODEL)
"""The models that a client compares."""
SHIPPED_MODELS = (*COMPARED_MODELS, BLEND_MODEL)
"""The models that a client may ship. The metric `shipped` is an index into them."""
PREFERRED_ORDER = (LOCAL_MODEL, FINE_TUNED_MODEL, FEDERATED_MODEL, MIXTURE_MODEL)
"""The preference within the noise, when a client knows no scores of other clients. The first is preferred."""
Scores = NDArray[np.int64]
SCORE_UNIT = 1000
"""A score is a probability in thousandths."""


def choose_within_noise(
    scores: Mapping[str, Scores], order: Sequence[str] = PREFERRED_ORDER, group: Labels | None = None
) -> str:
    """Return the name of the first model in `order` that is not significantly worse than the best.

    A model is not significantly worse if the best model is ahead by at most one standard error of their
    difference. Let d be the differences of the two models' scores. If both were equally good, the sum of d
    would have the standard error sqrt(sum of d^2). The windows of one recording tend to be right or wrong
    together. So with groups, each group is one difference: the sum of d over its samples. A single group does
    not show how groups differ. Scores are between 0 and 1, so if the mean of d is m, the standard deviation
    is at most sqrt(1 - m^2). The best model is then ahead if m is above sqrt(1/2), about .71.

    The decision uses integers and is therefore the same on every processor.

    Args:
        scores: scores of the validation samples by model, shape (n,), int64. More is better.
        order: names of models, the preferred one first. Other models are not chosen.
        group: group of each validation sample, shape (n,), int64. None if samples are independent.

    Raises:
        ValueError: `order` has no name of a model in `scores`.
    """
    names = [name for name in order if name in scores]
    if not names:
        raise ValueError(f"no model of {', '.join(order)} among {', '.join(scores) or 'none'}")
    best = max(names, key=lambda name: int(scores[name].sum()))
    return next(name for name in names if _is_within_noise(scores[best] - scores[name], group))


def is_worse(scores: Scores, others: Scores, group: Labels | None = None) -> bool:
    """Return whether a model is significantly worse than another model, see `choose_within_noise`.

    Args:
        scores: scores of the validation samples, shape (n,), int64.
        others: scores of the other model, shape (n,), int64.
        group: group of each validation sample, shape (n,), int64. None if samples are independent.
    """
    return int(scores.sum()) < int(others.sum()) and not _is_within_noise(others - scores, group)


def _is_within_noise(differences: Scores, group: Labels | None) -> bool:
    total = int(differences.sum())
    if group is None:
        return total**2 <= int((differences**2).sum())
    groups, members = np.unique(group, return_inverse=True)
    if len(groups) == 1:
        return total**2 <= (SCORE_UNIT * len(differences)) ** 2 - total**2
    sums = np.zeros(len(groups), np.int64)
    np.add.at(sums, members.reshape(-1), differences)
    return total**2 <= int((sums**2).sum())

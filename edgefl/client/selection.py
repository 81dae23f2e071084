"""Which of several models a client ships: the first in a fixed order that is as good as the best.

Few validation samples say little about small differences. Within that noise the order decides: that of the
scores of all clients, see `edgefl.client.comparison`. Without them the simpler model comes first: one that a
client trains alone needs no federation, a fine-tuned model starts from the federation's, the federation's own
has nothing personal, and a mixture has the most weights.
`docs/decisions/0018-which-model-a-device-ships.md` has the figures.

Source: the one-standard-error rule of Breiman, Friedman, Olshen and Stone, Classification and Regression
Trees, 1984, section 3.4.3; here with the standard error of the paired difference, since all models are
measured on the same samples. With groups it is the cluster-robust standard error of Liang and Zeger,
Biometrika 73 (1986).
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from edgefl.algorithms.names import FEDERATED_MODEL, FINE_TUNED_MODEL, LOCAL_MODEL, MIXTURE_MODEL
from edgefl.types import Labels

COMPARED_MODELS = (LOCAL_MODEL, FEDERATED_MODEL, FINE_TUNED_MODEL, MIXTURE_MODEL)
"""The models that a client compares; the metric `shipped` is an index into them."""
PREFERRED_ORDER = (LOCAL_MODEL, FINE_TUNED_MODEL, FEDERATED_MODEL, MIXTURE_MODEL)
"""The same, those that a client prefers within the noise first when it knows no scores of other clients."""
Scores = NDArray[np.int64]
SCORE_UNIT = 1000
"""A score is a probability in thousandths."""


def choose_model(
    scores: Mapping[str, Scores], order: Sequence[str] = PREFERRED_ORDER, group: Labels | None = None
) -> str:
    """Return the name of the first model in `order` that is not worse than the best beyond the noise.

    A model is not worse beyond the noise if the best one is ahead of it by at most one standard error of
    their difference. Let d be the differences of the two models' scores. If both were equally good, the sum
    of d would have the standard error sqrt(sum of d^2). Windows of one recording are right and wrong
    together, so with groups each group is one difference: the sum of d over its samples. Whole numbers decide
    alike on every processor.

    Args:
        scores: each model's score of each validation sample, int64[n], by the model's name; more is better.
        order: names, the preferred one first. Others are not chosen.
        group: the group of each validation sample, int64[n]; None when samples stand alone.

    Raises:
        ValueError: no name of `order` is among the models.
    """
    names = [name for name in order if name in scores]
    if not names:
        raise ValueError(f"no model of {', '.join(order)} among {', '.join(scores) or 'none'}")
    best = max(names, key=lambda name: int(scores[name].sum()))
    return next(name for name in names if _is_within_noise(scores[best] - scores[name], group))


def is_worse(scores: Scores, others: Scores, group: Labels | None = None) -> bool:
    """Return whether a model is worse than another one beyond the noise, see `choose`.

    Args:
        scores: the model's score of each validation sample, int64[n].
        others: those of the other model.
        group: see `choose`.
    """
    return int(scores.sum()) < int(others.sum()) and not _is_within_noise(others - scores, group)


def _is_within_noise(differences: Scores, group: Labels | None) -> bool:
    if group is not None:
        members = np.unique(group, return_inverse=True)[1].reshape(-1)
        sums = np.zeros(len(differences), np.int64)
        np.add.at(sums, members, differences)
        differences = sums
    return int(differences.sum()) ** 2 <= int((differences**2).sum())

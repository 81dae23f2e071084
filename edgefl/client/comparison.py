"""How a client compares its models in the last round, so that all clients can choose by the scores of all.

The scores of a client's own validation samples stay in its state until the personalization. Its update
reports their means, one number for each model.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from edgefl.algorithms.names import RANK
from edgefl.client.selection import MODELS, PREFERENCE, SCORE_UNIT, Scores
from edgefl.types import ClientState, Scalars

OWN = "score/"
"""Prefix of a client's own scores in its state."""


def with_scores(state: ClientState, scores: Mapping[str, Scores]) -> ClientState:
    """Return the state of a client with the scores of its validation samples."""
    own = {OWN + name: each.astype(np.float32) for name, each in scores.items()}
    return replace(state, arrays={**state.arrays, **own})


def split_scores(state: ClientState) -> tuple[ClientState, dict[str, Scores]]:
    """Return the state of a client without the scores, and the scores."""
    others = {name: array for name, array in state.arrays.items() if not name.startswith(OWN)}
    own = {
        name.removeprefix(OWN): array.astype(np.int64)
        for name, array in state.arrays.items()
        if name.startswith(OWN)
    }
    return replace(state, arrays=others), own


def mean_scores(scores: Mapping[str, Scores]) -> dict[str, float]:
    """Return the mean score of each model, from 0 to 1, by model."""
    return {name: float(each.mean()) / SCORE_UNIT for name, each in scores.items()}


def shared_order(scalars: Scalars) -> tuple[str, ...]:
    """Return the models in the order that the scores of all clients give, the best first.

    Args:
        scalars: those of the last broadcast. Models without a rank come last, in the order of `PREFERENCE`.
    """
    return tuple(sorted(PREFERENCE, key=lambda name: scalars.get(RANK + name, len(MODELS))))

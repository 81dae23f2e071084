"""The comparison of a client's models in the last round, so that all clients can use the scores of all.

The scores of a client's own validation samples stay in its state until the personalization. Its update
reports their means and, for a blend, the shares.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from zlib import crc32

import numpy as np

from edgefl.base.types import ClientState, Scalars, StateRecord
from edgefl.learning.algorithms.names import BLEND_PREFIX, RANK_SCALAR_PREFIX, SCORE_METRIC_PREFIX
from edgefl.learning.client.selection import COMPARED_MODELS, PREFERRED_ORDER, SCORE_UNIT, Scores
from edgefl.learning.client.validation import ValidationSplit


@dataclass(frozen=True)
class ModelComparison:
    """A client's models on its validation samples.

    Attributes:
        scores: scores of the validation samples by model, shape (n,), int64. Empty if nothing was compared.
        shares: share of each model in the blend that fits these samples, see `edgefl.learning.client.blend`.
            Empty for a client that ships one model.
    """

    scores: Mapping[str, Scores] = field(default_factory=dict)
    shares: Mapping[str, float] = field(default_factory=dict)

    def as_metrics(self) -> dict[str, float]:
        """Return the mean scores and the shares as metrics of an update."""
        scores = {SCORE_METRIC_PREFIX + name: mean for name, mean in average_scores(self.scores).items()}
        return scores | {BLEND_PREFIX + name: share for name, share in self.shares.items()}


@dataclass(frozen=True)
class ValidationScores(StateRecord):
    """A client's own scores.

    Attributes:
        checksum: checksum of the validation samples.
        by_model: scores of the validation samples by model, shape (n,), int64.
    """

    checksum: int = 0
    by_model: Mapping[str, Scores] = field(default_factory=dict)


def with_scores(state: ClientState, scores: Mapping[str, Scores], samples: ValidationSplit) -> ClientState:
    """Return the state of a client with the scores of its validation samples.

    Args:
        scores: scores of the validation samples by model, shape (n,), int64.
    """
    return state.with_record(ValidationScores(_compute_checksum(samples), scores)) if scores else state


def split_scores(state: ClientState, samples: ValidationSplit) -> tuple[ClientState, dict[str, Scores]]:
    """Return the state of a client without the scores, and the scores by model.

    Scores of other validation samples are dropped, such as after a restart with further recordings.

    Args:
        samples: the client's samples, with the validation samples held out.
    """
    stored = state.read_record(ValidationScores)
    fits = stored.checksum == _compute_checksum(samples)
    return state.remove_record(ValidationScores), dict(stored.by_model) if fits else {}


def _compute_checksum(samples: ValidationSplit) -> int:
    arrays = (samples.x, samples.y, *(() if samples.group is None else (samples.group,)))
    checksum = 0
    for array in arrays:
        checksum = crc32(np.ascontiguousarray(array).tobytes(), checksum)
    return checksum


def average_scores(scores: Mapping[str, Scores]) -> dict[str, float]:
    """Return the mean score of each model, from 0 to 1, by model.

    Args:
        scores: scores of the validation samples by model, shape (n,), int64.
    """
    return {name: float(values.mean()) / SCORE_UNIT for name, values in scores.items()}


def read_blend_shares(scalars: Scalars) -> dict[str, float]:
    """Return the mean shares of all clients by model, or nothing if the last broadcast has none."""
    shares = {name: scalars.get(BLEND_PREFIX + name, math.nan) for name in COMPARED_MODELS}
    return {name: min(share, 1.0) for name, share in shares.items() if share > 0}


def read_model_order(scalars: Scalars) -> tuple[str, ...]:
    """Return the models in the order of the scores of all clients, the best first.

    Args:
        scalars: scalars of the last broadcast. Models without a rank come last, in the order of
            `PREFERRED_ORDER`.
    """
    return tuple(
        sorted(PREFERRED_ORDER, key=lambda name: scalars.get(RANK_SCALAR_PREFIX + name, len(COMPARED_MODELS)))
    )

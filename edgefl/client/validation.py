"""The samples that a client holds back from training, to compare models on."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from edgefl.config import MIXTURE_ONLY, PersonalizationConfig
from edgefl.data.holdout import folds, hold_out
from edgefl.plan.spec import PlanSpec
from edgefl.rng import rng_for
from edgefl.types import Array, Labels, Shard

FEW_SAMPLES = 100
"""Below this number of samples, one held-out share is too small to compare models on."""
FOLDS = 5


@dataclass(frozen=True)
class Split:
    """A client's samples, with some of them held back.

    Attributes:
        train: the shard with the other training samples; its test samples are those of the client.
        x: the held-out samples, float32[n, *input_shape].
        y: their labels, int64[n].
    """

    train: Shard
    x: Array
    y: Labels


def personalization_of(spec: PlanSpec) -> PersonalizationConfig:
    """Return the settings of the personalization in a plan; without any, a client ships its mixture."""
    return PersonalizationConfig(**spec.personalization) if spec.personalization else MIXTURE_ONLY


def split_validation(shard: Shard, share: float, seed: int, client_id: str) -> Split:
    """Hold back a share of a client's training samples: the same ones in each round and after a restart."""
    rng = rng_for(seed, 0, f"{client_id}:validation")
    held = hold_out(shard.y_train, shard.group_train, share, rng)[1] if share else np.zeros(0, np.int64)
    return _split(shard, held)


def validation_folds(shard: Shard, seed: int, client_id: str) -> Iterator[Split]:
    """Yield a split for each fold of a client's training samples."""
    rng = rng_for(seed, 0, f"{client_id}:folds")
    for held in folds(shard.y_train, shard.group_train, FOLDS, rng):
        yield _split(shard, held)


def _split(shard: Shard, held: Labels) -> Split:
    kept = np.setdiff1d(np.arange(len(shard.y_train)), held)
    side, group = (
        None if values is None else values[kept] for values in (shard.side_train, shard.group_train)
    )
    train = replace(
        shard,
        x_train=shard.x_train[kept],
        y_train=shard.y_train[kept],
        side_train=side,
        group_train=group,
    )
    return Split(train, shard.x_train[held], shard.y_train[held])

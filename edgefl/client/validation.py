"""The samples that a client holds back from training, to compare models on."""

from dataclasses import dataclass, replace

import numpy as np

from edgefl.config import MIXTURE_ONLY, PersonalizationConfig
from edgefl.data.holdout import hold_out
from edgefl.errors import ConfigError, PlanError
from edgefl.plan.spec import PlanSpec
from edgefl.rng import derive_rng
from edgefl.types import Array, Labels, Shard

SMALL_SHARD_SAMPLES = 100
"""Below this number of samples, a client holds back at least `SHARE_OF_FEW` of them."""
SMALL_SHARD_SHARE = 1 / 3


@dataclass(frozen=True)
class ValidationSplit:
    """A client's samples, with some of them held back.

    Attributes:
        train: the shard with the other training samples; its test samples are those of the client.
        x: the held-out samples, float32[n, *input_shape].
        y: their labels, int64[n].
        group: the recording (or other group) of each of them, int64[n]; None when samples stand alone.
    """

    train: Shard
    x: Array
    y: Labels
    group: Labels | None = None


def read_personalization(spec: PlanSpec) -> PersonalizationConfig:
    """Return the settings of the personalization in a plan; without any, a client ships its mixture.

    Raises:
        PlanError: the plan has a setting that this version does not know.
    """
    try:
        return PersonalizationConfig(**spec.personalization) if spec.personalization else MIXTURE_ONLY
    except (TypeError, ConfigError) as error:
        raise PlanError(
            f"the plan's settings of the personalization do not fit: {error}; update edgefl on this device, "
            "or build the plan again"
        ) from error


def hold_out_validation(shard: Shard, share: float, seed: int, client_id: str) -> ValidationSplit:
    """Hold back a share of a client's training samples: the same ones in each round and after a restart.

    No round trains on them. Folds, in which every sample would be held back once, are no way around few
    samples: a model of the federation has seen the others in the rounds.
    """
    if not share:
        return ValidationSplit(shard, shard.x_train[:0], shard.y_train[:0])
    rng = derive_rng(seed, 0, f"{client_id}:validation")
    if len(shard.y_train) < SMALL_SHARD_SAMPLES:
        share = max(share, SMALL_SHARD_SHARE)
    return _split_shard(shard, hold_out(shard.y_train, shard.group_train, share, rng)[1])


def _split_shard(shard: Shard, held_out: Labels) -> ValidationSplit:
    train_rows = np.setdiff1d(np.arange(len(shard.y_train)), held_out)
    side, group = (
        None if values is None else values[train_rows] for values in (shard.side_train, shard.group_train)
    )
    train = replace(
        shard,
        x_train=shard.x_train[train_rows],
        y_train=shard.y_train[train_rows],
        side_train=side,
        group_train=group,
    )
    held_out_group = None if shard.group_train is None else shard.group_train[held_out]
    return ValidationSplit(train, shard.x_train[held_out], shard.y_train[held_out], held_out_group)

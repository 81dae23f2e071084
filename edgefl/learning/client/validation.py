"""The samples that a client holds out from training to compare models on."""

from dataclasses import dataclass, replace

import numpy as np

from edgefl.base.config import MIXTURE_ONLY, PersonalizationConfig
from edgefl.base.errors import ConfigError, PlanError
from edgefl.base.rng import derive_rng
from edgefl.base.types import Array, Labels, Shard
from edgefl.data.holdout import hold_out
from edgefl.program.plan.spec import PlanSpec

SMALL_SHARD_SAMPLES = 100
"""Below this number of samples, a client holds out at least `SMALL_SHARD_SHARE` of them."""
SMALL_SHARD_SHARE = 1 / 3


@dataclass(frozen=True)
class ValidationSplit:
    """A client's samples, with some of them held out.

    Attributes:
        train: the shard with the remaining training samples, and all test samples of the client.
        x: the held-out samples, shape (n, *input_shape), float32.
        y: labels of the held-out samples, shape (n,), int64.
        group: the recording (or other group) of each held-out sample, shape (n,), int64. None if samples are
            independent.
        rows: sorted rows of the held-out samples among all training samples, shape (n,), int64. None or empty
            if no samples are held out.
    """

    train: Shard
    x: Array
    y: Labels
    group: Labels | None = None
    rows: Labels | None = None


def read_personalization(spec: PlanSpec) -> PersonalizationConfig:
    """Return the personalization settings of a plan. Without any, a client ships its mixture.

    A plan without `ship` is from an edgefl that shipped one model.

    Raises:
        PlanError: this version of edgefl does not know a setting of the plan.
    """
    try:
        if not spec.personalization:
            return MIXTURE_ONLY
        return PersonalizationConfig(**{"ship": "one", **spec.personalization})
    except (TypeError, ConfigError) as error:
        raise PlanError(
            f"the plan's personalization settings do not fit: {error}; update edgefl on this device, or "
            "build the plan again"
        ) from error


def hold_out_validation(shard: Shard, share: float, seed: int, client_id: str) -> ValidationSplit:
    """Hold out a share of a client's training samples.

    The same samples are held out in each round and after a restart, and no round trains on them.
    Cross-validation folds would not help with few samples: a federated model has been trained on all other
    samples in the rounds.

    Args:
        share: share of the training samples to hold out. 0 holds out none.
    """
    if not share:
        return ValidationSplit(train=shard, x=shard.x_train[:0], y=shard.y_train[:0])
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
    return ValidationSplit(
        train=train, x=shard.x_train[held_out], y=shard.y_train[held_out], group=held_out_group, rows=held_out
    )

"""Late updates: their weight, and the algorithms that accept them.

A delta that answers round r - s and is accepted in round r is scaled by 1 / sqrt(1 + s):

    w <- w + eta sum_k n_k d_k / sqrt(1 + s_k) / sum_k n_k

The delta is scaled, and not its number of samples. A round of late updates alone then takes a shorter step,
as in both papers. A mean that counts each client once (median, trimmed) is weighted too.

Source: Xie et al., Asynchronous Federated Optimization, arXiv:1903.03934, polynomial weight with a = 1/2.
Nguyen et al., Federated Learning with Buffered Asynchronous Aggregation, arXiv:2106.06639, its use with a
buffer.
"""

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from edgefl.base.config import FederationConfig
from edgefl.base.errors import ConfigError
from edgefl.base.types import ServerState, Update
from edgefl.learning.algorithms import make_algorithm
from edgefl.learning.algorithms.base import Algorithm
from edgefl.learning.algorithms.registry import find_entry


def weigh_staleness(staleness: int) -> float:
    """Return the weight 1 / sqrt(1 + staleness) of a late update.

    Args:
        staleness: how many rounds ago the answered round was.
    """
    return 1 / math.sqrt(1 + staleness)


def scale_late_update(update: Update, round: int) -> Update:
    """Return an update as an update of this round.

    The deltas of an update that answers an earlier round are scaled by `weigh_staleness`. Other updates are
    returned unchanged, bit for bit.
    """
    if update.round >= round:
        return update
    weight = np.float32(weigh_staleness(round - update.round))
    deltas = {
        model: {name: np.asarray(array * weight, np.float32) for name, array in tensors.items()}
        for model, tensors in update.deltas.items()
    }
    return replace(update, round=round, deltas=deltas)


def with_late_scaling(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm with each update scaled by its age before `aggregate`, see `scale_late_update`."""

    def aggregate(state: ServerState, updates: Iterable[Update]) -> ServerState:
        return algorithm.aggregate(state, (scale_late_update(update, state.round) for update in updates))

    return replace(algorithm, aggregate=aggregate)


def check_staleness(config: FederationConfig) -> None:
    """Check that the algorithm supports late updates and `budget_s`, if the configuration asks for them.

    Raises:
        ConfigError: the algorithm does not accept late updates, or has no option `epochs` to scale.
    """
    if config.staleness and not make_algorithm(config.algorithm, None, config.options).takes_late:
        setting = "mode = 'async'" if config.mode == "async" else "late = 'keep'"
        raise ConfigError(
            f"{setting} does not work with {config.algorithm}, expected an algorithm whose round is a mean "
            f"of deltas to one global model, such as fedavg: a late update of {config.algorithm} answers "
            "models, clusters or phases of a round that is over; leave it out"
        )
    if config.budget_s and "epochs" not in find_entry(config.algorithm).defaults:
        raise ConfigError(
            f"budget_s is {config.budget_s:g}, but {config.algorithm} has no option 'epochs' to scale; leave "
            "it out"
        )

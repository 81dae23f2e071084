"""The draws of a client, and the number of epochs that fit into its time budget."""

import math

import numpy as np

from edgefl.base.rng import derive_rng
from edgefl.base.types import Broadcast, Scalars


def fit_epochs(budget_s: float, max_epochs: int, before: Scalars) -> int:
    """Return how many epochs fit into the time budget at the speed of the client's previous round.

    Args:
        budget_s: time for training in seconds. With 0 there is no limit, and the result is `max_epochs`.
        max_epochs: maximum number of epochs.
        before: metrics of the previous round, of which `seconds` and `epochs` count. Without them, the result
            is one epoch, which measures the speed.

    Returns:
        The number of epochs, from 1 to `max_epochs`.
    """
    if not budget_s:
        return max_epochs
    trained = before.get("epochs", 0.0)
    seconds = before.get("seconds", 0.0)
    return (
        max(1, math.floor(min(max_epochs, budget_s * trained / seconds)))
        if trained > 0 and seconds > 0
        else 1
    )


def derive_client_rng(seed: int, broadcast: Broadcast, client_id: str) -> np.random.Generator:
    """Return the generator for all draws of a client that answers a broadcast.

    Args:
        broadcast: the broadcast. Its round selects the draws.
    """
    return derive_rng(seed, broadcast.round, client_id)

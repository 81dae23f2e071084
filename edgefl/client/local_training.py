"""The draws of a client, and how many epochs fit into its time."""

import math

import numpy as np

from edgefl.rng import derive_rng
from edgefl.types import Broadcast, Scalars


def fit_epochs(budget_s: float, max_epochs: int, before: Scalars) -> int:
    """Return how many epochs fit into the budget at the pace of the round before: at least one, `most` at
    most; 0 s is no budget.

    before: that round's metrics, of which `seconds` and `epochs` count. Without them it is one epoch, which
    measures the pace.
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
    """Return the generator of all that this client draws in answer to this broadcast."""
    return derive_rng(seed, broadcast.round, client_id)

"""The steps of one client that no algorithm owns: the baseline alone, measuring a mixture, epochs, draws.

`edgefl.client.runner` calls them in the simulator and on a device.
"""

import math
from collections.abc import Mapping

import numpy as np

from edgefl.algorithms.arithmetic import add
from edgefl.algorithms.base import FEDERATE, Algorithm
from edgefl.algorithms.names import ALONE, BASELINE_ROUNDS, GLOBAL, INITIAL
from edgefl.learner.base import Learner, evaluate
from edgefl.rng import rng_for
from edgefl.types import Broadcast, ClientState, Mixture, Scalars, Shard, Weights


def train_alone(
    algorithm: Algorithm, initial: Weights, shard: Shard, rounds: int, rng: np.random.Generator
) -> Weights:
    """Return what `rounds` rounds of this client's own updates make of the initial weights: the baseline
    without a federation.
    """
    weights = initial
    for _ in range(rounds):
        received = Broadcast(ALONE, FEDERATE, {GLOBAL: weights})
        update, _ = algorithm.local_update(received, ClientState(), shard, "alone", rng)
        weights = add(weights, update.deltas[GLOBAL])
    return weights


def personalize_and_measure(
    algorithm: Algorithm,
    learner: Learner,
    broadcast: Broadcast,
    state: ClientState,
    shard: Shard,
    rng: np.random.Generator,
) -> tuple[Mixture, ClientState, Mapping[str, float]]:
    """Make the client's mixture and measure it on the client's held-out split.

    The metrics are n_train, n_test, accuracy_mixture, accuracy_NAME of each peer (`federated` is what the
    federation alone would give) and, when the broadcast asks for a baseline, accuracy_local. An accuracy on
    an empty split is NaN.
    """
    mixture, state = algorithm.personalize(broadcast, state, shard, rng)

    def accuracy(signature: str, weights: Weights) -> float:
        return evaluate(learner, signature, weights, shard.x_test, shard.y_test).accuracy

    metrics = {
        "n_train": float(len(shard.y_train)),
        "n_test": float(len(shard.y_test)),
        **{
            f"accuracy_{name}": accuracy(peer.signature, peer.weights) for name, peer in mixture.peers.items()
        },
        "accuracy_mixture": accuracy("predict_mixture", mixture.weights),
    }
    rounds = int(broadcast.scalars.get(BASELINE_ROUNDS, 0))
    if rounds and INITIAL in broadcast.models:
        alone = train_alone(algorithm, broadcast.models[INITIAL], shard, rounds, rng)
        metrics["accuracy_local"] = accuracy("predict", alone)
    return mixture, state, metrics


def epochs_within(budget_s: float, most: int, before: Scalars) -> int:
    """Return how many epochs fit into the budget at the pace of the round before: at least one, `most` at
    most; 0 s is no budget.

    before: that round's metrics, of which `seconds` and `epochs` count. Without them it is one epoch, which
    measures the pace.
    """
    if not budget_s:
        return most
    trained = before.get("epochs", 0.0)
    seconds = before.get("seconds", 0.0)
    return max(1, math.floor(min(most, budget_s * trained / seconds))) if trained > 0 and seconds > 0 else 1


def client_rng(seed: int, broadcast: Broadcast, client_id: str) -> np.random.Generator:
    """Return the generator of all that this client draws in answer to this broadcast."""
    return rng_for(seed, broadcast.round, client_id)

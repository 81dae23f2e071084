"""What a client does with a broadcast, wherever it runs: the simulator and the device service call the same
functions.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from edgefl.algorithms.arithmetic import add
from edgefl.algorithms.base import FEDERATE, Algorithm
from edgefl.algorithms.names import ALONE, BASELINE_ROUNDS, GLOBAL, INITIAL
from edgefl.learner.base import Learner, evaluate
from edgefl.rng import rng_for
from edgefl.types import Array, Broadcast, ClientState, Mixture, Scalars, Shard, Update, Weights
from edgefl.wire.codecs import rounded, rounding

OWED = "owed:"
"""Begins the name of what a codec has rounded away from a client's updates so far."""


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


def compressed(algorithm: Algorithm, codec: str) -> Algorithm:
    """Return the algorithm with updates as they arrive when the codec has rounded them; what was lost is
    added to the next one.

    What is owed lies in the client's state, under names that the algorithm does not see. The codec does not
    touch what a client trains alone: nothing of that is sent.
    """
    codec = rounding(codec)
    if codec == "fp32":
        return algorithm

    def split(state: ClientState) -> tuple[ClientState, dict[str, Array]]:
        owed = {
            name.removeprefix(OWED): array for name, array in state.arrays.items() if name.startswith(OWED)
        }
        return replace(
            state, arrays={name: array for name, array in state.arrays.items() if not name.startswith(OWED)}
        ), owed

    def join(state: ClientState, owed: Mapping[str, Array]) -> ClientState:
        return replace(state, arrays={**state.arrays, **{OWED + name: array for name, array in owed.items()}})

    def local_update(
        broadcast: Broadcast, state: ClientState, shard: Shard, client_id: str, rng: np.random.Generator
    ) -> tuple[Update, ClientState]:
        if broadcast.round == ALONE:
            return algorithm.local_update(broadcast, state, shard, client_id, rng)
        own, owed = split(state)
        update, kept = algorithm.local_update(broadcast, own, shard, client_id, rng)
        sent: dict[str, dict[str, Array]] = {}
        for model, weights in update.deltas.items():
            wanted = {
                name: array + owed.get(f"{model}/{name}", np.float32(0)) for name, array in weights.items()
            }
            sent[model] = rounded(codec, wanted)
            owed |= {f"{model}/{name}": wanted[name] - sent[model][name] for name in wanted}
        return replace(update, deltas=sent), join(kept, owed)

    def personalize(
        broadcast: Broadcast, state: ClientState, shard: Shard, rng: np.random.Generator
    ) -> tuple[Mixture, ClientState]:
        return algorithm.personalize(broadcast, split(state)[0], shard, rng)

    return replace(algorithm, local_update=local_update, personalize=personalize)


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

"""Secure aggregation before an algorithm's `aggregate`: the updates of a round meet as one masked sum, see `secure_sum`.

The simulator plays all clients and the aggregator here, with the whole protocol. Over MQTT there is none yet.
Quantized to 2^-24, the mean is that of the weighted mean but for rounding, and exactly the same whatever keys were drawn.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from edgefl.algorithms.base import Algorithm
from edgefl.algorithms.fedavg import GLOBAL
from edgefl.config import FederationConfig
from edgefl.errors import ConfigError
from edgefl.security.masking import LEAST_CLIENTS, Words, to_mean, to_words
from edgefl.types import ServerState, Update, Weights


def threshold_of(clients: int) -> int:
    """Return how many of a cohort must answer to the end: two thirds, rounded up."""
    return math.ceil(2 * clients / 3)


def check_secure(algorithm: Algorithm, config: FederationConfig) -> None:
    """Raise ConfigError when the configuration asks for secure aggregation of what is more than one sum, or with too small cohorts."""
    if not config.privacy.secure_aggregation:
        return
    if not algorithm.by_sums:
        raise ConfigError(
            f"secure_aggregation does not go with {algorithm.name} and these options: it has to see updates one by one (to cluster or to "
            "rank them, or to weigh each by what its client is responsible for); take fedavg or one built on it with mean = 'weighted' "
            "and no clip_norm"
        )
    if config.codec != "fp32":
        raise ConfigError(f"codec is {config.codec!r}, expected 'fp32' for secure_aggregation: under a mask nothing can be packed smaller")
    if 0 < config.clients_per_round < LEAST_CLIENTS:
        raise ConfigError(f"clients_per_round is {config.clients_per_round}, expected {LEAST_CLIENTS} or more for secure_aggregation")


def summed(algorithm: Algorithm, config: FederationConfig, state: ServerState, cohort: Sequence[str]) -> Algorithm:
    """Return the algorithm for this round of this cohort, its `aggregate` seeing the sum alone; as it is without secure aggregation.

    Raises ConfigError (see `check_secure`; and for an algorithm with several models, whose clients tell which one they chose),
    RoundError for a cohort of fewer than three.
    """
    if not config.privacy.secure_aggregation:
        return algorithm
    check_secure(algorithm, config)
    if GLOBAL not in state.models:
        raise ConfigError(
            f"secure_aggregation does not go with {algorithm.name}: its clients train one of several models, and say which; take an "
            "algorithm with one model"
        )

    def aggregate(state: ServerState, updates: Iterable[Update]) -> ServerState:
        sent = algorithm.broadcast(state, "").models[GLOBAL]
        mean = masked_mean(sent, updates, sorted(cohort), f"{config.name} round {state.round}")
        return algorithm.aggregate(state, [] if mean is None else [Update("", state.round, 1, {GLOBAL: mean})])

    return replace(algorithm, aggregate=aggregate)


def extra_traffic(config: FederationConfig, state: ServerState, cohort: Sequence[str]) -> tuple[int, int]:
    """Return the bytes (up, down) that secure aggregation adds to a round of this cohort that `summed` takes; none without it."""
    if not config.privacy.secure_aggregation:
        return 0, 0
    from edgefl.security.secure_sum import extra_bytes

    up, down = extra_bytes(sum(array.size for array in state.models[GLOBAL].values()), len(cohort))
    return up * len(cohort), down * len(cohort)


def masked_mean(like: Weights, updates: Iterable[Update], cohort: Sequence[str], context: str) -> Weights | None:
    """Play the protocol over the updates of a cohort, sorted by id; return their mean by samples, or None when nobody has any."""
    from edgefl.security.secure_sum import Revealed, advertise, mask_words, reveal, share, unmask

    threshold = threshold_of(len(cohort))
    drawn = {client_id: advertise() for client_id in cohort}
    public = {client_id: keys for client_id, (_, keys) in drawn.items()}
    sealed = {client_id: share(own, client_id, public, threshold, context) for client_id, (own, _) in drawn.items()}
    size = sum(array.size for array in like.values()) + 1
    total: Words = np.zeros(size, np.uint64)
    came: list[str] = []
    for update in updates:
        delta = update.deltas[GLOBAL]
        words = to_words(np.concatenate([delta[name].ravel() for name in like], dtype=np.float64), update.num_samples)
        total += mask_words(drawn[update.client_id][0], update.client_id, public, cohort, words, context)
        came.append(update.client_id)
    revealed: dict[str, Revealed] = {}
    for client_id in came:
        inbox = {other: messages[client_id] for other, messages in sealed.items()}
        revealed[client_id] = reveal(drawn[client_id][0], client_id, public, inbox, came, threshold, context)
    mean = to_mean(unmask(total, public, cohort, came, revealed, threshold, context))
    if mean is None:
        return None
    ends = np.cumsum([array.size for array in like.values()])
    parts = np.split(mean, ends[:-1])
    return {name: np.asarray(part.reshape(like[name].shape), np.float32) for name, part in zip(like, parts, strict=True)}

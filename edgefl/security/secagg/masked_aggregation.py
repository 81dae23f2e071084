"""Secure aggregation before an algorithm's `aggregate`: the updates of a round meet as one masked sum, see
`secure_sum`.

The simulator plays all clients and the aggregator here, with the whole protocol; over MQTT `participant` is a
device's part of it and `edgefl.server.secagg.rounds` the server's.
Quantized to 2^-24, the mean is that of the weighted mean but for rounding, and exactly the same whatever keys
were drawn.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from edgefl.algorithms.base import Algorithm
from edgefl.config import FederationConfig
from edgefl.errors import ConfigError
from edgefl.security.secagg.masking import MIN_MASKED_CLIENTS, FixedPointVector, choose_threshold
from edgefl.security.secagg.vectors import Shapes, decode_means, encode_deltas, list_shapes, measure_vector
from edgefl.types import ServerState, Update, Weights


def check_secure_aggregation(algorithm: Algorithm, config: FederationConfig) -> None:
    """Raise ConfigError when the configuration asks for secure aggregation of what is more than one sum, or
    with too small cohorts.
    """
    if not config.privacy.secure_aggregation:
        return
    if not algorithm.by_sums:
        raise ConfigError(
            f"secure_aggregation does not go with {algorithm.name} and these options: it has to see updates "
            "one by one (to cluster or to rank them, or to weigh each by what its client is responsible "
            "for); take fedavg or one built on it with mean = 'weighted' and no clip_norm"
        )
    if config.codec != "fp32":
        raise ConfigError(
            f"codec is {config.codec!r}, expected 'fp32' for secure_aggregation: under a mask nothing can be "
            "packed smaller"
        )
    if 0 < config.clients_per_round < MIN_MASKED_CLIENTS:
        raise ConfigError(
            f"clients_per_round is {config.clients_per_round}, expected {MIN_MASKED_CLIENTS} or more for "
            "secure_aggregation"
        )


def with_secure_aggregation(
    algorithm: Algorithm, config: FederationConfig, cohort_of: Callable[[ServerState], Sequence[str]]
) -> Algorithm:
    """Return the algorithm with masked sums: its `aggregate` sees the means of a round's updates only.

    Args:
        algorithm: the algorithm; returned as it is without secure aggregation.
        config: the federation.
        cohort_of: returns the clients of the round of a server state. All of them take part in the masking,
            whether or not an update of theirs arrives.

    Raises:
        ConfigError: see `check_secure`.
        RoundError: raised by `aggregate` for a cohort of fewer than three.
    """
    if not config.privacy.secure_aggregation:
        return algorithm
    check_secure_aggregation(algorithm, config)

    def aggregate(state: ServerState, updates: Iterable[Update]) -> ServerState:
        shapes = list_shapes(algorithm.broadcast(state, "").models)
        means = average_masked(
            shapes, updates, sorted(cohort_of(state)), f"{config.name} round {state.round}"
        )
        return algorithm.aggregate(state, wrap_means(means, state.round))

    return replace(algorithm, aggregate=aggregate)


def wrap_means(means: Mapping[str, Weights], round: int) -> list[Update]:
    """Return what `aggregate` gets in place of a round's updates: one that holds their means, or none when
    there are no means.
    """
    return [Update("", round, 1, means)] if means else []


def count_secagg_bytes(
    config: FederationConfig, algorithm: Algorithm, state: ServerState, cohort: Sequence[str]
) -> tuple[int, int]:
    """Return the bytes (up, down) that secure aggregation adds to a round of this cohort that `summed` takes.

    None without it.
    """
    if not config.privacy.secure_aggregation:
        return 0, 0
    from edgefl.security.secagg.secure_sum import count_extra_bytes

    shapes = list_shapes(algorithm.broadcast(state, "").models)
    vector_size = measure_vector(shapes)
    # A plain update holds one of the models
    up, down = count_extra_bytes(
        vector_size, vector_size // len(shapes) - 1, len(cohort), choose_threshold(len(cohort))
    )
    return up * len(cohort), down * len(cohort)


def average_masked(
    shapes: Shapes, updates: Iterable[Update], cohort: Sequence[str], context: str
) -> dict[str, Weights]:
    """Play the protocol over the updates of a cohort, sorted by id.

    Return their means by samples, of the models that somebody trained.
    """
    from edgefl.security.secagg.participant import to_advertised
    from edgefl.security.secagg.secure_sum import (
        RevealedShares,
        generate_keys,
        mask_vector,
        open_shares,
        reveal_shares,
        seal_shares,
        unmask_sum,
    )
    from edgefl.wire.masked import Introduced, encode_keys, hash_binding

    threshold = choose_threshold(len(cohort))
    client_keys = {client_id: generate_keys() for client_id in cohort}
    public = {client_id: keys for client_id, (_, keys) in client_keys.items()}
    binding = hash_binding(
        context,
        encode_keys(
            [Introduced(to_advertised(keys, client_id, context)) for client_id, keys in public.items()]
        ),
    )
    sealed = {
        client_id: seal_shares(client_secrets, client_id, public, threshold, binding)
        for client_id, (client_secrets, _) in client_keys.items()
    }
    total: FixedPointVector = np.zeros(measure_vector(shapes), np.uint64)
    came: list[str] = []
    samples = 0
    for update in updates:
        vector = encode_deltas(update.deltas, update.num_samples, shapes)
        total += mask_vector(
            client_keys[update.client_id][0], update.client_id, public, cohort, vector, binding
        )
        came.append(update.client_id)
        samples += update.num_samples
    revealed: dict[str, RevealedShares] = {}
    for client_id in came:
        inbox = {other: messages[client_id] for other, messages in sealed.items()}
        opened, _ = open_shares(client_keys[client_id][0], client_id, public, inbox, binding)
        revealed[client_id] = reveal_shares(client_id, opened, came, threshold)
    return decode_means(
        unmask_sum(total, public, cohort, came, revealed, threshold, binding), shapes, samples
    )

"""Adds secure aggregation to an algorithm: its `aggregate` sees only the means of a round.

The simulator uses this module to play all clients and the aggregator, with the whole protocol of
`secure_sum`. Over MQTT, the device's part is in `participant`, and the aggregator's part is in
`edgefl.protocol.server.secagg.rounds`.

Values are rounded to multiples of 2^-24. Apart from this rounding, the result equals the weighted mean. It
does not depend on the keys.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from edgefl.base.config import FederationConfig
from edgefl.base.errors import ConfigError
from edgefl.base.types import ServerState, Update, Weights
from edgefl.learning.algorithms.base import Algorithm
from edgefl.protocol.security.secagg.masking import MIN_MASKED_CLIENTS, FixedPointVector, choose_threshold
from edgefl.protocol.security.secagg.vectors import (
    Shapes,
    decode_means,
    encode_deltas,
    list_shapes,
    measure_vector,
)


def check_secure_aggregation(algorithm: Algorithm, config: FederationConfig) -> None:
    """Check that the algorithm and the configuration support secure aggregation, if it is on.

    Raises:
        ConfigError: the algorithm needs single updates, the codec is not fp32, or `clients_per_round` is
            less than three.
    """
    if not config.privacy.secure_aggregation:
        return
    if not algorithm.by_sums:
        raise ConfigError(
            f"secure_aggregation does not work with {algorithm.name} and these options: the algorithm needs "
            "single updates (to cluster or rank them, or to weigh each by its client's responsibilities); "
            "use fedavg or an algorithm built on it with mean = 'weighted' and no clip_norm"
        )
    if config.codec != "fp32":
        raise ConfigError(
            f"codec is {config.codec!r}, expected 'fp32' for secure_aggregation, because masked values "
            "cannot be compressed; set codec = 'fp32'"
        )
    if 0 < config.clients_per_round < MIN_MASKED_CLIENTS:
        raise ConfigError(
            f"clients_per_round is {config.clients_per_round}, expected {MIN_MASKED_CLIENTS} or more for "
            "secure_aggregation; raise it, or set 0 for all clients"
        )


def with_secure_aggregation(
    algorithm: Algorithm, config: FederationConfig, cohort_of: Callable[[ServerState], Sequence[str]]
) -> Algorithm:
    """Return the algorithm with masked sums. Without secure aggregation, return the algorithm unchanged.

    The original `aggregate` then receives only the means of a round's updates.

    Args:
        cohort_of: returns the cohort of the round of a server state. All its clients take part in the
            masking, even if their updates do not arrive.

    Raises:
        ConfigError: see `check_secure_aggregation`.
        RoundError: raised by the new `aggregate`, see `average_masked`.
        DataError: raised by the new `aggregate`, see `average_masked`.
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
    """Return the means of a round as updates for `aggregate`.

    Args:
        means: mean delta by weight name, by model name, float32.

    Returns:
        One update that contains the means, or no update if there are no means.
    """
    return [Update(client_id="", round=round, num_samples=1, deltas=means)] if means else []


def count_secagg_bytes(
    config: FederationConfig, algorithm: Algorithm, state: ServerState, cohort: Sequence[str]
) -> tuple[int, int]:
    """Return the bytes (up, down) that secure aggregation adds to a round.

    Args:
        cohort: ids of the clients of the round.

    Returns:
        Bytes sent by all clients and to all clients. Both are 0 without secure aggregation.
    """
    if not config.privacy.secure_aggregation:
        return 0, 0
    from edgefl.protocol.security.secagg.secure_sum import count_extra_bytes

    shapes = list_shapes(algorithm.broadcast(state, "").models)
    vector_size = measure_vector(shapes)
    # A plain update contains only one of the models
    up, down = count_extra_bytes(
        vector_size, vector_size // len(shapes) - 1, len(cohort), choose_threshold(len(cohort))
    )
    return up * len(cohort), down * len(cohort)


def average_masked(
    shapes: Shapes, updates: Iterable[Update], cohort: Sequence[str], context: str
) -> dict[str, Weights]:
    """Run the protocol for all clients of a cohort, and return the mean deltas.

    Args:
        shapes: shape of each weight, by model name.
        updates: updates that arrive. Their deltas are float32.
        cohort: ids of all clients of the round, sorted.
        context: text that all masks depend on.

    Returns:
        Mean delta over samples by weight name, by model name, float32. Models that no client trained are
        missing.

    Raises:
        RoundError: the cohort has fewer than three or too many clients, or less than two thirds of its
            updates arrive.
        DataError: a delta or a number of samples is too large.
    """
    from edgefl.protocol.security.secagg.participant import to_advertised
    from edgefl.protocol.security.secagg.secure_sum import (
        RevealedShares,
        generate_keys,
        mask_vector,
        open_shares,
        reveal_shares,
        seal_shares,
        unmask_sum,
    )
    from edgefl.protocol.wire.masked import Introduced, encode_keys, hash_binding

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
    arrived: list[str] = []
    samples = 0
    for update in updates:
        vector = encode_deltas(update.deltas, update.num_samples, shapes)
        total += mask_vector(
            client_keys[update.client_id][0], update.client_id, public, cohort, vector, binding
        )
        arrived.append(update.client_id)
        samples += update.num_samples
    revealed: dict[str, RevealedShares] = {}
    for client_id in arrived:
        inbox = {other: messages[client_id] for other, messages in sealed.items()}
        opened, _ = open_shares(client_keys[client_id][0], client_id, public, inbox, binding)
        revealed[client_id] = reveal_shares(client_id, opened, arrived, threshold)
    return decode_means(
        unmask_sum(total, public, cohort, arrived, revealed, threshold, binding), shapes, samples
    )

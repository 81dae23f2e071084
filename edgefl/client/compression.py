"""Compression with error feedback: the client's wrapper around an algorithm.

The server's wrapper is `edgefl.server.server_algorithm`.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from edgefl.algorithms.base import Algorithm
from edgefl.types import Array, Broadcast, ClientState, Mixture, Peer, Shard, Update
from edgefl.wire.codecs import apply_codec, strip_suffixes

RESIDUAL_PREFIX = "owed:"
"""Prefix, in a client's state, of the residual that the codec has rounded away from its updates so far."""


def with_compression(algorithm: Algorithm, codec: str) -> Algorithm:
    """Return the algorithm with updates as the server decodes them.

    A codec that rounds loses a part of each update, the residual. The client adds the residual to its next
    update. The residual is in the client's state, under names that are hidden from the algorithm.

    Args:
        algorithm: the algorithm without compression.
        codec: name of a codec, see `edgefl.wire.codecs`. With fp32, the algorithm is returned unchanged.
    """
    codec = strip_suffixes(codec)
    if codec == "fp32":
        return algorithm

    def split_residual(state: ClientState) -> tuple[ClientState, dict[str, Array]]:
        arrays = state.arrays.items()
        residual = {
            name.removeprefix(RESIDUAL_PREFIX): array
            for name, array in arrays
            if name.startswith(RESIDUAL_PREFIX)
        }
        others = {name: array for name, array in arrays if not name.startswith(RESIDUAL_PREFIX)}
        return replace(state, arrays=others), residual

    def join_residual(state: ClientState, residual: Mapping[str, Array]) -> ClientState:
        prefixed = {RESIDUAL_PREFIX + name: array for name, array in residual.items()}
        return replace(state, arrays={**state.arrays, **prefixed})

    def local_update(
        broadcast: Broadcast, state: ClientState, shard: Shard, client_id: str, rng: np.random.Generator
    ) -> tuple[Update, ClientState]:
        before, residual = split_residual(state)
        update, after = algorithm.local_update(broadcast, before, shard, client_id, rng)
        sent: dict[str, dict[str, Array]] = {}
        for model, weights in update.deltas.items():
            exact = {
                name: array + residual.get(f"{model}/{name}", np.float32(0))
                for name, array in weights.items()
            }
            sent[model] = apply_codec(codec, exact)
            residual |= {f"{model}/{name}": exact[name] - sent[model][name] for name in exact}
        return replace(update, deltas=sent), join_residual(after, residual)

    def personalize(
        broadcast: Broadcast, state: ClientState, shard: Shard, rng: np.random.Generator
    ) -> tuple[Mixture, ClientState]:
        return algorithm.personalize(broadcast, split_residual(state)[0], shard, rng)

    def current(broadcast: Broadcast, state: ClientState, shard: Shard) -> Peer | None:
        return algorithm.current(broadcast, split_residual(state)[0], shard)

    return replace(algorithm, local_update=local_update, personalize=personalize, current=current)

"""Compression with error feedback: the client's wrapper around an algorithm.

The server's wrapper is `edgefl.protocol.server.server_algorithm`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from edgefl.base.codecs import apply_codec, strip_suffixes
from edgefl.base.types import Array, Broadcast, ClientState, Mixture, Shard, StateRecord, Update, Weights
from edgefl.learning.algorithms.base import Algorithm


@dataclass(frozen=True)
class CodecResidual(StateRecord):
    """What the codec has rounded away from a client's updates so far.

    Attributes:
        by_model: the residual of each weight by name, by model.
    """

    by_model: Mapping[str, Weights] = field(default_factory=dict)


def with_compression(algorithm: Algorithm, codec: str) -> Algorithm:
    """Return the algorithm with updates as the server decodes them.

    A codec that rounds loses a part of each update, the residual. The client adds the residual to its next
    update. The residual is a record in the client's state, which the algorithm does not see.

    Args:
        algorithm: the algorithm without compression.
        codec: name of a codec, see `edgefl.base.codecs`. With fp32, the algorithm is returned unchanged.
    """
    codec = strip_suffixes(codec)
    if codec == "fp32":
        return algorithm

    def local_update(
        broadcast: Broadcast, state: ClientState, shard: Shard, client_id: str, rng: np.random.Generator
    ) -> tuple[Update, ClientState]:
        before = state.remove_record(CodecResidual)
        update, after = algorithm.local_update(broadcast, before, shard, client_id, rng)
        residual = dict(state.read_record(CodecResidual).by_model)
        sent: dict[str, dict[str, Array]] = {}
        for model, weights in update.deltas.items():
            earlier = residual.get(model, {})
            exact = {name: array + earlier.get(name, np.float32(0)) for name, array in weights.items()}
            sent[model] = apply_codec(codec, exact)
            residual[model] = {**earlier, **{name: exact[name] - sent[model][name] for name in exact}}
        return replace(update, deltas=sent), (
            after.with_record(CodecResidual(residual)) if residual else after
        )

    def personalize(
        broadcast: Broadcast, state: ClientState, shard: Shard, rng: np.random.Generator
    ) -> tuple[Mixture, ClientState]:
        return algorithm.personalize(broadcast, state.remove_record(CodecResidual), shard, rng)

    return replace(algorithm, local_update=local_update, personalize=personalize)

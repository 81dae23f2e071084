"""The update of a client that trains a copy of the global model beside something personal."""

from collections.abc import Callable

import numpy as np

from edgefl.base.types import Broadcast, ClientState, Shard, Update, Weights
from edgefl.learning.algorithms.arithmetic import subtract
from edgefl.learning.algorithms.names import GLOBAL
from edgefl.learning.algorithms.update_sanitization import UpdateSanitizer
from edgefl.program.learner.base import Learner

TrainCopy = Callable[[Weights, ClientState, Shard, np.random.Generator], tuple[Weights, ClientState, float]]
"""Receives the global model. Returns the trained copy, the client's new state, and the mean loss."""
LocalUpdate = Callable[[Broadcast, ClientState, Shard, str, np.random.Generator], tuple[Update, ClientState]]


def make_local_update(
    learner: Learner | None, train: TrainCopy, sanitizer: UpdateSanitizer, signature: str = "train"
) -> LocalUpdate:
    """Return the `local_update` of an algorithm whose clients send the delta of their copy.

    Args:
        learner: runs the plan. The aggregator passes None because it never trains.
        sanitizer: what a client does to the delta before it sends it.
        signature: the training signature. Its trained weights get the noise of the sanitizer.
    """

    def local_update(
        broadcast: Broadcast, state: ClientState, shard: Shard, client_id: str, rng: np.random.Generator
    ) -> tuple[Update, ClientState]:
        assert learner is not None
        received = broadcast.models[GLOBAL]
        model, after, loss = train(received, state, shard, rng)
        trained = {spec.name for spec in learner.spec.find_signature(signature).trained}
        return Update(
            client_id=client_id,
            round=broadcast.round,
            num_samples=len(shard.y_train),
            deltas={GLOBAL: sanitizer.apply(subtract(model, received), trained, rng)},
            metrics={"loss": loss},
        ), after

    return local_update

"""The accuracy that a client reports in each round: of its current model, on its validation samples."""

import math
from collections.abc import Mapping

from edgefl.algorithms.base import Algorithm
from edgefl.learner.base import Learner, evaluate
from edgefl.types import Array, Broadcast, ClientState, Labels, Shard

ACCURACY = "accuracy"
"""The metric of an update that holds the client's accuracy before it trains."""
EVALUATE = "evaluate"
"""The key of a plan's settings that asks clients to report the accuracy."""


def validation_metrics(
    algorithm: Algorithm,
    learner: Learner,
    broadcast: Broadcast,
    state: ClientState,
    shard: Shard,
    x: Array,
    y: Labels,
) -> Mapping[str, float]:
    """Return the accuracy of the client's current model on its validation samples, as metrics of an update.

    The model is `Algorithm.current`, without any training. Nothing is drawn from the client's generator, so
    that the update is the same with and without the evaluation.

    Args:
        algorithm: the algorithm with its learner.
        learner: runs the plan.
        broadcast: what the client received.
        state: what the client kept after its last round.
        shard: the samples that the client trains on.
        x: validation samples, float32[n, *input_shape].
        y: their labels, int64[n].

    Returns:
        `accuracy`, from 0 to 1. Empty without validation samples, when the client holds no whole model, and
        when the model's outputs are not finite.

    Raises:
        DataError: the samples do not fit the plan.
    """
    current = algorithm.current(broadcast, state, shard) if len(y) else None
    if current is None:
        return {}
    needed = {
        weight.name
        for signature in learner.spec.signatures
        if signature.name == current.signature
        for weight in signature.frozen
    }
    if not needed or not needed <= current.weights.keys():
        return {}
    measured = evaluate(learner, current.signature, current.weights, x, y)
    return {ACCURACY: measured.accuracy} if math.isfinite(measured.loss) else {}

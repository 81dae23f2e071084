"""The accuracy that a client reports in each round, of its current model on its validation samples."""

import math
from collections.abc import Mapping

from edgefl.base.types import Broadcast, ClientState
from edgefl.learning.algorithms.base import Algorithm
from edgefl.learning.client.validation import ValidationSplit
from edgefl.program.learner.base import Learner, evaluate
from edgefl.program.plan.spec import read_task

ACCURACY_METRIC = "accuracy"
"""The metric of an update that holds the client's accuracy before it trains."""
R2_METRIC = "r2"
"""The metric in its place for another task than classification."""


def evaluate_current_model(
    algorithm: Algorithm,
    learner: Learner,
    broadcast: Broadcast,
    state: ClientState,
    samples: ValidationSplit,
) -> Mapping[str, float]:
    """Return the accuracy of the client's current model on its validation samples, as metrics of an update.

    The model is `Algorithm.current`, without any training. The evaluation uses no draws of the client's
    generator, so it does not change the update.

    Args:
        algorithm: the algorithm with its learner.
        broadcast: the broadcast of the round.
        state: the state of the client after its last round.
        samples: the client's samples, with the validation samples held out.

    Returns:
        `accuracy`, from 0 to 1, or `r2` for another task than classification. Empty if there are no
            validation samples, the client has no complete model, or the model's outputs are not finite.

    Raises:
        DataError: the samples do not fit the plan.
    """
    current = algorithm.current(broadcast, state, samples.train) if len(samples.y) else None
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
    measured = evaluate(learner, current.signature, current.weights, samples.x, samples.y)
    name = ACCURACY_METRIC if read_task(learner.spec).is_classification else R2_METRIC
    return {name: measured.accuracy} if math.isfinite(measured.loss) else {}

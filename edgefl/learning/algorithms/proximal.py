"""A penalty on the distance from the received model, for the training objective of an algorithm.

Source: Li et al., Federated Optimization in Heterogeneous Networks, arXiv:1812.06127, algorithm 2.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from edgefl.learning.algorithms.names import RECEIVED_PREFIX, prefix_specs, strip_prefix

if TYPE_CHECKING:
    from edgefl.program.compiler.objective import Objective

Tensor = Any
Tensors = Mapping[str, Tensor]


def add_proximal_term(objective: "Objective", mu: float) -> "Objective":
    """Return the objective with mu / 2 |w - w_received|^2 added to the loss.

    The received weights are the frozen weights `received/NAME`.

    Args:
        objective: the training objective.
        mu: weight of the penalty. With 0 the objective is returned unchanged.
    """

    if not mu:
        return objective
    names = [spec.name for spec in objective.optimized]

    def compute_loss(weights: Tensors, data: Tensors, noise: Tensors) -> tuple[Tensor, dict[str, Tensor]]:
        import tensorflow as tf

        losses, assigned = objective.loss_per_sample(weights, data, noise)
        received = strip_prefix(RECEIVED_PREFIX, weights)
        squares = [tf.reduce_sum(tf.square(weights[name] - received[name])) for name in names]
        return losses + sum(squares) * (mu / 2), assigned

    return replace(
        objective,
        frozen=(*objective.frozen, *prefix_specs(RECEIVED_PREFIX, objective.optimized)),
        loss_per_sample=compute_loss,
    )

"""Activations in a form that a plan computes without overflow.

The converter writes softplus(x) as log(exp(x) + 1), which is infinite for x above 88.
"""

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from edgefl.base.errors import PlanError
from edgefl.program.compiler.layer_checks import flatten_layers, list_sublayers
from edgefl.program.models.graph import is_graph

Tensor = Any


def compute_softplus(x: Tensor) -> Tensor:
    """Return log(exp(x) + 1). Its slope at 0 is one half."""
    size = tf.abs(x)
    return 0.5 * (x + size) + tf.math.log(1.0 + tf.exp(-size))


def compute_log_sigmoid(x: Tensor) -> Tensor:
    """Return log(1 / (1 + exp(-x)))."""
    return -compute_softplus(-x)


STABLE_ACTIVATIONS = {
    keras.activations.softplus: compute_softplus,
    keras.activations.log_sigmoid: compute_log_sigmoid,
}


OPERATIONS = {"Softplus": "softplus", "LogSigmoid": "log_sigmoid"}
"""Activations by the class of the operation that `keras.ops` makes."""


def _list_operations(model: Any) -> Iterator[Any]:
    """Yield the layers and operations of a model and of the models in it."""
    for operation in getattr(model, "operations", model.layers):  # a Sequential has layers only
        yield operation
        if is_graph(operation):
            yield from _list_operations(operation)


def replace_activations(model: Any) -> None:
    """Give the layers of a model activations that do not overflow in a plan. Their values stay the same.

    The model itself changes, so save it before.

    Args:
        model: a functional model.

    Raises:
        PlanError: the model calls such an activation as an operation, which cannot be replaced.
    """
    for layer in flatten_layers(model.layers):
        for part in list_sublayers(layer):
            for key in ("activation", "recurrent_activation"):
                for unstable, stable in STABLE_ACTIVATIONS.items():
                    if getattr(part, key, None) is unstable:
                        setattr(part, key, stable)
    for operation in _list_operations(model):
        name = OPERATIONS.get(type(operation).__name__)
        if name is not None:
            raise PlanError(
                f"operation {operation.name} computes {name}, which overflows on devices above 88; "
                f"replace it with keras.layers.Activation({name!r})"
            )

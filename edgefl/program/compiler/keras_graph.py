"""Finds the layer that made a symbolic tensor, by a private name of Keras.

Keras 3 has no public name for that layer. Without the private name, this module searches for a layer whose
output is the tensor. The search does not find layers that were called several times.
"""

from typing import Any

from edgefl.base.errors import PlanError


def find_producer(functional: Any, tensor: Any) -> tuple[Any, Any]:
    """Return the layer that made a symbolic tensor, and the symbolic input of that layer.

    Args:
        functional: the model of the tensor.
        tensor: an output of the model, or an output of one of its layers.

    Raises:
        PlanError: the layer was not found.
    """
    if hasattr(tensor, "_keras_history"):
        layer, node_index, _ = tensor._keras_history
        inputs = layer._inbound_nodes[node_index].input_tensors
        return layer, inputs[0] if inputs else tensor
    return find_producer_by_output(functional, tensor)


def find_producer_by_output(functional: Any, tensor: Any) -> tuple[Any, Any]:
    """Return the same as `find_producer`, found by public attributes of Keras.

    Args:
        functional: the model of the tensor.
        tensor: an output of one of the model's layers.

    Raises:
        PlanError: no layer makes the tensor.
    """
    for layer in functional.layers:
        if layer.output is tensor:
            return layer, layer.input
    raise PlanError(
        f"no layer of the model {functional.name} has the output {tensor.name!r}; end the model with layers "
        "that are called once"
    )

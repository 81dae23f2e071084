"""Which layer made a symbolic tensor: the only place that knows private names of Keras.

Keras 3 has no public name for it. Where the private one is missing, layers are searched for the one whose
output the tensor is, which does not find layers that were called several times.
"""

from typing import Any

from edgefl.errors import PlanError


def find_producer(functional: Any, tensor: Any) -> tuple[Any, Any]:
    """Return the layer that made a symbolic tensor, and the symbolic tensor that went into it.

    Args:
        functional: the model that the tensor belongs to.
        tensor: one of the model's outputs, or of the tensors inside it.

    Raises:
        PlanError: the layer was not found.
    """
    if hasattr(tensor, "_keras_history"):
        layer, node_index, _ = tensor._keras_history
        inputs = layer._inbound_nodes[node_index].input_tensors
        return layer, inputs[0] if inputs else tensor
    return find_producer_by_output(functional, tensor)


def find_producer_by_output(functional: Any, tensor: Any) -> tuple[Any, Any]:
    """Return a tensor's layer and the input of that layer, by public attributes of Keras.

    Raises:
        PlanError: no layer makes the tensor.
    """
    for layer in functional.layers:
        if layer.output is tensor:
            return layer, layer.input
    raise PlanError(
        f"no layer of the model {functional.name} makes {tensor.name!r}; end the model with layers that are "
        "called once"
    )

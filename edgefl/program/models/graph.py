"""Runs the layers of a Keras model one by one, with a function in place of each call."""

from collections.abc import Callable
from functools import partial
from typing import Any

import keras

Tensor = Any


def is_graph(layer: Any) -> bool:
    """Return whether a layer is a nested model whose layers can be called one by one."""
    return isinstance(layer, keras.Model) and bool(getattr(layer, "inputs", None))


def call_layers_again(model: Any, call: Callable[..., Tensor], x: Tensor = None) -> Any:
    """Return a model of the same layers, with another function in place of each call of a layer.

    Args:
        model: a Sequential or functional model with one input.
        call: called as `call(layer, *args, **kwargs)` for each layer and operator. It returns the output.
        x: the input of the new model, a `keras.Input`. None makes one.
    """
    return keras.models.clone_model(
        keras.Model(model.inputs[0], model.outputs),
        input_tensors=x,
        clone_function=lambda layer: layer,
        call_function=call,
    )


def run_graph(model: Any, x: Tensor, call: Callable[..., Tensor]) -> Tensor:
    """Return the output of a model whose layers this function calls in their order.

    Args:
        model: a Sequential or functional model with one input and one output.
        x: the input, float32[batch, ...].
        call: called as `call(layer, *args, **kwargs)` for each layer and operator. A nested model is one
            layer.
    """
    functional = (
        model if hasattr(model, "_run_through_graph") else keras.Model(model.inputs[0], model.outputs[0])
    )
    return functional._run_through_graph(x, operation_fn=lambda layer: partial(call, layer))

"""Puts a Normalization layer with fixed constants in front of a model.

Decision 24 explains why the constants are in the model and not in the data sets.
"""

from collections.abc import Sequence
from typing import Any

from edgefl.base.errors import ConfigError

LAYER_NAME = "input_normalization"


def normalize_input(model: Any, mean: Sequence[float], std: Sequence[float]) -> Any:
    """Return a model that computes (x - mean) / std and then the layers of this model.

    The layers and their weights are shared with the model.

    Args:
        model: a Keras model with one input and one output.
        mean: one value, or one for each channel.
        std: standard deviations above 0, as many as in `mean`.

    Raises:
        ConfigError: the model already has such a layer.
    """
    import keras

    if any(layer.name == LAYER_NAME for layer in model.layers):
        raise ConfigError(
            f"the model {model.name} already has a layer {LAYER_NAME}, expected none; leave mean and std out "
            "of [model]"
        )
    shape = tuple(model.inputs[0].shape[1:])
    channels = shape[-1]
    means, variances = (
        list(values) * channels if len(values) == 1 else list(values)
        for values in (mean, [value**2 for value in std])
    )
    x = keras.Input(shape, name="x")
    normalized = keras.layers.Normalization(mean=means, variance=variances, name=LAYER_NAME)(x)

    def call_normalized(layer: Any, *args: Any, **kwargs: Any) -> Any:
        replaced = keras.tree.map_structure(lambda tensor: normalized if tensor is x else tensor, args)
        return layer(*replaced, **kwargs)

    return keras.models.clone_model(
        keras.Model(model.inputs[0], model.outputs[0], name=model.name),
        input_tensors=x,
        clone_function=lambda layer: layer,
        call_function=call_normalized,
    )


def read_constants(layer: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and std of a layer that `normalize_input` added, or empty tuples for None."""
    import numpy as np

    if layer is None:
        return (), ()
    mean, variance = (np.asarray(values, np.float64).ravel() for values in (layer.mean, layer.variance))
    return tuple(mean.tolist()), tuple(np.sqrt(variance).tolist())

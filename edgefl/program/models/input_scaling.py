"""Finds the layer with which a model scales its own input, so that samples are not scaled twice."""

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.base.config import FederationConfig, ModelConfig, SamplesConfig
from edgefl.base.errors import ConfigError
from edgefl.base.tasks.samples import GREY_SCALE
from edgefl.program.models.input_normalization import LAYER_NAME

MAX_UNIT_VALUE = 2.5
"""Samples from 0 to 1 have no larger mean plus two standard deviations, nor has an untrained norm."""
MAX_CURVATURE = 1e-3
"""Operations of a larger relative curvature are no scaling."""


@dataclass(frozen=True)
class InputScaling:
    """A layer that scales the input of a model.

    Attributes:
        layer: name of the layer.
        high: largest value of the samples that the layer expects, roughly.
    """

    layer: str
    high: float


def find_input_scaling(model: Any) -> InputScaling | None:
    """Return the first operation of a model if the model scales samples that are not from 0 to 1.

    Everything in front of the first layer with weights counts: layers such as Rescaling and Normalization,
    and arithmetic such as `x / 255`. A BatchNormalization counts by its moving statistics. A model that
    expects samples from 0 to 1, or from -1 to 1, has no such operation.

    Args:
        model: a Keras model.
    """
    import keras

    if len(getattr(model, "inputs", None) or ()) != 1:
        return None  # the compiler refuses such a model
    shape = tuple(size or 1 for size in model.inputs[0].shape[1:])
    constants = np.stack([np.full(shape, value, np.float32) for value in (0, 1, 2)])
    items: list[InputScaling] = []
    with suppress(_FirstWeightsError):
        _list_scalings(keras.Model(model.inputs[0], model.outputs), constants, items)
    scalings = [item for item in items if item.high]
    if not scalings or scalings[-1].high <= MAX_UNIT_VALUE:
        return None
    first = next(item for item in scalings if item.high > MAX_UNIT_VALUE)
    return InputScaling(first.layer, scalings[-1].high)


class _FirstWeightsError(Exception):
    """Ends the search at the first layer with weights."""


def _list_scalings(functional: Any, constants: NDArray[np.float32], items: list[InputScaling]) -> None:
    """Add each operation in front of the first layer with weights, with the largest sample that fits it.

    A layer may belong to several models. Therefore the operations are called again, in a copy of the graph.

    Args:
        functional: a functional model with one input.
        constants: its input for samples that are 0, 1 and 2 everywhere, shape (3, *shape).

    Raises:
        _FirstWeightsError: the model has a layer with weights, or an operation that fails.
    """
    import keras

    from edgefl.program.models.graph import call_layers_again, is_graph

    x = keras.Input(functional.inputs[0].shape[1:], dtype=functional.inputs[0].dtype)
    adapted = (keras.layers.Normalization, keras.layers.BatchNormalization)
    top = 1.0

    def call_operation(operation: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal top
        if is_graph(operation):
            if len(operation.inputs) != 1:
                raise _FirstWeightsError
            inner = keras.Model(operation.inputs[0], operation.outputs)
            _list_scalings(inner, _compute(x, args[0], constants), items)
        elif isinstance(operation, adapted) and items and items[-1].high > MAX_UNIT_VALUE:
            raise _FirstWeightsError  # the factor before the layer decides
        elif isinstance(operation, keras.layers.BatchNormalization):
            items.append(
                InputScaling(operation.name, _bound(operation.moving_mean, operation.moving_variance))
            )
            raise _FirstWeightsError
        elif isinstance(operation, keras.layers.Normalization):
            top = 2.0  # most values of a normal distribution are below
        elif getattr(operation, "weights", ()):
            raise _FirstWeightsError
        try:
            output = operation(*args, **kwargs)
            high = _find_high(_compute(x, output, constants), top)
        except Exception as error:  # of the layer's own code, which the compiler reports by the layer's name
            raise _FirstWeightsError from error
        items.append(InputScaling(operation.name, high))
        return output

    call_layers_again(functional, call_operation, x)


def _compute(x: Any, output: Any, constants: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the values of a tensor that depends on the input `x`.

    Raises:
        _FirstWeightsError: there are several tensors, which are no samples with another unit.
    """
    import keras

    if isinstance(output, list | tuple):
        raise _FirstWeightsError
    if output is x:
        return constants
    samples = keras.ops.convert_to_tensor(constants, dtype=x.dtype)
    return np.asarray(keras.ops.convert_to_numpy(keras.Model(x, output)(samples, training=False)), np.float32)


def _find_high(values: NDArray[np.float32], top: float) -> float:
    """Return the largest sample whose scaled value is from 0 to `top`, or 0 for values that are no scaling.

    Args:
        values: the values for samples that are 0, 1 and 2, shape (3, *shape).
        top: largest scaled value.
    """
    if not np.isfinite(values).all():
        return 0.0
    zero, one, two = values.astype(np.float64).reshape(3, -1)
    slope = (two - zero) / 2
    scaled = slope != 0
    if not scaled.any() or np.abs(one - zero - slope).max() > MAX_CURVATURE * np.abs(slope).max():
        return 0.0
    zero, slope = zero[scaled], slope[scaled]
    return float(max(((top - zero) / slope).max(), (-zero / slope).max()))


def _bound(mean: Any, variance: Any) -> float:
    means, variances = (np.asarray(value, np.float64) for value in (mean, variance))
    return float((means + 2 * np.sqrt(np.maximum(variances, 0))).max())


def choose_samples(
    samples: SamplesConfig, scaling: InputScaling | None, shape: tuple[int, ...]
) -> SamplesConfig:
    """Return unit and layout of samples for a model, which may scale its input itself.

    Args:
        samples: unit and layout in the configuration.
        scaling: the layer of the model that scales its input, None without such a layer.
        shape: shape of one sample.

    Raises:
        ConfigError: the configuration states a scale, and the model scales too.
    """
    if scaling is None or samples.scale == 1:
        return samples
    if samples.scale:
        raise ConfigError(
            f"[samples] scale is {samples.scale:g}, and the layer {scaling.layer!r} of the model scales "
            f"samples of up to about {scaling.high:.4g} itself, expected one of them; set scale = 1, or "
            "remove the layer"
        )
    is_picture = len(shape) == 3 and scaling.high <= GREY_SCALE + 1
    return replace(samples, scale=1.0, max_value=GREY_SCALE if is_picture else 0.0, min_value=0.0)


def describe_scaling(scaling: InputScaling) -> str:
    """Return a sentence on what a scaling layer changes."""
    return (
        f"the layer {scaling.layer!r} of the model scales samples of up to about {scaling.high:.4g} itself, "
        "so devices do not divide their samples: scale = 1 in [samples]"
    )


def find_constant_scaling(model: ModelConfig) -> InputScaling | None:
    """Return the scaling by `mean` and `std` of `[model]`, without building the model.

    Args:
        model: the table `[model]`.
    """
    if not model.mean:
        return None
    high = _bound(model.mean, np.square(model.std))
    return InputScaling(LAYER_NAME, high) if high > MAX_UNIT_VALUE else None


def find_scaling(config: FederationConfig) -> InputScaling | None:
    """Return the layer with which the model of a configuration scales its input.

    The models of `edgefl models` scale nothing. Any other model is built, which imports TensorFlow.

    Raises:
        ConfigError: the model does not exist, or does not fit the configuration.
    """
    from edgefl.program.models import build_model
    from edgefl.program.models.zoo.catalog import list_models

    if config.model.mean or config.model.name in list_models():
        return find_constant_scaling(config.model)
    return find_input_scaling(build_model(config.model, config.task))

"""Finds the layer with which a model scales its own input, so that samples are not scaled twice."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from edgefl.config import FederationConfig, ModelConfig, SamplesConfig
from edgefl.errors import ConfigError
from edgefl.models.input_normalization import LAYER_NAME
from edgefl.tasks.samples import GREY_SCALE

MAX_UNIT_VALUE = 2.5
"""Samples from 0 to 1 have no larger mean plus two standard deviations, nor has an untrained norm."""
SKIPPED_LAYERS = (
    "InputLayer",
    "Reshape",
    "Permute",
    "Dropout",
    "GaussianNoise",
    "Cropping1D",
    "Cropping2D",
    "ZeroPadding1D",
    "ZeroPadding2D",
    "RandomFlip",
    "RandomCrop",
    "RandomRotation",
    "RandomTranslation",
    "RandomZoom",
)
"""Layers that keep the unit of the samples."""


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
    """Return the first layer of a model if it scales samples that are not from 0 to 1.

    Rescaling, Normalization and BatchNormalization are such layers. A layer that expects samples from 0 to 1,
    or from -1 to 1, is not returned.

    Args:
        model: a Keras model.
    """
    for layer in _list_layers(model):
        kind = type(layer).__name__
        if kind in SKIPPED_LAYERS:
            continue
        high = 0.0
        if kind == "Rescaling":
            scale, offset = (np.asarray(value, np.float64) for value in (layer.scale, layer.offset))
            if (scale != 0).all():
                high = float(max(((1 - offset) / scale).max(), (-offset / scale).max()))
        elif kind == "Normalization" and layer.mean is not None:
            high = _bound(layer.mean, layer.variance)
        elif kind == "BatchNormalization":
            high = _bound(layer.moving_mean, layer.moving_variance)
        return InputScaling(layer.name, high) if high > MAX_UNIT_VALUE else None
    return None


def _bound(mean: Any, variance: Any) -> float:
    means, variances = (np.asarray(value, np.float64) for value in (mean, variance))
    return float((means + 2 * np.sqrt(np.maximum(variances, 0))).max())


def _list_layers(model: Any) -> Iterator[Any]:
    for layer in model.layers:
        yield from _list_layers(layer) if hasattr(layer, "layers") else (layer,)


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
    return replace(samples, scale=1.0, max_value=GREY_SCALE if is_picture else 0.0)


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

    Args:
        config: the configuration of the federation.

    Raises:
        ConfigError: the model does not exist, or does not fit the configuration.
    """
    from edgefl.models import build_model, list_models

    if config.model.mean or config.model.name in list_models():
        return find_constant_scaling(config.model)
    return find_input_scaling(build_model(config.model, config.task))

"""Layers in forms other than Keras's own: for a program those that it runs faster, for export those that can become int8."""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import keras
import tensorflow as tf

from edgefl.plan.convolution import BUILTIN, convolve, fits
from edgefl.plan.norms import batch_norm, group_norm, group_norm_by_parts, layer_norm_by_parts
from edgefl.plan.windows import make_geometry

Tensor = Any
Read = Callable[[Any], Tensor]
"""A layer's variable -> its value in this application."""
Called = tuple[Tensor, Sequence[tuple[Any, Tensor]]]
"""A layer's output, and the new values of the variables that it assigns."""

EXPORTED: ContextVar[bool] = ContextVar("EXPORTED", default=False)
"""Whether what is traced is the graph that devices quantize."""


def call_layer(layer: Any, read: Read, x: Tensor, training: bool) -> Called | None:
    """Apply the layer to x: float32[batch, ...]; None for a layer that has no form of its own here, which Keras calls then."""
    forms = PROGRAM if BUILTIN.get() else EXPORT if EXPORTED.get() else {}
    form = forms.get(type(layer))
    if form is None or getattr(layer, "data_format", "channels_last") != "channels_last":
        return None
    last = (-1, len(x.shape) - 1)
    return form(layer, read, x, training) if getattr(layer, "axis", -1) in (*last, *([axis] for axis in last)) else None


def _convolution(layer: Any, read: Read, x: Tensor, training: bool) -> Called | None:
    """A convolution as matrix products; None when it is grouped or too large for that."""
    del training
    if layer.groups > 1 or layer.padding == "causal":
        return None
    kernel = read(layer.kernel)
    one = type(layer) is keras.layers.Conv1D
    image, filters = (tf.expand_dims(x, 1), tf.expand_dims(kernel, 0)) if one else (x, kernel)
    strides, dilations = ((1,) * one + layer.strides, (1,) * one + layer.dilation_rate)
    geometry = make_geometry(image.shape[1:3], filters.shape[:2], strides, dilations, layer.padding.upper())
    if not fits(image, filters, geometry):
        return None
    out = convolve(image, filters, geometry)
    out = tf.squeeze(out, 1) if one else out
    return layer.activation(out + read(layer.bias) if layer.use_bias else out), ()


def _batch_norm(layer: Any, read: Read, x: Tensor, training: bool) -> Called | None:
    """A batch norm by the batch's statistics; with the moving ones it is Keras's."""
    if not training or not layer.trainable or layer.renorm or layer.synchronized:
        return None
    out, mean, variance = batch_norm(x, *_affine(layer, read, x), layer.epsilon)
    keep = layer.momentum
    pairs = ((layer.moving_mean, mean), (layer.moving_variance, variance))
    return out, [(variable, read(variable) * keep + new * (1.0 - keep)) for variable, new in pairs]


def _group_norm(layer: Any, read: Read, x: Tensor, training: bool) -> Called:
    del training
    return group_norm(x, *_affine(layer, read, x), layer.epsilon, layer.groups), ()


def _group_norm_exported(layer: Any, read: Read, x: Tensor, training: bool) -> Called:
    del training
    return group_norm_by_parts(x, *_affine(layer, read, x), layer.epsilon, layer.groups), ()


def _layer_norm_exported(layer: Any, read: Read, x: Tensor, training: bool) -> Called | None:
    del training
    if getattr(layer, "rms_scaling", False):
        return None
    return layer_norm_by_parts(x, *_affine(layer, read, x), layer.epsilon), ()


def _affine(layer: Any, read: Read, x: Tensor) -> tuple[Tensor, Tensor]:
    channels = x.shape[-1]
    return read(layer.gamma) if layer.scale else tf.ones(channels), read(layer.beta) if layer.center else tf.zeros(channels)


Forms = dict[type, Callable[[Any, Read, Tensor, bool], Called | None]]

PROGRAM: Forms = {
    keras.layers.Conv1D: _convolution,
    keras.layers.Conv2D: _convolution,
    keras.layers.BatchNormalization: _batch_norm,
    keras.layers.GroupNormalization: _group_norm,
}

EXPORT: Forms = {
    keras.layers.GroupNormalization: _group_norm_exported,
    keras.layers.LayerNormalization: _layer_norm_exported,
}

"""Layers in forms other than Keras's own: for a program those that it runs faster, for export those that can
become int8.
"""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from edgefl.compiler.convolution import BUILTIN, convolve, fits, turn, turned
from edgefl.compiler.norms import batch_norm, group_norm, group_norm_by_parts, layer_norm_by_parts
from edgefl.compiler.windows import make_geometry

Tensor = Any
Read = Callable[[Any], Tensor]
"""A layer's variable -> its value in this application."""
Called = tuple[Tensor, Sequence[tuple[Any, Tensor]]]
"""A layer's output, and the new values of the variables that it assigns."""

EXPORTED: ContextVar[bool] = ContextVar("EXPORTED", default=False)
"""Whether what is traced is the graph that devices quantize."""


CONSTANT = (keras.layers.Normalization,)
"""Layers whose variables are constants of the plan: they are adapted before the federation and never
trained.
"""


def normalize(layer: Any, x: Tensor) -> Tensor:
    """Apply a Normalization layer, its mean and variance folded into one factor and one offset.

    In the exported graph a factor for each channel is a depthwise convolution: int8 keeps a scale for each
    channel of its weights, but a single scale for the constants of a multiplication, where the factors of
    channels with a large spread would round to zero.
    """
    mean = np.asarray(layer.mean, np.float64)
    spread = np.sqrt(np.asarray(layer.variance, np.float64))
    spread = np.maximum(spread, keras.config.epsilon())
    factor, offset = (spread, mean) if layer.invert else (1 / spread, -mean / spread)
    channels = x.shape[-1]
    if (
        not EXPORTED.get()
        or channels == 1
        or {factor.size, offset.size} != {channels}
        or factor.shape[-1] != channels
    ):
        return x * tf.constant(factor, tf.float32) + tf.constant(offset, tf.float32)
    filters = tf.constant(factor.reshape(1, 1, channels, 1), tf.float32)
    image = tf.reshape(x, (x.shape[0], -1, 1, channels))
    return tf.reshape(
        tf.nn.depthwise_conv2d(image, filters, (1, 1, 1, 1), "VALID")
        + tf.constant(offset.ravel(), tf.float32),
        x.shape,
    )


def call_layer(layer: Any, read: Read, x: Tensor, training: bool) -> Called | None:
    """Apply the layer to x: float32[batch, ...].

    None for a layer that has no form of its own here, which Keras calls then.
    """
    forms = PROGRAM if BUILTIN.get() else EXPORT if EXPORTED.get() else {}
    form = forms.get(type(layer))
    if form is None or getattr(layer, "data_format", "channels_last") != "channels_last":
        return None
    last = (-1, len((x[0] if isinstance(x, list) else x).shape) - 1)
    return (
        form(layer, read, x, training)
        if getattr(layer, "axis", -1) in (*last, *([axis] for axis in last))
        else None
    )


def _convolution(layer: Any, read: Read, x: Tensor, training: bool) -> Called | None:
    """A convolution as matrix products; None when it is grouped or too large for that."""
    del training
    if layer.groups > 1 or layer.padding == "causal":
        return None
    kernel = read(layer.kernel)
    one = type(layer) is keras.layers.Conv1D
    filters = tf.expand_dims(kernel, 0) if one else kernel
    size, strides, dilations = (
        (1,) * one + tuple(each) for each in (x.shape[1:-1], layer.strides, layer.dilation_rate)
    )
    geometry = make_geometry(size, filters.shape[:2], strides, dilations, layer.padding.upper())
    if not fits(x.shape[0], filters, geometry):
        return None
    # A product already, turning gains nothing
    if turned(x) is None and filters.shape[:2] == (1, 1) and set(strides) == {1}:
        out = tf.reshape(x, (1, -1, x.shape[-1])) @ tf.reshape(kernel, (1, *filters.shape[2:]))
        out = tf.reshape(out, (*x.shape[:-1], filters.shape[3]))
        return layer.activation(out + read(layer.bias) if layer.use_bias else out), ()
    image = tf.expand_dims(turn(x), 1) if one else turn(x)
    out = convolve(image, filters, geometry)
    out = tf.squeeze(out, 1) if one else out
    if layer.use_bias:
        out += tf.reshape(read(layer.bias), (-1, *(1 for _ in out.shape[1:])))
    return turn(layer.activation(out)) if layer.activation in ELEMENTWISE else layer.activation(turn(out)), ()


def _alike(layer: Any, read: Read, x: Tensor, training: bool) -> Called | None:
    """A layer to which batch and channels are alike, on turned images; None when they are not turned."""
    del read, training
    given = x if isinstance(x, list) else [x]
    images = [image for image in map(turned, given) if image is not None]
    if len(images) < len(given) or len({len(image.shape) for image in images}) > 1:
        return None
    if getattr(layer, "activation", keras.activations.linear) not in ELEMENTWISE:
        return None
    return turn(layer.call(images if isinstance(x, list) else images[0])), ()


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
    return read(layer.gamma) if layer.scale else tf.ones(channels), read(
        layer.beta
    ) if layer.center else tf.zeros(channels)


Forms = dict[type, Callable[[Any, Read, Tensor, bool], Called | None]]

ELEMENTWISE = tuple(
    getattr(keras.activations, name)
    for name in ("linear", "relu", "relu6", "leaky_relu", "elu", "sigmoid", "tanh", "softplus", "silu")
)
"""Activations that take each value by itself."""

_ALIKE = tuple(
    getattr(keras.layers, name)
    for name in (
        "MaxPooling1D",
        "MaxPooling2D",
        "AveragePooling1D",
        "AveragePooling2D",
        "ZeroPadding1D",
        "ZeroPadding2D",
        "ReLU",
        "LeakyReLU",
        "ELU",
        "Activation",
        "Add",
    )
)

PROGRAM: Forms = {
    keras.layers.Conv1D: _convolution,
    keras.layers.Conv2D: _convolution,
    keras.layers.BatchNormalization: _batch_norm,
    keras.layers.GroupNormalization: _group_norm,
} | dict.fromkeys(_ALIKE, _alike)

EXPORT: Forms = {
    keras.layers.GroupNormalization: _group_norm_exported,
    keras.layers.LayerNormalization: _layer_norm_exported,
}

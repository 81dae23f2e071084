"""Other implementations of Keras layers: faster ones for a program, and ones that can become int8 for an
export.
"""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from edgefl.base.errors import PlanError
from edgefl.program.compiler.activations import STABLE_ACTIVATIONS
from edgefl.program.compiler.convolution import (
    MAX_DEPTHWISE_CHANNELS,
    TRACING_PROGRAM,
    convolve,
    find_swap_input,
    is_within_limit,
    swap_batch_channels,
)
from edgefl.program.compiler.norms import (
    apply_batch_norm,
    apply_group_norm,
    apply_group_norm_for_export,
    apply_layer_norm_for_export,
)
from edgefl.program.compiler.recurrent import STEPWISE_LAYERS, call_bidirectional, call_recurrent
from edgefl.program.compiler.windows import make_geometry

Tensor = Any
ReadVariable = Callable[[Any], Tensor]
"""Returns the current value of a layer's variable."""
LayerResult = tuple[Tensor, Sequence[tuple[Any, Tensor]]]
"""A layer's output, and the new values of the variables that it assigns."""

TRACING_EXPORT: ContextVar[bool] = ContextVar("TRACING_EXPORT", default=False)
"""Whether the graph that is traced now is the export graph, which devices quantize."""

MIN_SQUARE = 1e-24
"""Smallest squared length of a vector that UnitNormalization scales to 1, as in Keras."""
CONSTANT_LAYERS = (keras.layers.Normalization,)
"""Layers whose variables are constants of the plan. They are adapted before the federation and never trained.
"""


def normalize(layer: Any, x: Tensor) -> Tensor:
    """Apply a Normalization layer, with its mean and variance folded into one factor and one offset.

    Args:
        x: float32[batch, ...].
    """
    mean = np.asarray(layer.mean, np.float64)
    spread = np.sqrt(np.asarray(layer.variance, np.float64))
    spread = np.maximum(spread, keras.config.epsilon())
    factor, offset = (spread, mean) if layer.invert else (1 / spread, -mean / spread)
    return _scale(x, factor, offset)


def _scale(x: Tensor, factor: NDArray[np.float64], offset: NDArray[np.float64]) -> Tensor:
    """Return x * factor + offset.

    In the export graph, one factor or a factor for each channel becomes a depthwise convolution. The
    converter would fold a multiplication into the weights of a convolution behind it, and a device could not
    insert its own weights there. The int8 weights of a depthwise convolution also have a scale for each
    channel. The constants of a multiplication have only one scale, so small factors would become zero.

    Args:
        x: float32[batch, ...].
        factor: one factor, or any shape that can be broadcast to x.
        offset: one offset, or any shape that can be broadcast to x.

    Raises:
        PlanError: the export graph scales more channels than a runtime can, each by a factor of its own.
    """
    channels = x.shape[-1]
    is_by_channel = all(
        values.size == 1 or values.size == values.shape[-1] == channels for values in (factor, offset)
    )
    if not TRACING_EXPORT.get() or not is_by_channel:
        return x * tf.constant(factor, tf.float32) + tf.constant(offset, tf.float32)
    if channels > MAX_DEPTHWISE_CHANNELS:
        if factor.size > 1 or offset.size > 1:
            raise PlanError(
                f"the model scales {channels} features, each by its own factor, expected at most "
                f"{MAX_DEPTHWISE_CHANNELS} for an export; scale them by one factor, or before they are stored"
            )
        channels = 1
    factors, offsets = (np.broadcast_to(values.ravel(), (channels,)) for values in (factor, offset))
    filters = tf.constant(factors.reshape(1, 1, channels, 1), tf.float32)
    image = tf.reshape(x, (x.shape[0], -1, 1, channels))
    scaled = tf.nn.depthwise_conv2d(image, filters, (1, 1, 1, 1), "VALID")
    # The converter would move an addition behind the reshape, and then into the biases of dense layers
    return tf.reshape(scaled - tf.constant(-offsets, tf.float32), x.shape)


def call_layer(layer: Any, read: ReadVariable, x: Tensor, training: bool) -> LayerResult | None:
    """Apply the implementation that this module has for a layer.

    Args:
        read: returns the value of a variable of the layer.
        x: input of the layer, float32[batch, ...], or a list of inputs.
        training: whether the layer runs in training mode.

    Returns:
        The result, or None if the caller must use the implementation of Keras.
    """
    forms = PROGRAM_FORMS if TRACING_PROGRAM.get() else EXPORT_FORMS if TRACING_EXPORT.get() else {}
    form = forms.get(type(layer))
    if form is None or getattr(layer, "data_format", "channels_last") != "channels_last":
        return None
    last = (-1, len((x[0] if isinstance(x, list) else x).shape) - 1)
    return (
        form(layer, read, x, training)
        if getattr(layer, "axis", -1) in (*last, *([axis] for axis in last))
        else None
    )


def _export_rescaling(layer: Any, read: ReadVariable, x: Tensor, training: bool) -> LayerResult:
    del read, training
    return _scale(x, np.asarray(layer.scale, np.float64), np.asarray(layer.offset, np.float64)), ()


def _call_dense(layer: Any, read: ReadVariable, x: Tensor, training: bool) -> LayerResult | None:
    """Apply a Dense layer without bias as a product of three axes, or return None for other layers.

    The converter fuses a product of two axes and a ReLU into FULLY_CONNECTED. The kernel is an argument, so
    it turns that into BATCH_MATMUL, and then loses the ReLU. A bias between the two prevents this.
    """
    del training
    if layer.use_bias:
        return None
    out = tf.reshape(x, (1, -1, x.shape[-1])) @ tf.expand_dims(read(layer.kernel), 0)
    return layer.activation(tf.reshape(out, (*x.shape[:-1], layer.units))), ()


def _call_convolution(layer: Any, read: ReadVariable, x: Tensor, training: bool) -> LayerResult | None:
    """Apply a convolution as matrix products, or return None if it is grouped or too large for them."""
    del training
    if layer.groups > 1 or layer.padding == "causal":
        return None
    kernel = read(layer.kernel)
    is_1d = type(layer) is keras.layers.Conv1D
    filters = tf.expand_dims(kernel, 0) if is_1d else kernel
    size, strides, dilations = (
        (1,) * is_1d + tuple(values) for values in (x.shape[1:-1], layer.strides, layer.dilation_rate)
    )
    geometry = make_geometry(size, filters.shape[:2], strides, dilations, layer.padding.upper())
    if not is_within_limit(x.shape[0], filters, geometry):
        return None
    # A 1x1 convolution is a matrix product without a swap of the axes
    if find_swap_input(x) is None and filters.shape[:2] == (1, 1) and set(strides) == {1}:
        out = tf.reshape(x, (1, -1, x.shape[-1])) @ tf.reshape(kernel, (1, *filters.shape[2:]))
        out = tf.reshape(out, (*x.shape[:-1], filters.shape[3]))
        return layer.activation(out + read(layer.bias) if layer.use_bias else out), ()
    image = tf.expand_dims(swap_batch_channels(x), 1) if is_1d else swap_batch_channels(x)
    out = convolve(image, filters, geometry)
    out = tf.squeeze(out, 1) if is_1d else out
    if layer.use_bias:
        out += tf.reshape(read(layer.bias), (-1, *(1 for _ in out.shape[1:])))
    return swap_batch_channels(
        layer.activation(out)
    ) if layer.activation in ELEMENTWISE_ACTIVATIONS else layer.activation(swap_batch_channels(out)), ()


def _call_layout_free(layer: Any, read: ReadVariable, x: Tensor, training: bool) -> LayerResult | None:
    """Apply a layer to images whose batch and channels are swapped, or return None for other images.

    The layer must give the same result for swapped axes.
    """
    del read, training
    inputs = x if isinstance(x, list) else [x]
    images = [image for image in map(find_swap_input, inputs) if image is not None]
    if len(images) < len(inputs) or len({len(image.shape) for image in images}) > 1:
        return None
    if getattr(layer, "activation", keras.activations.linear) not in ELEMENTWISE_ACTIVATIONS:
        return None
    return swap_batch_channels(layer.call(images if isinstance(x, list) else images[0])), ()


def _call_batch_norm(layer: Any, read: ReadVariable, x: Tensor, training: bool) -> LayerResult | None:
    """Apply a batch norm with the statistics of the batch, or return None if it uses moving statistics."""
    if not training or not layer.trainable or layer.renorm or layer.synchronized:
        return None
    image, is_swapped = _undo_swap(x)
    out, mean, variance = apply_batch_norm(image, *_read_affine(layer, read, x), layer.epsilon, is_swapped)
    out = swap_batch_channels(out) if is_swapped else out
    momentum = layer.momentum
    pairs = ((layer.moving_mean, mean), (layer.moving_variance, variance))
    return out, [(variable, read(variable) * momentum + new * (1.0 - momentum)) for variable, new in pairs]


def _call_group_norm(layer: Any, read: ReadVariable, x: Tensor, training: bool) -> LayerResult:
    del training
    image, is_swapped = _undo_swap(x)
    affine = _read_affine(layer, read, x)
    out = apply_group_norm(image, *affine, layer.epsilon, layer.groups, is_swapped)
    return swap_batch_channels(out) if is_swapped else out, ()


def _export_group_norm(layer: Any, read: ReadVariable, x: Tensor, training: bool) -> LayerResult:
    del training
    return apply_group_norm_for_export(x, *_read_affine(layer, read, x), layer.epsilon, layer.groups), ()


def _export_layer_norm(layer: Any, read: ReadVariable, x: Tensor, training: bool) -> LayerResult | None:
    del training
    if getattr(layer, "rms_scaling", False):
        return None
    return apply_layer_norm_for_export(x, *_read_affine(layer, read, x), layer.epsilon), ()


def _call_unit_norm(layer: Any, read: ReadVariable, x: Tensor, training: bool) -> LayerResult:
    """Divide vectors by their length. TFLite runtimes give NaN for the length 0 in the form of Keras."""
    del layer, read, training
    lengths = tf.maximum(tf.reduce_sum(x * x, -1, keepdims=True), MIN_SQUARE)
    return x * tf.math.rsqrt(lengths), ()


def _undo_swap(x: Tensor) -> tuple[Tensor, bool]:
    """Return the image before a swap of batch and channels, or x, and whether x is the result of a swap."""
    image = find_swap_input(x)
    return (x, False) if image is None else (image, True)


def _read_affine(layer: Any, read: ReadVariable, x: Tensor) -> tuple[Tensor, Tensor]:
    channels = x.shape[-1]
    return read(layer.gamma) if layer.scale else tf.ones(channels), read(
        layer.beta
    ) if layer.center else tf.zeros(channels)


Forms = dict[type, Callable[[Any, ReadVariable, Tensor, bool], LayerResult | None]]

ELEMENTWISE_ACTIVATIONS = tuple(
    getattr(keras.activations, name)
    for name in ("linear", "relu", "relu6", "leaky_relu", "elu", "sigmoid", "tanh", "silu")
) + tuple(STABLE_ACTIVATIONS.values())
"""Activations that compute each value separately."""

_LAYOUT_FREE_LAYERS = tuple(
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

_RECURRENT_FORMS: Forms = {
    keras.layers.Bidirectional: call_bidirectional,
    **dict.fromkeys(STEPWISE_LAYERS, call_recurrent),
}

PROGRAM_FORMS: Forms = {
    **_RECURRENT_FORMS,
    keras.layers.Dense: _call_dense,
    keras.layers.Conv1D: _call_convolution,
    keras.layers.Conv2D: _call_convolution,
    keras.layers.BatchNormalization: _call_batch_norm,
    keras.layers.GroupNormalization: _call_group_norm,
    keras.layers.UnitNormalization: _call_unit_norm,
} | dict.fromkeys(_LAYOUT_FREE_LAYERS, _call_layout_free)

EXPORT_FORMS: Forms = {
    **_RECURRENT_FORMS,
    keras.layers.Rescaling: _export_rescaling,
    keras.layers.GroupNormalization: _export_group_norm,
    keras.layers.LayerNormalization: _export_layer_norm,
    keras.layers.UnitNormalization: _call_unit_norm,
}

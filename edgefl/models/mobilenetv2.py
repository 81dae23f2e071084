"""MobileNetV2 (Sandler et al. 2018, arXiv:1801.04381, table 2), which FedAP trains with dropout .8 and seven
classes.

conv3x3 32, seventeen inverted residuals, conv1x1 1280, global average pooling, dropout, FC classes. An
inverted residual is conv1x1 to t times the channels, depthwise 3x3, conv1x1 to c channels, each with a batch
norm, ReLU6 behind the first two; it adds its input where sizes agree. At width 1 and three channels 2,257,984
weights stand before the classifier (34,112 of them moving statistics); 2,266,951 with seven classes.
Weights and paddings are in the order of `keras.applications.MobileNetV2`, so its pretrained weights can be
set.
"""

from typing import Any

import keras

from edgefl.errors import ConfigError

BLOCK_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""Expansion t, channels c, blocks n, stride s of the first block."""
LAST_CHANNELS = 1280


def mobilenetv2(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    width: float = 1.0,
    dropout: float = 0.8,
    momentum: float = 0.9,
) -> Any:
    """Return the model: float32[batch, *input_shape] -> logits float32[batch, num_classes].

    `width` multiplies all channels, rounded to eights (the last 1280 only when it is above 1); `dropout` is
    the share of the classifier's inputs that a training step drops; `momentum` that of the moving statistics:
    the short local trainings of a federation want it lower than the .999 of a long one. Raises ConfigError
    for images under 16x16 and a width that is not above 0.
    """
    if len(input_shape) != 3 or min(input_shape[:2]) < 16:
        raise ConfigError(
            f"mobilenetv2 takes images of 16x16 or more, received input_shape {input_shape}; resize the data"
        )
    if not width > 0:
        raise ConfigError(f"mobilenetv2 has width {width}, expected a number above 0 such as 0.35 or 1.0")
    layers = keras.layers
    x = keras.Input(input_shape, name="x")
    y = _add_norm(
        layers.Conv2D(
            _round_to_eights(32 * width), 3, strides=2, padding="same", use_bias=False, name="conv"
        )(x),
        momentum,
        "conv",
    )
    for stage, (expansion, channels, count, stride) in enumerate(BLOCK_STAGES, 1):
        for index in range(count):
            name = f"stage{stage}_block{index + 1}"
            y = _add_inverted_residual(
                y, expansion, _round_to_eights(channels * width), 1 if index else stride, momentum, name
            )
    y = layers.Conv2D(_round_to_eights(LAST_CHANNELS * max(width, 1.0)), 1, use_bias=False, name="last")(y)
    y = layers.GlobalAveragePooling2D(name="average")(_add_norm(y, momentum, "last"))
    y = layers.Dropout(dropout, name="dropout")(y)
    return keras.Model(x, layers.Dense(num_classes, name="fc")(y), name="mobilenetv2")


def _add_inverted_residual(
    x: Any, expansion: int, channels: int, stride: int, momentum: float, name: str
) -> Any:
    layers = keras.layers
    y = x
    if expansion > 1:
        y = layers.Conv2D(expansion * x.shape[3], 1, use_bias=False, name=f"{name}_expand")(y)
        y = _add_norm(y, momentum, f"{name}_expand")
    y = layers.DepthwiseConv2D(3, strides=stride, padding="same", use_bias=False, name=f"{name}_depthwise")(y)
    y = _add_norm(y, momentum, f"{name}_depthwise")
    y = layers.Conv2D(channels, 1, use_bias=False, name=f"{name}_project")(y)
    y = layers.BatchNormalization(momentum=momentum, name=f"{name}_project_norm")(y)
    return layers.Add(name=f"{name}_add")([x, y]) if stride == 1 and channels == x.shape[3] else y


def _add_norm(x: Any, momentum: float, name: str) -> Any:
    y = keras.layers.BatchNormalization(momentum=momentum, name=f"{name}_norm")(x)
    return keras.layers.ReLU(6.0, name=f"{name}_relu")(y)


def _round_to_eights(channels: float) -> int:
    """Round to a multiple of eight, but never down by more than a tenth."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded

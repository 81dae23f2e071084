"""MobileNetV2, which FedAP trains with dropout .8 and seven classes.

conv3x3 32, seventeen inverted residuals, conv1x1 1280, global average pooling, dropout, FC classes. An
inverted residual consists of conv1x1 to t times the channels, depthwise 3x3, and conv1x1 to c channels. Each
convolution has a batch norm, and the first two have a ReLU6. The block adds its input if the sizes agree.

At width 1 with three channels, the layers before the classifier have 2,257,984 weights, 34,112 of them moving
statistics. With seven classes the model has 2,266,951 weights. Weights and paddings are in the order of
`keras.applications.MobileNetV2`, so its pretrained weights can be used.

Source: M. Sandler et al. 2018, arXiv:1801.04381, table 2.
"""

from typing import Any

from edgefl.base.errors import ConfigError
from edgefl.program.models.zoo.norm_relu import add_norm_relu

BLOCK_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""Expansion t, channels c, number of blocks n, and stride s of the first block, for each stage."""
LAST_CHANNELS = 1280
MAX_RELU = 6.0
"""Largest output of a ReLU6."""


def mobilenetv2(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    width: float = 1.0,
    dropout: float = 0.8,
    momentum: float = 0.9,
) -> Any:
    """Build the model. It maps samples, shape (batch, *input_shape), float32, to logits.

    Args:
        input_shape: rows, columns and channels of an image, at least 16x16.
        width: multiplies all channels, which are rounded to multiples of eight. The last 1280 channels change
            only with a width above 1.
        dropout: share of the inputs of the classifier that a training step drops.
        momentum: momentum of the moving statistics. The short local trainings of a federation need a lower
            value than the usual .999.

    Returns:
        The Keras model. Logits have shape (batch, num_classes), float32.

    Raises:
        ConfigError: the images are smaller than 16x16, or the width is not above 0.
    """
    import keras

    if len(input_shape) != 3 or min(input_shape[:2]) < 16:
        raise ConfigError(
            f"mobilenetv2 takes images of 16x16 or more, received input_shape {input_shape}; resize the data"
        )
    if not width > 0:
        raise ConfigError(f"mobilenetv2 has width {width}, expected a number above 0 such as 0.35 or 1.0")
    layers = keras.layers
    x = keras.Input(input_shape, name="x")
    y = add_norm_relu(
        layers.Conv2D(
            _round_to_eights(32 * width), 3, strides=2, padding="same", use_bias=False, name="conv"
        )(x),
        momentum,
        "conv",
        MAX_RELU,
    )
    for stage, (expansion, channels, count, stride) in enumerate(BLOCK_STAGES, 1):
        for index in range(count):
            name = f"stage{stage}_block{index + 1}"
            y = _add_inverted_residual(
                y, expansion, _round_to_eights(channels * width), 1 if index else stride, momentum, name
            )
    y = layers.Conv2D(_round_to_eights(LAST_CHANNELS * max(width, 1.0)), 1, use_bias=False, name="last")(y)
    y = layers.GlobalAveragePooling2D(name="average")(add_norm_relu(y, momentum, "last", MAX_RELU))
    y = layers.Dropout(dropout, name="dropout")(y)
    return keras.Model(x, layers.Dense(num_classes, name="fc")(y), name="mobilenetv2")


def _add_inverted_residual(
    x: Any, expansion: int, channels: int, stride: int, momentum: float, name: str
) -> Any:
    import keras

    layers = keras.layers
    y = x
    if expansion > 1:
        y = layers.Conv2D(expansion * x.shape[3], 1, use_bias=False, name=f"{name}_expand")(y)
        y = add_norm_relu(y, momentum, f"{name}_expand", MAX_RELU)
    y = layers.DepthwiseConv2D(3, strides=stride, padding="same", use_bias=False, name=f"{name}_depthwise")(y)
    y = add_norm_relu(y, momentum, f"{name}_depthwise", MAX_RELU)
    y = layers.Conv2D(channels, 1, use_bias=False, name=f"{name}_project")(y)
    y = layers.BatchNormalization(momentum=momentum, name=f"{name}_project_norm")(y)
    return layers.Add(name=f"{name}_add")([x, y]) if stride == 1 and channels == x.shape[3] else y


def _round_to_eights(channels: float) -> int:
    """Round to a multiple of eight, but never down by more than a tenth."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded

"""MobileNetV1, with a quarter of the channels as in MLPerf Tiny for visual wake words.

conv3x3 32 with stride 2, thirteen blocks of depthwise 3x3 and conv1x1, global average pooling, FC classes.
Each convolution has a batch norm and a ReLU.

At width .25 with 96x96x3 pixels and two classes, the model has 219,058 weights, 5,472 of them moving
statistics.

Source: A. Howard et al., arXiv:1704.04861, table 1; C. Banbury et al., arXiv:2106.07597, section 4.
"""

from typing import Any

from edgefl.base.errors import ConfigError
from edgefl.program.models.zoo.norm_relu import add_norm_relu

BLOCK_SIZES = (
    (64, 1),
    (128, 2),
    (128, 1),
    (256, 2),
    (256, 1),
    (512, 2),
    *((512, 1),) * 5,
    (1024, 2),
    (1024, 1),
)
"""Channels and stride of each block."""


def mobilenetv1(
    input_shape: tuple[int, ...], num_classes: int, *, width: float = 0.25, momentum: float = 0.9
) -> Any:
    """Build the model. It maps samples, shape (batch, *input_shape), float32, to logits.

    Args:
        input_shape: rows, columns and channels of an image, at least 16x16.
        width: multiplies all channels.
        momentum: momentum of the moving statistics. The short local trainings of a federation need a lower
            value than the usual .99.

    Returns:
        The Keras model. Logits have shape (batch, num_classes), float32.

    Raises:
        ConfigError: the images are smaller than 16x16, or the width is below 1/32.
    """
    import keras

    if len(input_shape) != 3 or min(input_shape[:2]) < 16:
        raise ConfigError(
            f"mobilenetv1 takes images of 16x16 or more, received input_shape {input_shape}; resize the data"
        )
    if width < 1 / 32:
        raise ConfigError(f"mobilenetv1 has width {width}, expected 1/32 or more, such as 0.25 or 1.0")
    layers = keras.layers
    x = keras.Input(input_shape, name="x")
    y = layers.Conv2D(int(32 * width), 3, strides=2, padding="same", use_bias=False, name="conv")(x)
    y = add_norm_relu(y, momentum, "conv")
    for index, (channels, stride) in enumerate(BLOCK_SIZES, 1):
        name = f"block{index}"
        y = layers.DepthwiseConv2D(
            3, strides=stride, padding="same", use_bias=False, name=f"{name}_depthwise"
        )(y)
        y = add_norm_relu(y, momentum, f"{name}_depthwise")
        y = layers.Conv2D(int(channels * width), 1, use_bias=False, name=f"{name}_pointwise")(y)
        y = add_norm_relu(y, momentum, f"{name}_pointwise")
    y = layers.GlobalAveragePooling2D(name="average")(y)
    return keras.Model(x, layers.Dense(num_classes, name="fc")(y), name="mobilenetv1")

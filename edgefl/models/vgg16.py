"""VGG-16 (Simonyan and Zisserman, arXiv:1409.1556) with the classifier that PFL-MoE (arXiv:2012.15589)
counts.

Thirteen 3x3 convolutions in five stages of 64-128-256-512-512 filters, each stage followed by a pooling of 2:
14,714,688 weights on three channels, and 1x1x512 left of 32x32: the 512 features that PFL-MoE's gate reads.
The paper gives the total of 15,245,130 at ten classes, which leaves 530,442 for three dense layers: 512-512,
512-512 and 512-10, with their biases.
There is no batch norm: with any, the total would be another. Kernels start as He et al. 2015, without which
the signal of so deep a network fades.
"""

from typing import Any

import keras

from edgefl.errors import ConfigError

CONVOLUTION_STAGES = ((1, 2), (2, 2), (4, 3), (8, 3), (8, 3))
"""Multiple of the first stage's filters, and how many convolutions."""


def vgg16(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    filters: int = 64,
    hidden: int = 512,
    dropout: float = 0.5,
) -> Any:
    """Return the model: float32[batch, *input_shape] -> logits float32[batch, num_classes].

    `filters` is the width of the first stage, `hidden` that of both dense layers, `dropout` the share of
    their values that a training step drops. Raises ConfigError for images under 32x32.
    """
    if len(input_shape) != 3 or min(input_shape[:2]) < 32:
        raise ConfigError(
            "vgg16 halves an image five times, so it takes 32x32 or more, received input_shape "
            f"{input_shape}; resize the data"
        )
    layers = keras.layers
    model = keras.Sequential([keras.Input(input_shape, name="x")], name="vgg16")
    for stage, (multiple, count) in enumerate(CONVOLUTION_STAGES, 1):
        for index in range(1, count + 1):
            convolution = layers.Conv2D(
                filters * multiple,
                3,
                padding="same",
                activation="relu",
                kernel_initializer="he_normal",
                name=f"conv{stage}_{index}",
            )
            model.add(convolution)
        model.add(layers.MaxPooling2D(2, name=f"pool{stage}"))
    model.add(layers.Flatten(name="flatten"))
    for index in (1, 2):
        model.add(layers.Dense(hidden, activation="relu", kernel_initializer="he_normal", name=f"fc{index}"))
        model.add(layers.Dropout(dropout, name=f"dropout{index}"))
    model.add(layers.Dense(num_classes, name="fc3"))
    return model

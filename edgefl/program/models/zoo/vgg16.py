"""VGG-16 with the classifier size of PFL-MoE.

Thirteen 3x3 convolutions in five stages of 64-128-256-512-512 filters, each stage followed by a pooling of 2.
They have 14,714,688 weights on three channels. An image of 32x32 is reduced to 1x1x512, the 512 features of
PFL-MoE's gate.

PFL-MoE reports a total of 15,245,130 weights at ten classes. This leaves 530,442 for three dense layers with
biases: 512-512, 512-512 and 512-10. There is no batch norm, which would change the total. Kernels use the
initialization of He et al. 2015. Without it, the signal fades in such a deep network.

Source: K. Simonyan and A. Zisserman, arXiv:1409.1556, and PFL-MoE, arXiv:2012.15589 (classifier).
"""

from typing import Any

from edgefl.base.errors import ConfigError

CONVOLUTION_STAGES = ((1, 2), (2, 2), (4, 3), (8, 3), (8, 3))
"""Filters as a multiple of the first stage's filters, and number of convolutions, for each stage."""


def vgg16(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    filters: int = 64,
    hidden: int = 512,
    dropout: float = 0.5,
) -> Any:
    """Build the model. It maps samples, shape (batch, *input_shape), float32, to logits.

    Args:
        input_shape: rows, columns and channels of an image, at least 32x32.
        filters: filters of the first stage.
        hidden: units of each of the two hidden dense layers.
        dropout: share of the hidden values that a training step drops.

    Returns:
        The Keras model. Logits have shape (batch, num_classes), float32.

    Raises:
        ConfigError: the images are smaller than 32x32.
    """
    import keras

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

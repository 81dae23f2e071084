"""The CNN of LEAF with the sizes of Adaptive Expert Models.

conv5x5 f1, pool 2, conv5x5 f2, pool 2, FC hidden, dropout, FC classes. ReLU, no padding. The weights at
32x32x3 with ten classes are:

- cluster models, 128/32/1024: 942,634
- local models, 32/256/256: 1,848,714
- a gate over seven models, 12/12/8: 6,995

Source: S. Caldas et al., LEAF, arXiv:1812.01097, and M. Isaksson et al., Adaptive Expert Models for
Personalization in Federated Learning, 2022.
"""

from typing import Any

from edgefl.base.errors import ConfigError


def aem_cnn(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    filters1: int = 128,
    filters2: int = 32,
    hidden: int = 1024,
    dropout: float = 0.8,
) -> Any:
    """Build the model. It maps samples, shape (batch, *input_shape), float32, to logits.

    Args:
        input_shape: rows, columns and channels of an image, at least 16x16.
        filters1: filters of the first convolution.
        filters2: filters of the second convolution.
        hidden: units of the hidden dense layer.
        dropout: share of the hidden values that a training step drops.

    Returns:
        The Keras model. Logits have shape (batch, num_classes), float32.

    Raises:
        ConfigError: the images are smaller than 16x16.
    """
    import keras

    if len(input_shape) != 3 or min(input_shape[:2]) < 16:
        raise ConfigError(
            f"aem-cnn takes images of 16x16 or more, received input_shape {input_shape}; resize the data"
        )
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(input_shape, name="x"),
            layers.Conv2D(filters1, 5, activation="relu", name="conv1"),
            layers.MaxPooling2D(2, name="pool1"),
            layers.Conv2D(filters2, 5, activation="relu", name="conv2"),
            layers.MaxPooling2D(2, name="pool2"),
            layers.Flatten(name="flatten"),
            layers.Dense(hidden, activation="relu", name="fc1"),
            layers.Dropout(dropout, name="dropout"),
            layers.Dense(num_classes, name="fc2"),
        ],
        name="aem-cnn",
    )

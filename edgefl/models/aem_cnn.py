"""The CNN of LEAF (Caldas et al., arXiv:1812.01097) as Adaptive Expert Models (Isaksson et al. 2022) sizes
it.

conv5x5 f1, pool 2, conv5x5 f2, pool 2, FC hidden, dropout, FC classes; ReLU, no padding.
On 32x32x3 with ten classes: cluster models 128/32/1024 have 942,634 weights, local models 32/256/256
1,848,714, and a gate of 12/12/8 over seven models 6,995.
"""

from typing import Any

import keras

from edgefl.errors import ConfigError


def aem_cnn(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    filters1: int = 128,
    filters2: int = 32,
    hidden: int = 1024,
    dropout: float = 0.8,
) -> Any:
    """Return the model: float32[batch, *input_shape] -> logits float32[batch, num_classes].

    `dropout` is the share of hidden values that a training step drops. Raises ConfigError for images under
    16x16.
    """
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

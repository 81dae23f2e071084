"""LeNet-5 (LeCun et al. 1998, as in PFL-MoE, arXiv:2012.15589, table of networks).

conv5x5 6, pool 2, conv5x5 16, pool 2, flatten 400, FC 120, FC 84, FC classes; ReLU throughout. The classifier FC1-3 is
what PFL-MoE personalizes, the 400 flattened values are its features.
61,706 weights at 28x28x1 (the first convolution pads to keep 28x28), the same at 32x32x1 (no padding), 62,006 at 32x32x3.
"""

from typing import Any

import keras

from edgefl.errors import ConfigError


def lenet5(input_shape: tuple[int, ...], num_classes: int) -> Any:
    """Return the model: float32[batch, *input_shape] -> logits float32[batch, num_classes].

    Raises ConfigError for images of another size than 28x28 or 32x32.
    """
    if len(input_shape) != 3 or input_shape[:2] not in ((28, 28), (32, 32)):
        raise ConfigError(f"lenet5 takes images of 28x28 or 32x32, received input_shape {input_shape}; resize the data")
    padding = "same" if input_shape[0] == 28 else "valid"
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(input_shape, name="x"),
            layers.Conv2D(6, 5, padding=padding, activation="relu", name="conv1"),
            layers.MaxPooling2D(2, name="pool1"),
            layers.Conv2D(16, 5, activation="relu", name="conv2"),
            layers.MaxPooling2D(2, name="pool2"),
            layers.Flatten(name="flatten"),
            layers.Dense(120, activation="relu", name="fc1"),
            layers.Dense(84, activation="relu", name="fc2"),
            layers.Dense(num_classes, name="fc3"),
        ],
        name="lenet5",
    )

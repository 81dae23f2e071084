"""Multinomial logistic regression: the smallest model that federates, and the one whose gradient fits on a
line.
"""

from typing import Any

import keras


def softmax(input_shape: tuple[int, ...], num_classes: int) -> Any:
    """Return the model: float32[batch, *input_shape] -> logits float32[batch, num_classes]."""
    return keras.Sequential(
        [
            keras.Input(input_shape, name="x"),
            keras.layers.Flatten(name="flatten"),
            keras.layers.Dense(num_classes, name="fc"),
        ],
        name="softmax",
    )

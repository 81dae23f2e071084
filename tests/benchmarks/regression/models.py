"""The recurrent network of the regression benchmark."""

from typing import Any

import keras


def make_gru(input_shape: tuple[int, ...], num_classes: int, *, units: int = 16) -> Any:
    """Build a GRU over the readings of a window, and a dense layer.

    Args:
        input_shape: readings and channels of a window.
        num_classes: number of values to predict.
        units: units of the GRU.

    Returns:
        The Keras model. It maps windows, shape (batch, *input_shape), float32, to shape (batch, num_classes).
    """
    return keras.Sequential(
        [
            keras.Input(input_shape, name="x"),
            keras.layers.GRU(units, name="gru"),
            keras.layers.Dense(num_classes, name="fc"),
        ],
        name="gru_regression",
    )

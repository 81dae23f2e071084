"""Multinomial logistic regression: the smallest model for a federation, with a simple gradient."""

from typing import Any


def softmax(input_shape: tuple[int, ...], num_classes: int) -> Any:
    """Build the model. It maps samples, shape (batch, *input_shape), float32, to logits.

    Args:
        input_shape: shape of a sample.

    Returns:
        The Keras model. Logits have shape (batch, num_classes), float32.
    """
    import keras

    return keras.Sequential(
        [
            keras.Input(input_shape, name="x"),
            keras.layers.Flatten(name="flatten"),
            keras.layers.Dense(num_classes, name="fc"),
        ],
        name="softmax",
    )

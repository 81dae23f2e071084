"""The linear gate of PFL-MF (arXiv:2012.15589) for any number of experts: one dense layer on the flattened
sample.

Its `num_classes` are the experts. 2,050 weights at 32x32x1 over two experts, 6,146 at 32x32x3: with a softmax
over two outputs it is the paper's sigmoid over one, which the algorithm's own objective makes without a
model. The gate on features needs no model either.
"""

from typing import Any

import keras


def gate_pixels(input_shape: tuple[int, ...], num_classes: int) -> Any:
    """Return the model: float32[batch, *input_shape] -> logits of the experts float32[batch, num_classes]."""
    return keras.Sequential(
        [
            keras.Input(input_shape, name="x"),
            keras.layers.Flatten(name="flatten"),
            keras.layers.Dense(num_classes, name="fc"),
        ],
        name="gate-pixels",
    )

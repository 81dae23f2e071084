"""The linear gate of PFL-MF for any number of experts: one dense layer on the flattened sample.

`num_classes` is the number of experts. The gate has 2,050 weights at 32x32x1 over two experts, and 6,146 at
32x32x3. With a softmax over two outputs it equals the sigmoid over one output in the paper, which the
algorithm computes without a model. The gate on features needs no model either.

Source: B. Guo et al., PFL-MoE, arXiv:2012.15589.
"""

from typing import Any


def gate_pixels(input_shape: tuple[int, ...], num_classes: int) -> Any:
    """Build the model. It maps samples, shape (batch, *input_shape), float32, to logits of the experts.

    Args:
        input_shape: shape of a sample.
        num_classes: number of experts.

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
        name="gate-pixels",
    )

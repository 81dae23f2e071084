"""Five 3x3 convolutions and one dense layer, as in clustered federated learning on dense layers.

The paper states the number of layers and a size of 511 KB. Filters 32-64-64-64-64 with global average pooling
fit this size: 130,826 weights on three channels and ten classes, 511 KiB. The first three convolutions are
followed by a pooling of 2.

Source: A. Filippakopoulos et al., Personalization in Distributed tinyML Applications via Adaptive Clustered
Federated Learning.
"""

from typing import Any

from edgefl.base.errors import ConfigError

FILTERS = (32, 64, 64, 64, 64)
POOLED_LAYERS = 3


def five_conv(input_shape: tuple[int, ...], num_classes: int, *, initializer: str = "glorot") -> Any:
    """Build the model. It maps samples, shape (batch, *input_shape), float32, to logits.

    Args:
        input_shape: rows, columns and channels of an image, at least 8x8.
        initializer: `glorot`, or `fan-in`, which draws kernels and biases from +-1 / sqrt(fan in), as PyTorch
            does. The paper's threshold of .9 on weights needs fan-in, momentum .9 and a learning rate of .02.

    Returns:
        The Keras model. Logits have shape (batch, num_classes), float32.

    Raises:
        ConfigError: the images are smaller than 8x8, or the initializer is unknown.
    """
    import keras

    if len(input_shape) != 3 or min(input_shape[:2]) < 8:
        raise ConfigError(
            f"five-conv takes images of 8x8 or more, received input_shape {input_shape}; resize the data"
        )
    if initializer not in ("glorot", "fan-in"):
        raise ConfigError(f"five-conv has initializer {initializer!r}, expected glorot or fan-in")

    def make_initializers(fan_in: int) -> dict[str, Any]:
        if initializer == "glorot":
            return {}
        limit = fan_in**-0.5
        return {
            f"{part}_initializer": keras.initializers.RandomUniform(-limit, limit)
            for part in ("kernel", "bias")
        }

    layers = keras.layers
    channels = input_shape[2]
    model = keras.Sequential([keras.Input(input_shape, name="x")], name="five-conv")
    for index, filters in enumerate(FILTERS, 1):
        model.add(
            layers.Conv2D(
                filters,
                3,
                padding="same",
                activation="relu",
                name=f"conv{index}",
                **make_initializers(9 * channels),
            )
        )
        channels = filters
        if index <= POOLED_LAYERS:
            model.add(layers.MaxPooling2D(2, name=f"pool{index}"))
    model.add(layers.GlobalAveragePooling2D(name="average"))
    model.add(layers.Dense(num_classes, name="fc", **make_initializers(channels)))
    return model

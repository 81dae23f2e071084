"""A convolutional autoencoder for windows of sensors, sized for a microcontroller.

Two convolutions with stride 2 and a dense layer encode a window. A dense layer and two convolutions decode
it.
In place of upsampling, a convolution computes two neighbouring moments as channels, and a reshape puts them
one after the other (the sub-pixel convolution of W. Shi et al., CVPR 2016, in one dimension). The sizes are a
choice of this project.
"""

from typing import Any

from edgefl.base.errors import ConfigError


def conv_autoencoder(
    input_shape: tuple[int, ...], num_classes: int, *, filters1: int = 8, filters2: int = 16, code: int = 8
) -> Any:
    """Build the model. It maps windows, shape (batch, samples, channels), float32, to their reconstruction.

    Args:
        input_shape: samples and channels of a window. The number of samples is a multiple of 4.
        num_classes: number of values of a window.
        filters1: filters of the outer convolutions.
        filters2: filters of the inner convolutions.
        code: units of the narrow layer.

    Returns:
        The Keras model. The reconstruction has shape (batch, num_classes), float32, as a flattened window.

    Raises:
        ConfigError: the windows are not two-dimensional, or their length is not a multiple of 4.
    """
    import keras

    if len(input_shape) != 2 or input_shape[0] % 4:
        raise ConfigError(
            "conv-autoencoder takes windows (samples, channels) whose number of samples is a multiple of 4, "
            f"received input_shape {input_shape}; cut the data"
        )
    length, channels = input_shape
    quarter = length // 4
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(input_shape, name="x"),
            layers.Conv1D(filters1, 5, strides=2, padding="same", activation="relu", name="conv1"),
            layers.Conv1D(filters2, 5, strides=2, padding="same", activation="relu", name="conv2"),
            layers.Flatten(name="flatten"),
            layers.Dense(code, activation="relu", name="code"),
            layers.Dense(quarter * filters2, activation="relu", name="fc"),
            layers.Reshape((quarter, filters2), name="moments"),
            layers.Conv1D(2 * filters1, 5, padding="same", activation="relu", name="conv3"),
            layers.Reshape((length // 2, filters1), name="unfold1"),
            layers.Conv1D(2 * channels, 5, padding="same", name="conv4"),
            layers.Reshape((num_classes,), name="unfold2"),
        ],
        name="conv_autoencoder",
    )

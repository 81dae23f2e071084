"""A one-dimensional CNN for windows of inertial sensors, sized for a microcontroller.

conv5 32, pool 2, conv5 64, pool 2, global average pooling, FC 64, dropout, FC classes. ReLU, no padding. The
input is a window of UCI HAR: 128 samples at 50 Hz of nine channels (body acceleration, angular velocity,
total acceleration), six activities. The sizes are a choice of this project: 16,326 weights at (128, 9) and
six classes.

Source: the data are described by D. Anguita et al., ESANN 2013.
"""

from typing import Any

from edgefl.base.errors import ConfigError


def cnn1d(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    filters1: int = 32,
    filters2: int = 64,
    hidden: int = 64,
    dropout: float = 0.5,
) -> Any:
    """Build the model. It maps windows, shape (batch, samples, channels), float32, to logits.

    Args:
        input_shape: samples and channels of a window, at least 16 samples.
        filters1: filters of the first convolution.
        filters2: filters of the second convolution.
        hidden: units of the hidden dense layer.
        dropout: share of the hidden values that a training step drops.

    Returns:
        The Keras model. Logits have shape (batch, num_classes), float32.

    Raises:
        ConfigError: the windows are not two-dimensional, or are shorter than 16 samples.
    """
    import keras

    if len(input_shape) != 2 or input_shape[0] < 16:
        raise ConfigError(
            "cnn1d takes windows (samples, channels) of 16 samples or more, received input_shape "
            f"{input_shape}; cut the data"
        )
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(input_shape, name="x"),
            layers.Conv1D(filters1, 5, activation="relu", name="conv1"),
            layers.MaxPooling1D(2, name="pool1"),
            layers.Conv1D(filters2, 5, activation="relu", name="conv2"),
            layers.MaxPooling1D(2, name="pool2"),
            layers.GlobalAveragePooling1D(name="average"),
            layers.Dense(hidden, activation="relu", name="fc1"),
            layers.Dropout(dropout, name="dropout"),
            layers.Dense(num_classes, name="fc2"),
        ],
        name="cnn1d",
    )

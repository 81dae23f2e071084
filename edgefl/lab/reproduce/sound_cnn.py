"""A one-dimensional CNN with batch norms for sounds without features, for the benchmark of outcomes.

conv64 stride 8, 16, pool 4, conv3 32, pool 4, conv3 64, pool 4, global average pooling, FC. Each convolution
has a batch norm and a ReLU. The first filters are 8 ms long at 8 kHz. The sizes are a choice of this project.

Source: the order of layers follows the network M3 of W. Dai et al., Very deep convolutional neural networks
for raw waveforms, arXiv:1610.00087.
"""

from typing import Any

MOMENTUM = 0.9
"""Momentum of the moving statistics. The short local trainings need a lower value than the usual .99."""


def build_sound_cnn(input_shape: tuple[int, ...], num_classes: int) -> Any:
    """Build the model. It maps sounds, shape (batch, values, 1), float32, to logits.

    Args:
        input_shape: values and channels of a sound, at least 1,024 values.

    Returns:
        The Keras model. Logits have shape (batch, num_classes), float32.
    """
    import keras

    layers = keras.layers
    x = keras.Input(input_shape, name="x")
    y = x
    for number, (filters, size, stride) in enumerate([(16, 64, 8), (32, 3, 1), (64, 3, 1)], 1):
        y = layers.Conv1D(filters, size, strides=stride, padding="same", name=f"conv{number}")(y)
        y = layers.BatchNormalization(momentum=MOMENTUM, name=f"norm{number}")(y)
        y = layers.ReLU(name=f"relu{number}")(y)
        y = layers.MaxPooling1D(4, name=f"pool{number}")(y)
    y = layers.GlobalAveragePooling1D(name="average")(y)
    return keras.Model(x, layers.Dense(num_classes, name="fc")(y), name="sound_cnn")

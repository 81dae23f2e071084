"""DS-CNN for keyword spotting, as in MLPerf Tiny.

conv10x4 with stride 2 and dropout .2, four blocks of depthwise 3x3 and conv1x1, dropout .4, global average
pooling, FC classes. Each convolution has a batch norm and a ReLU.

The model has 24,908 weights at 49x10x1 and twelve classes, 1,152 of them moving statistics.

Source: Y. Zhang et al., arXiv:1711.07128; C. Banbury et al., arXiv:2106.07597, section 4.
"""

from typing import Any

from edgefl.base.errors import ConfigError
from edgefl.program.models.zoo.norm_relu import add_norm_relu

NUM_BLOCKS = 4


def ds_cnn(
    input_shape: tuple[int, ...], num_classes: int, *, filters: int = 64, momentum: float = 0.9
) -> Any:
    """Build the model. It maps samples, shape (batch, *input_shape), float32, to logits.

    Args:
        input_shape: time steps, coefficients and channels of a sound, at least 2x2.
        filters: filters of each convolution.
        momentum: momentum of the moving statistics. The short local trainings of a federation need a lower
            value than the usual .99.

    Returns:
        The Keras model. Logits have shape (batch, num_classes), float32.

    Raises:
        ConfigError: the samples are smaller than 2x2.
    """
    import keras

    if len(input_shape) != 3 or min(input_shape[:2]) < 2:
        raise ConfigError(
            f"ds-cnn takes samples of 2x2 or more, 49x10 in the paper, received input_shape {input_shape}; "
            "write the data as (time steps, coefficients, 1)"
        )
    layers = keras.layers
    x = keras.Input(input_shape, name="x")
    y = layers.Conv2D(filters, (10, 4), strides=2, padding="same", name="conv")(x)
    y = layers.Dropout(0.2, name="dropout1")(add_norm_relu(y, momentum, "conv"))
    for block in range(1, NUM_BLOCKS + 1):
        y = layers.DepthwiseConv2D(3, padding="same", name=f"block{block}_depthwise")(y)
        y = add_norm_relu(y, momentum, f"block{block}_depthwise")
        y = layers.Conv2D(filters, 1, name=f"block{block}_pointwise")(y)
        y = add_norm_relu(y, momentum, f"block{block}_pointwise")
    y = layers.Dropout(0.4, name="dropout2")(y)
    y = layers.GlobalAveragePooling2D(name="average")(y)
    return keras.Model(x, layers.Dense(num_classes, name="fc")(y), name="ds_cnn")

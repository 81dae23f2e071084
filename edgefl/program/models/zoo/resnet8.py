"""ResNet-8 for small images with batch norm, as in MLPerf Tiny.

conv3x3 16, then a block each with 16, 32 and 64 filters, global average pooling, FC classes. The second and
third block halve the image. A block is relu(shortcut(x) + norm(conv3x3(relu(norm(conv3x3(x)))))). Where the
size changes, the shortcut is a conv1x1.

The model has 78,666 weights at 32x32x3 and ten classes, 480 of them moving statistics.

Source: K. He et al. 2016, arXiv:1512.03385; C. Banbury et al., arXiv:2106.07597, section 4.
"""

from typing import Any

from edgefl.base.errors import ConfigError


def resnet8(input_shape: tuple[int, ...], num_classes: int, *, width: int = 16, momentum: float = 0.9) -> Any:
    """Build the model. It maps samples, shape (batch, *input_shape), float32, to logits.

    Args:
        input_shape: rows, columns and channels of an image, at least 4x4.
        width: filters of the first block.
        momentum: momentum of the moving statistics. The short local trainings of a federation need a lower
            value than the usual .99.

    Returns:
        The Keras model. Logits have shape (batch, num_classes), float32.

    Raises:
        ConfigError: the images are smaller than 4x4.
    """
    import keras

    if len(input_shape) != 3 or min(input_shape[:2]) < 4:
        raise ConfigError(
            f"resnet8 takes images of 4x4 or more, 32x32 in the paper, received input_shape {input_shape}; "
            "resize the data"
        )
    layers = keras.layers
    x = keras.Input(input_shape, name="x")
    y = layers.ReLU(name="relu")(_add_convolution(x, width, 1, momentum, "conv"))
    for block in range(3):
        name = f"block{block + 1}"
        stride = 2 if block else 1
        z = _add_convolution(y, width << block, stride, momentum, f"{name}_conv1")
        z = _add_convolution(
            layers.ReLU(name=f"{name}_relu1")(z), width << block, 1, momentum, f"{name}_conv2"
        )
        if stride > 1:
            y = layers.Conv2D(width << block, 1, strides=stride, padding="same", name=f"{name}_shortcut")(y)
        y = layers.ReLU(name=f"{name}_relu2")(layers.Add(name=f"{name}_add")([y, z]))
    y = layers.GlobalAveragePooling2D(name="average")(y)
    return keras.Model(x, layers.Dense(num_classes, name="fc")(y), name="resnet8")


def _add_convolution(x: Any, filters: int, stride: int, momentum: float, name: str) -> Any:
    import keras

    y = keras.layers.Conv2D(
        filters, 3, strides=stride, padding="same", kernel_initializer="he_normal", name=name
    )(x)
    return keras.layers.BatchNormalization(momentum=momentum, name=f"{name}_norm")(y)

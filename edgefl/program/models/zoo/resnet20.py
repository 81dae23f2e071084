"""ResNet-20 for small images, with group norm.

conv3x3 16, then three stages of three blocks with 16-32-64 filters, global average pooling, FC classes. The
second and third stage halve the image. A block is relu(x + norm(conv3x3(relu(norm(conv3x3(x)))))). Where the
size changes, the shortcut takes every second pixel and fills the new channels with zeros, without weights
(option A of the paper).

The model has 269,722 weights at 32x32x3 and ten classes: 267,696 in convolutions, 1,376 in norms and 650 in
the classifier. It has 275,572 weights at 100 classes. FedMix (M. Reisser et al. 2021) trains it on CIFAR-100.
Batch norm statistics describe the batches of one client, so their average over clients means little. A group
norm has no such statistics.

Source: K. He et al. 2016, arXiv:1512.03385, section 4.2, and Y. Wu and K. He, arXiv:1803.08494 (group norm).
"""

from typing import Any

from edgefl.base.errors import ConfigError

BLOCKS_PER_STAGE = 3


def resnet20(input_shape: tuple[int, ...], num_classes: int, *, width: int = 16, groups: int = 2) -> Any:
    """Build the model. It maps samples, shape (batch, *input_shape), float32, to logits.

    Args:
        input_shape: rows, columns and channels of an image, at least 8x8.
        width: filters of the first stage.
        groups: number of groups of each norm. It must divide the width.

    Returns:
        The Keras model. Logits have shape (batch, num_classes), float32.

    Raises:
        ConfigError: the images are smaller than 8x8, or the groups do not divide the width.
    """
    import keras

    if len(input_shape) != 3 or min(input_shape[:2]) < 8:
        raise ConfigError(
            f"resnet20 takes images of 8x8 or more, 32x32 in the paper, received input_shape {input_shape}; "
            "resize the data"
        )
    if groups < 1 or width < 1 or width % groups:
        raise ConfigError(
            f"resnet20 has {groups} groups for a width of {width}, expected groups that divide it, such as "
            f"1, 2 or {width}"
        )
    x = keras.Input(input_shape, name="x")
    y = _add_convolution(x, width, 1, "conv")
    y = keras.layers.ReLU(name="relu")(keras.layers.GroupNormalization(groups, name="norm")(y))
    for stage in range(3):
        for block in range(BLOCKS_PER_STAGE):
            y = _add_block(
                y,
                width << stage,
                2 if stage and not block else 1,
                groups,
                f"stage{stage + 1}_block{block + 1}",
            )
    y = keras.layers.GlobalAveragePooling2D(name="average")(y)
    return keras.Model(x, keras.layers.Dense(num_classes, name="fc")(y), name="resnet20")


def _add_block(x: Any, filters: int, stride: int, groups: int, name: str) -> Any:
    import keras

    layers = keras.layers
    y = _add_convolution(x, filters, stride, f"{name}_conv1")
    y = layers.ReLU(name=f"{name}_relu1")(layers.GroupNormalization(groups, name=f"{name}_norm1")(y))
    y = layers.GroupNormalization(groups, name=f"{name}_norm2")(
        _add_convolution(y, filters, 1, f"{name}_conv2")
    )
    if stride > 1:  # a pooling over one pixel is the cheapest way to take every second pixel
        x = layers.MaxPooling2D(1, strides=stride, name=f"{name}_every_other")(x)
    if filters > x.shape[3]:
        before = (filters - x.shape[3]) // 2
        x = keras.ops.pad(x, [[0, 0], [0, 0], [0, 0], [before, filters - x.shape[3] - before]])
    return layers.ReLU(name=f"{name}_relu2")(layers.Add(name=f"{name}_add")([x, y]))


def _add_convolution(x: Any, filters: int, stride: int, name: str) -> Any:
    import keras

    return keras.layers.Conv2D(
        filters, 3, strides=stride, padding="same", use_bias=False, kernel_initializer="he_normal", name=name
    )(x)

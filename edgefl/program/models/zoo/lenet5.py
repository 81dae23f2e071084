"""LeNet-5, with the sizes of PFL-MoE and of FedMix.

conv5x5 6, pool 2, conv5x5 16, pool 2, flatten, FC 120, FC 84, FC classes. ReLU throughout. PFL-MoE
personalizes the classifier FC1-3, and the flattened values are its features.

- PFL-MoE: 61,706 weights at 28x28x1 (the first convolution pads to keep 28x28) and at 32x32x1 (no padding),
  62,006 at 32x32x3, all with 400 features.
- FedMix: 44,426 weights at 28x28x1 without padding, `padding="valid"`, with 256 features.

Source: Y. LeCun et al. 1998, with the sizes of PFL-MoE (arXiv:2012.15589) and of FedMix (M. Reisser et al.
2021, arXiv:2107.06724).
"""

from typing import Any

from edgefl.base.errors import ConfigError


def lenet5(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    padding: str = "auto",
    filters1: int = 6,
    filters2: int = 16,
    initializer: str = "glorot",
) -> Any:
    """Build the model. It maps samples, shape (batch, *input_shape), float32, to logits.

    Args:
        input_shape: rows, columns and channels of an image, 28x28 or 32x32.
        padding: padding of the first convolution: `valid`, `same`, or `auto`, which is `same` at 28x28 and
            `valid` at 32x32.
        filters1: filters of the first convolution.
        filters2: filters of the second convolution.
        initializer: `glorot`, or `fan-in`, which draws kernels and biases from +-1 / sqrt(fan in). These are
            smaller, so the first rounds are slower. The experiments of the papers start this way.

    Returns:
        The Keras model. Logits have shape (batch, num_classes), float32.

    Raises:
        ConfigError: the images are neither 28x28 nor 32x32, or the padding or initializer is unknown.
    """
    import keras

    if len(input_shape) != 3 or input_shape[:2] not in ((28, 28), (32, 32)):
        raise ConfigError(
            f"lenet5 takes images of 28x28 or 32x32, received input_shape {input_shape}; resize the data"
        )
    if padding not in ("auto", "same", "valid"):
        raise ConfigError(f"lenet5 has padding {padding!r}, expected auto, same or valid")
    if initializer not in ("glorot", "fan-in"):
        raise ConfigError(f"lenet5 has initializer {initializer!r}, expected glorot or fan-in")
    if padding == "auto":
        padding = "same" if input_shape[0] == 28 else "valid"
    layers = keras.layers
    rows = input_shape[0] if padding == "same" else input_shape[0] - 4
    flat = ((rows // 2 - 4) // 2) ** 2 * filters2

    def make_initializers(fan_in: int) -> dict[str, Any]:
        if initializer == "glorot":
            return {}
        limit = fan_in**-0.5
        return {
            f"{part}_initializer": keras.initializers.RandomUniform(-limit, limit)
            for part in ("kernel", "bias")
        }

    return keras.Sequential(
        [
            keras.Input(input_shape, name="x"),
            layers.Conv2D(
                filters1,
                5,
                padding=padding,
                activation="relu",
                name="conv1",
                **make_initializers(25 * input_shape[2]),
            ),
            layers.MaxPooling2D(2, name="pool1"),
            layers.Conv2D(filters2, 5, activation="relu", name="conv2", **make_initializers(25 * filters1)),
            layers.MaxPooling2D(2, name="pool2"),
            layers.Flatten(name="flatten"),
            layers.Dense(120, activation="relu", name="fc1", **make_initializers(flat)),
            layers.Dense(84, activation="relu", name="fc2", **make_initializers(120)),
            layers.Dense(num_classes, name="fc3", **make_initializers(84)),
        ],
        name="lenet5",
    )

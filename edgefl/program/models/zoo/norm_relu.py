"""A batch norm and a ReLU, as behind the convolutions of the mobile models."""

from typing import Any


def add_norm_relu(x: Any, momentum: float, name: str, max_value: float | None = None) -> Any:
    """Return the output of a batch norm and a ReLU, which are named `NAME_norm` and `NAME_relu`.

    Args:
        x: the symbolic input.
        momentum: momentum of the moving statistics.
        name: name of the convolution before them.
        max_value: largest output of the ReLU. With None there is no limit.
    """
    import keras

    y = keras.layers.BatchNormalization(momentum=momentum, name=f"{name}_norm")(x)
    return keras.layers.ReLU(max_value, name=f"{name}_relu")(y)

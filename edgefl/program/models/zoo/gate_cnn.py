"""The gate of Adaptive Expert Models: the LEAF CNN at 12/12/8 with dropout .78.

`num_classes` is the number of experts. The gate has 6,995 weights at 32x32x3 over seven experts: six cluster
models and a local model.

Source: M. Isaksson et al., Adaptive Expert Models for Personalization in Federated Learning, 2022.
"""

from typing import Any

from edgefl.program.models.zoo.aem_cnn import aem_cnn


def gate_cnn(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    filters1: int = 12,
    filters2: int = 12,
    hidden: int = 8,
    dropout: float = 0.78,
) -> Any:
    """Build the model. It maps samples, shape (batch, *input_shape), float32, to logits of the experts.

    The options are those of `aem-cnn`.

    Args:
        input_shape: rows, columns and channels of an image, at least 16x16.
        num_classes: number of experts.
        filters1: filters of the first convolution.
        filters2: filters of the second convolution.
        hidden: units of the hidden dense layer.
        dropout: share of the hidden values that a training step drops.

    Returns:
        The Keras model. Logits have shape (batch, num_classes), float32.

    Raises:
        ConfigError: the images are smaller than 16x16.
    """
    return aem_cnn(
        input_shape, num_classes, filters1=filters1, filters2=filters2, hidden=hidden, dropout=dropout
    )

"""The gate of Adaptive Expert Models (Isaksson et al. 2022): the LEAF CNN at 12/12/8 with dropout .78.

Its `num_classes` are the experts: 6,995 weights at 32x32x3 over seven, six cluster models and a local one.
"""

from typing import Any

from edgefl.models.aem_cnn import aem_cnn


def gate_cnn(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    filters1: int = 12,
    filters2: int = 12,
    hidden: int = 8,
    dropout: float = 0.78,
) -> Any:
    """Return the model: float32[batch, *input_shape] -> logits of the experts float32[batch, num_classes].

    Options as those of `aem-cnn`. Raises ConfigError for images under 16x16.
    """
    return aem_cnn(
        input_shape, num_classes, filters1=filters1, filters2=filters2, hidden=hidden, dropout=dropout
    )

"""Mixes the probabilities of experts with ops that have an int8 form: products and sums, but no reduction
over experts.

Softmax turns the logarithm of mixed probabilities back into the probabilities. So the loss of a mixture is
computed as for any classifier. The logarithm has no int8 form. The export template ends with the
probabilities themselves, which have the same order.
"""

from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any

import tensorflow as tf

Tensor = Any
MIN_PROBABILITY = 1e-7  # Keeps the logarithm finite for a probability that is zero in float32


def weighted_sum(shares: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
    """Return sum_k shares_k values_k. The sum is computed pair by pair.

    Args:
        shares: the share of each expert, float32[batch, 1], float32[1] or a number.
        values: the values of each expert, float32[batch, n].

    Returns:
        float32[batch, n].
    """
    return reduce(add, [share * value for share, value in zip(shares, values, strict=True)])


def mix_probabilities(shares: Sequence[Tensor], logits: Sequence[Tensor]) -> Tensor:
    """Return sum_k shares_k softmax(logits_k), float32[batch, classes].

    Args:
        shares: the share of each expert, float32[batch, 1], float32[1] or a number.
        logits: the logits of each expert, float32[batch, classes].
    """
    return weighted_sum(shares, [tf.nn.softmax(expert_logits) for expert_logits in logits])


def mix_log_probabilities(shares: Sequence[Tensor], logits: Sequence[Tensor]) -> Tensor:
    """Return the logarithm of mixed probabilities plus 1e-7, from which softmax makes the probabilities.

    Args:
        shares: the share of each expert, float32[batch, 1], float32[1] or a number.
        logits: the logits of each expert, float32[batch, classes].

    Returns:
        float32[batch, classes].
    """
    return tf.math.log(mix_probabilities(shares, logits) + MIN_PROBABILITY)


def split_columns(values: Tensor) -> list[Tensor]:
    """Return the columns of a matrix. It uses a split, because TFLite has no gradient of a slice.

    Args:
        values: float32[batch, k].

    Returns:
        k tensors, float32[batch, 1].
    """
    count = int(values.shape[1])
    return list(tf.split(values, count, axis=1)) if count > 1 else [values]

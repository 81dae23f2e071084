"""Mixing experts by probabilities, of ops that have an int8 form: products and sums, no reduction over the
experts.

The logarithm of the mixed probability is what a softmax turns back into it, so a mixture is measured as any
classifier is.
It has no int8 form: the export template ends with the probabilities themselves, which have the same order.
"""

from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any

import tensorflow as tf

Tensor = Any
MIN_PROBABILITY = 1e-7  # keeps the logarithm of a probability that is zero in float32


def weighted_sum(shares: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
    """Return sum_k shares_k values_k, added up pair by pair."""
    return reduce(add, [share * value for share, value in zip(shares, values, strict=True)])


def mix_probabilities(shares: Sequence[Tensor], logits: Sequence[Tensor]) -> Tensor:
    """Return sum_k shares_k softmax(logits_k), float32[batch, classes].

    Args:
        shares: the share of each expert, float32[batch, 1], float32[1] or a number.
        logits: the logits of each expert, float32[batch, classes].
    """
    return weighted_sum(shares, [tf.nn.softmax(expert_logits) for expert_logits in logits])


def mix_log_probabilities(shares: Sequence[Tensor], logits: Sequence[Tensor]) -> Tensor:
    """Return log(mixed + 1e-7): float32[batch, classes], what softmax turns into the mixed probabilities."""
    return tf.math.log(mix_probabilities(shares, logits) + MIN_PROBABILITY)


def split_columns(values: Tensor) -> list[Tensor]:
    """Return the columns float32[batch, 1] of float32[batch, k], by a split: of a slice, TFLite knows no
    gradient.
    """
    count = int(values.shape[1])
    return list(tf.split(values, count, axis=1)) if count > 1 else [values]

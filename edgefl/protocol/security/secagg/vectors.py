"""Encodes the deltas of one or several models as one vector, and decodes the mean of a sum of vectors.

A vector contains the models in the order of their names. Each model consists of its weights, in the order of
their names, and the number of samples that trained it. A client that trains one of several models still sends
a vector for all models. So the vector does not reveal which model the client trained.
"""

from collections.abc import Mapping

import numpy as np

from edgefl.base.errors import WireError
from edgefl.base.types import Weights
from edgefl.protocol.security.secagg.masking import FixedPointVector, to_mean, to_vector

Shapes = Mapping[str, Mapping[str, tuple[int, ...]]]
"""Shape of each weight, by model name and weight name."""


def list_shapes(models: Mapping[str, Weights]) -> Shapes:
    """Return the shapes of the models' weights."""
    return {
        model: {name: array.shape for name, array in weights.items()} for model, weights in models.items()
    }


def measure_vector(shapes: Shapes) -> int:
    """Return the number of elements of a vector: all weights, and one number of samples for each model.

    Args:
        shapes: shape of each weight, by model name.
    """
    return sum(_count_values(weights) + 1 for weights in shapes.values())


def encode_deltas(deltas: Mapping[str, Weights], samples: int, shapes: Shapes) -> FixedPointVector:
    """Return the vector of a client.

    Args:
        deltas: delta by weight name, by model name, float32. A model without a delta is all zeros, and its
            number of samples is 0.
        shapes: shape of each weight, by model name.

    Returns:
        The vector, shape (measure_vector(shapes),), uint64.

    Raises:
        DataError: a value or the number of samples is too large, see `to_vector`.
    """
    parts = []
    for model, weights in sorted(shapes.items()):
        if model in deltas:
            values = np.concatenate(
                [deltas[model][name].ravel() for name in sorted(weights)], dtype=np.float64
            )
            parts.append(to_vector(values, samples))
        else:
            parts.append(np.zeros(_count_values(weights) + 1, np.uint64))
    return np.concatenate(parts)


def decode_means(total: FixedPointVector, shapes: Shapes, max_samples: int) -> dict[str, Weights]:
    """Return the mean delta of each model over samples.

    Args:
        total: sum of vectors, shape (measure_vector(shapes),), uint64.
        shapes: shape of each weight, by model name.
        max_samples: sum of the numbers of samples that the clients announced.

    Returns:
        Mean delta by weight name, by model name, float32. Models that no client trained are missing.

    Raises:
        WireError: a model counts more than `max_samples` samples, because a mask was not removed.
    """
    means: dict[str, Weights] = {}
    start = 0
    for model, weights in sorted(shapes.items()):
        end = start + _count_values(weights) + 1
        if not 0 <= (count := int(total[end - 1])) <= max_samples:
            raise WireError(
                f"the sum of {model} counts {count} samples, expected at most {max_samples}; a client's "
                "mask was not removed"
            )
        mean = to_mean(total[start:end])
        start = end
        if mean is None:
            continue
        names = sorted(weights)
        ends = np.cumsum([_count_elements(weights[name]) for name in names])
        parts = dict(zip(names, np.split(mean, ends[:-1]), strict=True))
        means[model] = {
            name: np.asarray(parts[name].reshape(shape), np.float32) for name, shape in weights.items()
        }
    return means


def _count_values(weights: Mapping[str, tuple[int, ...]]) -> int:
    return sum(_count_elements(shape) for shape in weights.values())


def _count_elements(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64))

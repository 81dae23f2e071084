"""The deltas of one or several models as one vector of words, and the means that a sum of such vectors tells.

By model in the order of their names, its weights in the order of theirs, then its number of samples: so that
clients which train one of several models send as much as if they had trained all, and do not tell which.
"""

from collections.abc import Mapping

import numpy as np

from edgefl.errors import WireError
from edgefl.security.secagg.masking import FixedPointVector, to_mean, to_vector
from edgefl.types import Weights

Shapes = Mapping[str, Mapping[str, tuple[int, ...]]]
"""Of each weight, by model."""


def list_shapes(models: Mapping[str, Weights]) -> Shapes:
    """Return the shapes of these models' weights."""
    return {
        model: {name: array.shape for name, array in weights.items()} for model, weights in models.items()
    }


def measure_vector(shapes: Shapes) -> int:
    """Return the number of words."""
    return sum(_count_values(weights) + 1 for weights in shapes.values())


def encode_deltas(deltas: Mapping[str, Weights], samples: int, shapes: Shapes) -> FixedPointVector:
    """Return the vector, uint64[size_of(shapes)]; a model without a delta counts no samples.

    DataError, see `to_words`.
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
    """Return each model's mean delta over samples, float32; without those that nobody trained.

    Raises WireError when a model counts more samples than `most`, those of all clients: a mask is left on the
    sum then.
    """
    means: dict[str, Weights] = {}
    start = 0
    for model, weights in sorted(shapes.items()):
        end = start + _count_values(weights) + 1
        if not 0 <= (count := int(total[end - 1])) <= max_samples:
            raise WireError(
                f"the sum of {model} counts {count} samples, expected at most {max_samples}: a client's "
                f"mask is "
                "still on it"
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

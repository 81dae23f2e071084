"""Samples that are far from the others of their class."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgefl.data.inspection.records import ReadableSamples
from edgefl.types import Array

MAX_DESCRIBED_CHANNELS = 32
"""Samples of more channels are described by all their values together."""
OUTLIER_DISTANCE = 10.0
"""Distance from the median of its class, in robust standard deviations, of an outlier."""
LEAST_FOR_OUTLIERS = 8
MAD_TO_SIGMA = 1.4826
TAILS = (5, 95)
TAILS_TO_SIGMA = 3.29


def find_outliers(devices: Sequence[ReadableSamples]) -> list[NDArray[np.bool_]]:
    """Return for each device which samples are far from the others of their class, over all devices.

    The mean and the standard deviation of each channel describe a sample. Far means more than
    `OUTLIER_DISTANCE` robust standard deviations from the median of its class: those of the class (median
    absolute deviation times 1.4826) and those of all samples (from the 5th to the 95th percentile, by 3.29).
    """
    flags = [np.zeros(len(each.x), bool) for each in devices]
    by_shape: dict[tuple[int, ...], list[int]] = {}
    for index, each in enumerate(devices):
        if each.x.size:
            by_shape.setdefault(each.x.shape[1:], []).append(index)
    for indices in by_shape.values():
        features = np.concatenate([_features(devices[i].x) for i in indices])
        known = [y for i in indices if (y := devices[i].y) is not None]
        labels = np.concatenate(known) if len(known) == len(indices) else np.zeros(len(features), np.int64)
        low, high = np.percentile(features, TAILS, axis=0)
        usual = np.where(high > low, (high - low) / TAILS_TO_SIGMA, features.std(axis=0))
        far = np.zeros(len(features), bool)
        for label in np.unique(labels):
            own = np.flatnonzero(labels == label)
            if len(own) < LEAST_FOR_OUTLIERS:
                continue
            distance = np.abs(features[own] - np.median(features[own], axis=0))
            sigma = np.maximum(MAD_TO_SIGMA * np.median(distance, axis=0), usual)
            far[own] = (distance > OUTLIER_DISTANCE * sigma).any(axis=1)
        ends = np.cumsum([len(devices[i].x) for i in indices])
        for i, part in zip(indices, np.split(far, ends[:-1]), strict=True):
            flags[i] = part
    return flags


def _features(x: Array) -> NDArray[np.float64]:
    """Return mean and standard deviation of each channel, float64[n, features]; of all values beyond 32."""
    channels = x.shape[-1] if x.shape[-1] <= MAX_DESCRIBED_CHANNELS else 1
    values = x.reshape(len(x), -1, channels)
    return np.concatenate(
        [values.mean(axis=1, dtype=np.float64), values.std(axis=1, dtype=np.float64)], axis=1
    )

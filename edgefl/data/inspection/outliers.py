"""Finds samples that are far from the others of their class."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgefl.base.types import Array
from edgefl.data.inspection.records import ReadableSamples

MAX_DESCRIBED_CHANNELS = 32
"""With more channels, statistics are computed over all values of a sample together."""
OUTLIER_DISTANCE = 10.0
"""Minimum distance of an outlier from the median of its class, in robust standard deviations."""
MIN_CLASS_SAMPLES = 8
MAD_TO_SIGMA = 1.4826
TAIL_PERCENTILES = (5, 95)
TAILS_TO_SIGMA = 3.29


def find_outliers(devices: Sequence[ReadableSamples]) -> list[NDArray[np.bool_]]:
    """Return which samples of each device are far from the others of their class, over all devices.

    A sample is described by the mean and the standard deviation of each channel. It is an outlier if one of
    these differs from the median of its class by more than `OUTLIER_DISTANCE` robust standard deviations. The
    robust standard deviation is the larger of two estimates: 1.4826 times the median absolute deviation of
    the class, and the range from the 5th to the 95th percentile of all samples divided by 3.29.

    Returns:
        For each device one flag per sample, shape (n,), bool.
    """
    flags = [np.zeros(len(device.x), bool) for device in devices]
    by_shape: dict[tuple[int, ...], list[int]] = {}
    for index, device in enumerate(devices):
        if device.x.size:
            by_shape.setdefault(device.x.shape[1:], []).append(index)
    for indices in by_shape.values():
        features = np.concatenate([_measure_features(devices[i].x) for i in indices])
        label_parts = [y for i in indices if (y := devices[i].y) is not None]
        labels = (
            np.concatenate(label_parts)
            if len(label_parts) == len(indices)
            else np.zeros(len(features), np.int64)
        )
        low, high = np.percentile(features, TAIL_PERCENTILES, axis=0)
        usual = np.where(high > low, (high - low) / TAILS_TO_SIGMA, features.std(axis=0))
        far = np.zeros(len(features), bool)
        for label in np.unique(labels):
            members = np.flatnonzero(labels == label)
            if len(members) < MIN_CLASS_SAMPLES:
                continue
            distance = np.abs(features[members] - np.median(features[members], axis=0))
            sigma = np.maximum(MAD_TO_SIGMA * np.median(distance, axis=0), usual)
            far[members] = (distance > OUTLIER_DISTANCE * sigma).any(axis=1)
        ends = np.cumsum([len(devices[i].x) for i in indices])
        for i, part in zip(indices, np.split(far, ends[:-1]), strict=True):
            flags[i] = part
    return flags


def _measure_features(x: Array) -> NDArray[np.float64]:
    """Return mean and standard deviation of each channel, or of all values with more than 32 channels."""
    channels = x.shape[-1] if x.shape[-1] <= MAX_DESCRIBED_CHANNELS else 1
    values = x.reshape(len(x), -1, channels)
    return np.concatenate(
        [values.mean(axis=1, dtype=np.float64), values.std(axis=1, dtype=np.float64)], axis=1
    )

"""What samples look like that is probably a mistake: a line for each, with the change that mends it."""

from collections.abc import Sequence

import numpy as np

from edgefl.types import Array, Labels

SMALLEST_PICTURE = 8
MOST_CHANNELS = 4


def hints_of_samples(x: Array) -> list[str]:
    """Return a line for each probable mistake in samples x float32[n, *shape], as they are trained on."""
    shape = x.shape[1:]
    found = []
    by = "x".join(map(str, shape))
    if len(shape) == 2 and shape[0] == shape[1] >= SMALLEST_PICTURE:
        found.append(
            f"samples of {by} are taken as {shape[0]} readings of {shape[1]} channels; if they are pictures, "
            "add the channel: x[..., None]"
        )
    picture = len(shape) == 3
    if picture and shape[0] in (1, 3) and min(shape[1:]) >= SMALLEST_PICTURE and shape[2] > MOST_CHANNELS:
        found.append(
            f"samples of {by} seem to have their channels first, expected last; write x.transpose(0, 2, 3, 1)"
        )
    square = len(shape) == 2 and shape[0] == shape[1]
    low, high = (float(x.min()), float(x.max())) if x.size else (0.0, 0.0)
    if (picture or square) and low >= 0 and 16 < high <= 255 and bool(np.all(x == np.round(x))):
        found.append(
            f"the values go up to {high:g} as floats, expected 0 to 1; write x / 255, or keep them as uint8, "
            "which is scaled"
        )
    return found


def hints_of_labels(labels: Sequence[Labels]) -> list[str]:
    """Return a line when no device has a label 0. labels: int64[n] of each device."""
    lowest = min(int(y.min()) for y in labels)
    highest = max(int(y.max()) for y in labels)
    if lowest == 0:
        return []
    return [
        f"labels go from {lowest} to {highest}: that makes {highest + 1} classes, and nobody here has a "
        f"sample of the first {lowest}; number them from 0, y - {lowest}, unless other devices have these"
    ]

"""Rotates pictures about their centre: bilinear between pixels, zero outside, exact for quarter turns."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.base.errors import DataError
from edgefl.base.types import Array, Labels


def rotate(images: Array, degrees: float) -> Array:
    """Rotate pictures counter-clockwise.

    Args:
        images: pictures, shape (n, height, width, channels), float32.
        degrees: angle in degrees.

    Returns:
        Rotated pictures of the same shape, float32.

    Raises:
        DataError: the samples are not pictures.
    """
    if images.ndim != 4:
        raise DataError(
            f"samples of shape {images.shape[1:]}, expected pictures [height, width, channels]; only "
            "pictures can be rotated"
        )
    height, width = images.shape[1:3]
    if degrees % 360 == 0:
        return images
    if degrees % 90 == 0 and (height == width or degrees % 180 == 0):
        return np.ascontiguousarray(np.rot90(images, int(degrees // 90) % 4, axes=(1, 2)))
    return rotate_by_angles(images, np.full(len(images), degrees))


def rotate_by_turns(images: Array, turns: Labels, degrees: float) -> Array:
    """Rotate each picture by a number of steps.

    Args:
        images: pictures, shape (n, height, width, channels), float32.
        turns: number of steps of each picture, shape (n,), int64.
        degrees: size of a step in degrees, counter-clockwise.

    Returns:
        Rotated pictures of the same shape, float32.

    Raises:
        DataError: the samples are not pictures.
    """
    turned = images.copy()
    for turn in np.unique(turns):
        selected = turns == turn
        turned[selected] = rotate(images[selected], float(turn) * degrees)
    return turned


def rotate_by_angles(images: Array, degrees: NDArray[np.floating[Any]]) -> Array:
    """Rotate each picture by its own angle: bilinear between pixels, and zero outside.

    It is as fast for different angles as for equal ones, so it suits the batches of a training.

    Args:
        images: pictures, shape (n, height, width, channels), float32.
        degrees: angle of each picture in degrees, counter-clockwise, shape (n,).

    Returns:
        Rotated pictures of the same shape, float32.
    """
    count, height, width, channels = images.shape
    # One pixel of zeros before and two behind: the four neighbours of a clipped position exist.
    padded = np.zeros((channels, count, height + 3, width + 3), np.float32)
    padded[:, :, 1:-2, 1:-2] = images.transpose(3, 0, 1, 2)
    # Arrays change in place from here, because new arrays take longer than the arithmetic.
    angle = np.deg2rad(np.asarray(degrees, np.float64))[:, None, None]
    cos = np.cos(angle).astype(np.float32)
    sin = np.sin(angle).astype(np.float32)
    row = np.arange(height, dtype=np.float32)[:, None] - np.float32((height - 1) / 2)
    column = np.arange(width, dtype=np.float32)[None, :] - np.float32((width - 1) / 2)
    down = cos * row + (sin * column + np.float32((height + 1) / 2))
    right = cos * column - (sin * row - np.float32((width + 1) / 2))
    np.clip(down, 0, height + 1, out=down)
    np.clip(right, 0, width + 1, out=right)
    first = down.astype(np.int32)
    left = right.astype(np.int32)
    down -= first
    right -= left
    first *= width + 3
    first += left
    size = (height + 3) * (width + 3)
    first += (size * np.arange(count, dtype=np.int32))[:, None, None]
    turned = np.empty((channels, count, height, width), np.float32)
    for plane, result in zip(padded.reshape(channels, -1), turned, strict=True):
        upper = _mix(plane[first], plane[1:][first], right)
        lower = _mix(plane[width + 3 :][first], plane[width + 4 :][first], right)
        result[:] = _mix(upper, lower, down)
    return np.ascontiguousarray(turned.transpose(1, 2, 3, 0))


def _mix(first: Array, second: Array, share: Array) -> Array:
    """Return first + share (second - first). It overwrites both arrays."""
    second -= first
    second *= share
    first += second
    return first

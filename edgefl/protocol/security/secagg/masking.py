"""Fixed-point vectors for a masked sum, and masks that cancel.

A real value is rounded to a multiple of 2^-24. The vector contains this multiple times the client's number of
samples, as an integer modulo 2^64. Values reach at most 64, a client has at most 2^20 samples, and a cohort
has at most 2^12 clients. No sum reaches 2^63 then, so the sum modulo 2^64 is the sum itself.

Addition modulo 2^64 is exact in any order. The unmasked sum therefore has the same bits whatever the masks
are.
"""

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from edgefl.base.errors import DataError

FixedPointVector = NDArray[np.uint64]
FIXED_POINT_SCALE = 2.0**24
MAX_DELTA = 64.0
MAX_CLIENT_SAMPLES = 2**20
MIN_MASKED_CLIENTS = 3
"""Minimum cohort size: in a sum of two, each client could subtract its own vector."""


def choose_threshold(clients: int) -> int:
    """Return the number of clients that must stay until the sum is unmasked: two thirds, rounded up.

    Args:
        clients: number of clients that advertised keys.
    """
    return math.ceil(2 * clients / 3)


def to_vector(values: NDArray[np.float64], samples: int) -> FixedPointVector:
    """Return the fixed-point vector of a client's values.

    Args:
        values: shape (n,), float64, at most 64 in magnitude.
        samples: number of samples, at most 2^20.

    Returns:
        The values times the number of samples, followed by the number of samples, shape (n + 1,), uint64.

    Raises:
        DataError: a value is too large or not finite, or the number of samples is negative or too large.
    """
    if not 0 <= samples <= MAX_CLIENT_SAMPLES:
        raise DataError(
            f"{samples} samples, expected at most {MAX_CLIENT_SAMPLES} for secure aggregation; divide "
            "the shard"
        )
    largest = float(np.abs(values).max(initial=0.0))
    if not largest <= MAX_DELTA:
        raise DataError(
            f"the largest value of an update is {largest:g}, expected at most {MAX_DELTA:g} for secure "
            "aggregation; lower the learning rate"
        )
    scaled = np.rint(np.asarray(values, np.float64) * FIXED_POINT_SCALE).astype(np.int64) * samples
    return np.append(scaled, samples).view(np.uint64)


def to_mean(total: FixedPointVector) -> NDArray[np.float64] | None:
    """Return the mean over samples of a sum of vectors.

    Args:
        total: sum of vectors of `to_vector`, shape (n + 1,), uint64.

    Returns:
        The mean, shape (n,), float64. None if the sum contains no samples.
    """
    signed = total.view(np.int64)
    return signed[:-1] / (FIXED_POINT_SCALE * float(signed[-1])) if signed[-1] else None


def expand_mask(seed: bytes, size: int) -> FixedPointVector:
    """Return the mask of a seed: a keystream of ChaCha20.

    The mask looks random to anyone without the seed.

    Args:
        seed: 32 bytes.
        size: number of elements.

    Returns:
        The mask, shape (size,), uint64.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

    stream = Cipher(ChaCha20(seed, bytes(16)), mode=None).encryptor().update(bytes(8 * size))
    return np.frombuffer(stream, "<u8").astype(np.uint64)


def add_masks(vector: FixedPointVector, plus: Iterable[bytes], minus: Iterable[bytes]) -> FixedPointVector:
    """Return the vector with masks added and subtracted, modulo 2^64.

    Args:
        vector: shape (n,), uint64.
        plus: seeds of the masks to add, 32 bytes each.
        minus: seeds of the masks to subtract, 32 bytes each.

    Returns:
        A new vector, shape (n,), uint64.
    """
    total = vector.copy()
    for seed in plus:
        total += expand_mask(seed, len(vector))
    for seed in minus:
        total -= expand_mask(seed, len(vector))
    return total

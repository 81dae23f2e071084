"""Numbers for a masked sum: reals as integers modulo 2^64, and masks that cancel.

A value is kept to 2^-24 and taken times a client's number of samples. With values up to 64, 2^20 samples a
client and 2^12 clients no sum reaches 2^63, so a sum modulo 2^64 is the sum. Addition modulo 2^64 is exact in
any order: whatever the masks were, the sum has the same bits.
"""

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from edgefl.errors import DataError

FixedPointVector = NDArray[np.uint64]
FIXED_POINT_SCALE = 2.0**24
MAX_DELTA = 64.0
MAX_CLIENT_SAMPLES = 2**20
MIN_MASKED_CLIENTS = 3
"""Of a sum of two each one can take itself off."""


def choose_threshold(clients: int) -> int:
    """Return how many of a cohort must answer to the end: two thirds, rounded up."""
    return math.ceil(2 * clients / 3)


def to_vector(values: NDArray[np.float64], samples: int) -> FixedPointVector:
    """Return the values times the number of samples, uint64[n], with that number itself behind them: uint64[n
    + 1].

    Raises DataError for a value that does not fit.
    """
    if not 0 <= samples <= MAX_CLIENT_SAMPLES:
        raise DataError(
            f"{samples} samples, expected at most {MAX_CLIENT_SAMPLES} for secure aggregation; divide the "
            f"shard"
        )
    largest = float(np.abs(values).max(initial=0.0))
    if not largest <= MAX_DELTA:
        raise DataError(
            f"an update reaches {largest:g}, expected at most {MAX_DELTA:g} for secure aggregation; lower "
            f"the "
            "learning rate"
        )
    scaled = np.rint(np.asarray(values, np.float64) * FIXED_POINT_SCALE).astype(np.int64) * samples
    return np.append(scaled, samples).view(np.uint64)


def to_mean(total: FixedPointVector) -> NDArray[np.float64] | None:
    """Return the mean over samples, float64[n], of a sum of `to_words`.

    None when there are no samples in it.
    """
    signed = total.view(np.int64)
    return signed[:-1] / (FIXED_POINT_SCALE * float(signed[-1])) if signed[-1] else None


def expand_mask(seed: bytes, size: int) -> FixedPointVector:
    """Return uint64[size] that look random to whoever has not the seed of 32 bytes: the keystream of
    ChaCha20.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

    stream = Cipher(ChaCha20(seed, bytes(16)), mode=None).encryptor().update(bytes(8 * size))
    return np.frombuffer(stream, "<u8").astype(np.uint64)


def add_masks(vector: FixedPointVector, plus: Iterable[bytes], minus: Iterable[bytes]) -> FixedPointVector:
    """Return the words with the masks of the seeds `plus` on them and those of `minus` off them, modulo
    2^64.
    """
    total = vector.copy()
    for seed in plus:
        total += expand_mask(seed, len(vector))
    for seed in minus:
        total -= expand_mask(seed, len(vector))
    return total

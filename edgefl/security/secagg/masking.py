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

Words = NDArray[np.uint64]
STEPS = 2.0**24
LARGEST = 64.0
MOST_SAMPLES = 2**20
LEAST_CLIENTS = 3
"""Of a sum of two each one can take itself off."""


def threshold_of(clients: int) -> int:
    """Return how many of a cohort must answer to the end: two thirds, rounded up."""
    return math.ceil(2 * clients / 3)


def to_words(values: NDArray[np.float64], samples: int) -> Words:
    """Return the values times the number of samples, uint64[n], with that number itself behind them: uint64[n
    + 1].

    Raises DataError for a value that does not fit.
    """
    if not 0 <= samples <= MOST_SAMPLES:
        raise DataError(
            f"{samples} samples, expected at most {MOST_SAMPLES} for secure aggregation; divide the shard"
        )
    largest = float(np.abs(values).max(initial=0.0))
    if not largest <= LARGEST:
        raise DataError(
            f"an update reaches {largest:g}, expected at most {LARGEST:g} for secure aggregation; lower the "
            "learning rate"
        )
    scaled = np.rint(np.asarray(values, np.float64) * STEPS).astype(np.int64) * samples
    return np.append(scaled, samples).view(np.uint64)


def to_mean(total: Words) -> NDArray[np.float64] | None:
    """Return the mean over samples, float64[n], of a sum of `to_words`.

    None when there are no samples in it.
    """
    signed = total.view(np.int64)
    return signed[:-1] / (STEPS * float(signed[-1])) if signed[-1] else None


def mask(seed: bytes, size: int) -> Words:
    """Return uint64[size] that look random to whoever has not the seed of 32 bytes: the keystream of
    ChaCha20.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

    stream = Cipher(ChaCha20(seed, bytes(16)), mode=None).encryptor().update(bytes(8 * size))
    return np.frombuffer(stream, "<u8").astype(np.uint64)


def added(words: Words, plus: Iterable[bytes], minus: Iterable[bytes]) -> Words:
    """Return the words with the masks of the seeds `plus` on them and those of `minus` off them, modulo
    2^64.
    """
    total = words.copy()
    for seed in plus:
        total += mask(seed, len(words))
    for seed in minus:
        total -= mask(seed, len(words))
    return total

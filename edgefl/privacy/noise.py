"""Random numbers that nobody can predict who does not know the key: the keystream of ChaCha20 (RFC 8439) as
uniform and normal draws.

Other draws come from `rng_for`, whose seed every device knows. Noise that is to hide something, and the
choice of who takes part, come from here: over MQTT under a key that only the aggregator has, in the simulator
under one that is made of the seed.
Box and Muller, A Note on the Generation of Random Normal Deviates, 1958: r = sqrt(-2 log u), and r cos(2 pi
v), r sin(2 pi v).
"""

import hashlib
import hmac

import numpy as np
from numpy.typing import NDArray

Real = NDArray[np.float64]
NOISE_KEY_BYTES = 32


def derive_noise_key(seed: int) -> bytes:
    """Return the simulator's key: noise from it hides nothing from those who know the seed."""
    return hashlib.sha256(f"edgefl noise of seed {seed}".encode()).digest()


def draw_uniform(key: bytes, purpose: str, count: int) -> Real:
    """Return float64[count] in (0, 1), of 53 bits each.

    The same key and purpose give the same numbers, any other pair unrelated ones.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

    if len(key) != NOISE_KEY_BYTES:
        raise ValueError(f"a key of {len(key)} bytes, expected {NOISE_KEY_BYTES}")
    purpose_key = hmac.digest(key, purpose.encode(), "sha256")
    stream = Cipher(ChaCha20(purpose_key, bytes(16)), mode=None).encryptor().update(bytes(8 * count))
    return (np.frombuffer(stream, "<u8") >> np.uint64(11)).astype(np.float64) * 2.0**-53 + 2.0**-54


def draw_normal(key: bytes, purpose: str, shape: tuple[int, ...]) -> Real:
    """Return standard normal draws, float64[shape]; see `uniform`."""
    count = int(np.prod(shape, dtype=np.int64))
    half = (count + 1) // 2
    drawn = draw_uniform(key, purpose, 2 * half)
    radius = np.sqrt(-2 * np.log(drawn[:half]))
    angle = 2 * np.pi * drawn[half:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count].reshape(shape)

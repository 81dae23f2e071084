"""Random numbers that cannot be predicted without a key.

The keystream of ChaCha20 gives uniform and normal draws. All other draws come from `derive_rng`, whose seed
every device knows. Secret noise and the choice of a private cohort come from this module. Over MQTT, only the
aggregator has the key. In the simulator, the key is derived from the seed.

Source: ChaCha20: RFC 8439. Normal draws: Box and Muller, A Note on the Generation of Random Normal Deviates,
1958: r = sqrt(-2 log u), and r cos(2 pi v), r sin(2 pi v).
"""

import hashlib
import hmac

import numpy as np
from numpy.typing import NDArray

Real = NDArray[np.float64]
NOISE_KEY_BYTES = 32


def derive_noise_key(seed: int) -> bytes:
    """Return the noise key of a simulation, 32 bytes.

    Anyone who knows the seed can remove noise of this key.
    """
    return hashlib.sha256(f"edgefl noise of seed {seed}".encode()).digest()


def draw_uniform(key: bytes, purpose: str, count: int) -> Real:
    """Return uniform draws from the open interval (0, 1), with 53 random bits each.

    The same key and purpose give the same numbers. Any other pair gives unrelated numbers.

    Args:
        key: the noise key, 32 bytes.
        purpose: what the numbers are for.

    Returns:
        The draws, shape (count,), float64.

    Raises:
        ValueError: the key does not have 32 bytes.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

    if len(key) != NOISE_KEY_BYTES:
        raise ValueError(f"a key of {len(key)} bytes, expected {NOISE_KEY_BYTES}")
    purpose_key = hmac.digest(key, purpose.encode(), "sha256")
    stream = Cipher(ChaCha20(purpose_key, bytes(16)), mode=None).encryptor().update(bytes(8 * count))
    return (np.frombuffer(stream, "<u8") >> np.uint64(11)).astype(np.float64) * 2.0**-53 + 2.0**-54


def draw_normal(key: bytes, purpose: str, shape: tuple[int, ...]) -> Real:
    """Return standard normal draws.

    Args:
        key: the noise key, 32 bytes.
        purpose: see `draw_uniform`.
        shape: shape of the result.

    Returns:
        The draws, with this shape, float64.

    Raises:
        ValueError: the key does not have 32 bytes.

    Source: Box and Muller, 1958.
    """
    count = int(np.prod(shape, dtype=np.int64))
    half = (count + 1) // 2
    drawn = draw_uniform(key, purpose, 2 * half)
    radius = np.sqrt(-2 * np.log(drawn[:half]))
    angle = 2 * np.pi * drawn[half:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count].reshape(shape)

"""Noise that can be reproduced only with the key."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from edgefl.learning.privacy.noise import derive_noise_key, draw_normal, draw_uniform

KEY = bytes(range(32))


def test_keystream_matches_rfc_8439():
    """Section 2.4.2: the keystream of the example, which shows that the cipher is ChaCha20."""
    nonce = (1).to_bytes(4, "little") + bytes.fromhex("000000000000004a00000000")
    stream = Cipher(ChaCha20(KEY, nonce), mode=None).encryptor().update(bytes(16))
    assert stream.hex() == "224f51f3401bd9e12fde276fb8631ded"


def test_draws_are_normal_and_uncorrelated_between_purposes():
    stats = pytest.importorskip("scipy.stats")
    first, second = (
        draw_normal(KEY, purpose, (100, 200)) for purpose in ("noise of round 1", "noise of round 2")
    )
    assert stats.kstest(first.ravel(), "norm").pvalue > 0.01
    assert abs(first.std() - 1) < 0.02
    assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.03
    assert abs(np.corrcoef(first.ravel()[:-1], first.ravel()[1:])[0, 1]) < 0.03
    half = 10_000  # distance between the two normal numbers made from one pair of uniform numbers
    assert abs(np.corrcoef(first.ravel()[:half], first.ravel()[half:])[0, 1]) < 0.03


def test_draws_are_determined_by_key_and_purpose():
    assert draw_normal(KEY, "a", (3,)).tobytes() == draw_normal(KEY, "a", (3,)).tobytes()
    assert draw_normal(KEY, "a", (3,))[0] != draw_normal(bytes(32), "a", (3,))[0]
    assert draw_normal(KEY, "a", ()).shape == ()
    assert draw_normal(KEY, "a", (0,)).shape == (0,)
    assert derive_noise_key(1) != derive_noise_key(2)
    drawn = draw_uniform(KEY, "u", 10_000)
    assert 0 < drawn.min() < 0.001 < 0.999 < drawn.max() < 1
    with pytest.raises(ValueError, match="expected 32"):
        draw_uniform(b"short", "a", 1)

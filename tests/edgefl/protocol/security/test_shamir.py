"""Shares of a secret: enough shares reconstruct it, and fewer shares reveal nothing."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.base.errors import RoundError
from edgefl.protocol.security.secagg import shamir
from edgefl.protocol.security.secagg.shamir import PRIME, combine_shares, split_secret


def test_shares_of_a_line_match_hand_calculation(monkeypatch):
    """Secret 5 and slope 7 give the shares 12, 19 and 26. The first and third give (3 x 12 - 26) / 2 = 5."""
    monkeypatch.setattr(shamir.secrets, "randbelow", lambda limit: 7)
    shares = split_secret(b"\x05", (1, 2, 3), 2)
    assert shares == {1: 12, 2: 19, 3: 26}
    assert combine_shares({1: 12, 3: 26}, 2, 1) == b"\x05"


@given(st.binary(min_size=32, max_size=32), st.integers(1, 6), st.data())
def test_any_threshold_of_shares_reconstructs_the_secret(secret, count, data):
    threshold = data.draw(st.integers(1, count))
    shares = split_secret(secret, range(1, count + 1), threshold)
    for chosen in itertools.combinations(shares, threshold):
        assert combine_shares({place: shares[place] for place in chosen}, threshold, 32) == secret
    if threshold > 1:
        with pytest.raises(RoundError, match=f"expected {threshold}"):
            combine_shares(dict(list(shares.items())[: threshold - 1]), threshold, 32)


def test_too_few_shares_are_consistent_with_every_secret():
    """With threshold 3, two shares fit any secret, because for each secret a suitable third share exists."""
    shares = split_secret(bytes(31) + b"\x2a", (1, 2, 3), 3)
    for possible_secret in (b"\x00", b"\x2b", b"\xff"):
        # Lagrange at 0 over places 1, 2, 3: s = 3 f(1) - 3 f(2) + f(3)
        third = (int.from_bytes(possible_secret) - 3 * shares[1] + 3 * shares[2]) % PRIME
        assert combine_shares({1: shares[1], 2: shares[2], 3: third}, 3, 32) == bytes(31) + possible_secret


def test_shares_of_a_longer_secret_are_refused():
    shares = split_secret(b"\xff" * 64, (1, 2, 3), 2)
    assert combine_shares(shares, 2, 64) == b"\xff" * 64
    with pytest.raises(RoundError, match="not genuine"):
        combine_shares(shares, 2, 32)


@pytest.mark.parametrize(("places", "threshold"), [((1, 1), 1), ((0, 1), 1), ((1, 2), 3), ((1, 2), 0)])
def test_invalid_places_and_thresholds_are_refused(places, threshold):
    with pytest.raises(ValueError, match="expected"):
        split_secret(b"x", places, threshold)


def test_the_modulus_is_prime():
    """Lucas-Lehmer test: 2^p - 1 is prime if s = 4, replaced by s^2 - 2 for p - 2 times, ends at 0."""
    s = 4
    for _ in range(519):
        s = (s * s - 2) % PRIME
    assert s == 0

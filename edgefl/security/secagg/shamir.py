"""Shamir's secret sharing: any `threshold` shares give the secret, fewer give nothing at all about it.

Shamir, How to Share a Secret, CACM 1979: a polynomial of degree threshold - 1 over a prime field whose value
at 0 is the secret; a share is its value at another place. The field is that of the Mersenne prime 2^521 - 1,
which holds secrets of 64 bytes.
"""

import secrets
from collections.abc import Collection, Mapping

from edgefl.errors import RoundError

PRIME = 2**521 - 1
SHARE_BYTES = 66


def split_secret(secret: bytes, points: Collection[int], threshold: int) -> dict[int, int]:
    """Return the share at each place, whole numbers from 1 on.

    ValueError for a secret above 64 bytes or places that are none.
    """
    if len(secret) > 64 or len(set(points)) != len(points) or not all(0 < point < PRIME for point in points):
        raise ValueError(
            f"a secret of {len(secret)} bytes at {len(points)} places, expected 64 at most, and different "
            "places from 1 on"
        )
    if not 1 <= threshold <= len(points):
        raise ValueError(f"threshold {threshold} of {len(points)} shares, expected 1 to {len(points)}")
    coefficients = [int.from_bytes(secret), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return {point: _evaluate_polynomial(coefficients, point) for point in points}


def combine_shares(shares: Mapping[int, int], threshold: int, size: int) -> bytes:
    """Return the secret of `size` bytes from shares by place; the lowest `threshold` places are used.

    Raises RoundError for too few shares, and when what comes out is longer than that. Shares are taken as
    genuine: one that somebody made up gives another secret, or that error.
    """
    if len(shares) < threshold:
        raise RoundError(
            f"{len(shares)} shares of a secret, expected {threshold}; more clients have to answer"
        )
    chosen = sorted(shares)[:threshold]
    total = 0
    for point in chosen:
        over = 1
        under = 1
        for other in chosen:
            if other != point:
                over = over * other % PRIME
                under = under * (other - point) % PRIME
        total = (total + shares[point] * over * pow(under, -1, PRIME)) % PRIME
    if total >= 1 << (8 * size):
        raise RoundError(f"shares do not give a secret of {size} bytes; one of them is not genuine")
    return total.to_bytes(size)


def _evaluate_polynomial(coefficients: list[int], point: int) -> int:
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * point + coefficient) % PRIME
    return value

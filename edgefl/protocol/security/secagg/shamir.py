"""Shamir's secret sharing: `threshold` shares give the secret, and fewer shares reveal nothing about it.

The secret is the value at 0 of a polynomial of degree threshold - 1 over a prime field. A share is the value
of the polynomial at another point. The order of the field is the Mersenne prime 2^521 - 1, so secrets of 64
bytes fit.

Source: Shamir, How to Share a Secret, CACM 1979.
"""

import secrets
from collections.abc import Collection, Mapping

from edgefl.base.errors import RoundError

PRIME = 2**521 - 1
SHARE_BYTES = 66


def split_secret(secret: bytes, points: Collection[int], threshold: int) -> dict[int, int]:
    """Return the shares of a secret, by point.

    Args:
        secret: at most 64 bytes.
        points: one point for each share, all different, at least 1.
        threshold: number of shares that give the secret.

    Returns:
        The share by point, below `PRIME`.

    Raises:
        ValueError: the secret is too long, a point is not valid or occurs twice, or the threshold is not
            between 1 and the number of points.
    """
    if len(secret) > 64 or len(set(points)) != len(points) or not all(0 < point < PRIME for point in points):
        raise ValueError(
            f"a secret of {len(secret)} bytes at {len(points)} points, expected at most 64 bytes and "
            "different points of at least 1"
        )
    if not 1 <= threshold <= len(points):
        raise ValueError(f"the threshold is {threshold}, expected 1 to {len(points)}, the number of shares")
    coefficients = [int.from_bytes(secret), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return {point: _evaluate_polynomial(coefficients, point) for point in points}


def combine_shares(shares: Mapping[int, int], threshold: int, size: int) -> bytes:
    """Return the secret from its shares.

    Shares are not checked. A forged share gives another secret or a RoundError.

    Args:
        shares: share by point. The `threshold` lowest points are used.
        threshold: number of shares that give the secret.
        size: size of the secret in bytes.

    Raises:
        RoundError: there are too few shares, or the result is longer than `size`.
    """
    if len(shares) < threshold:
        raise RoundError(f"a secret has {len(shares)} shares, expected {threshold}; more clients must answer")
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

"""Shamir's secret sharing (1979) of 32-byte secrets over a prime field: any ``threshold`` shares give the secret, fewer
nothing.

The field is the integers modulo 2^256 + 297, the least prime above 2^256: every secret is one element of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

PRIME = 2**256 + 297
SECRET_BYTES, SHARE_BYTES = 32, 33
_DRAW = 48  # bytes of a coefficient before it is reduced: 2^-127 from uniform


def split(secret: bytes, threshold: int, points: Sequence[int], key: bytes) -> dict[int, bytes]:
    """Point -> share (33 bytes). The other coefficients come from a secret key (32 bytes) that is used for nothing
    else: asked twice, a client gives the same shares.

    Raises ValueError unless the points are different and from 1 to the prime.
    """
    if len(secret) != SECRET_BYTES or not 1 <= threshold <= len(points):
        raise ValueError(f"{len(secret)} bytes among {len(points)} points, {threshold} of them to open")
    if len(set(points)) != len(points) or not all(0 < point < PRIME for point in points):
        raise ValueError("points of shares must be different and not zero")
    drawn = Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor().update(bytes(_DRAW * (threshold - 1)))
    coefficients = [
        int.from_bytes(drawn[start : start + _DRAW], "big") % PRIME for start in range(0, len(drawn), _DRAW)
    ]
    constant, found = int.from_bytes(secret, "big"), {}
    for point in points:
        value = 0
        for coefficient in coefficients:
            value = (value + coefficient) * point % PRIME
        found[point] = ((value + constant) % PRIME).to_bytes(SHARE_BYTES, "big")
    return found


def combine(shares: Mapping[int, bytes], threshold: int) -> bytes | None:
    """The secret from the first ``threshold`` shares, by point; None where they are shares of no 32-byte secret.

    Raises ValueError for fewer shares, and for one that cannot be a share.
    """
    if len(shares) < threshold:
        raise ValueError(f"{len(shares)} shares, {threshold} are needed")
    points = list(shares)[:threshold]
    values = [int.from_bytes(shares[point], "big") for point in points]
    if any(len(shares[point]) != SHARE_BYTES for point in points) or any(value >= PRIME for value in values):
        raise ValueError("a share of another form")
    secret = sum(value * weight for value, weight in zip(values, weights_at_zero(points), strict=True)) % PRIME
    return secret.to_bytes(SHARE_BYTES, "big")[1:] if secret < 2**256 else None


def weights_at_zero(points: Sequence[int]) -> list[int]:
    """Lagrange's weights of the polynomial's values at the points for its value at 0, modulo the prime.

    Points are small, so products are taken as whole numbers, and one inverse in the field serves them all.
    """
    whole = math.prod(points)
    below = [
        point * math.prod(other - point for place, other in enumerate(points) if place != own)
        for own, point in enumerate(points)
    ]
    inverses = _inverses([number % PRIME for number in below])
    return [whole * inverse % PRIME for inverse in inverses]


def _inverses(numbers: Sequence[int]) -> list[int]:
    """Inverses modulo the prime (Montgomery's trick: one inversion and three products each)."""
    partial = [1]
    for number in numbers:
        partial.append(partial[-1] * number % PRIME)
    rest, found = pow(partial[-1], -1, PRIME), [0] * len(numbers)
    for place in range(len(numbers) - 1, -1, -1):
        found[place] = rest * partial[place] % PRIME
        rest = rest * numbers[place] % PRIME
    return found

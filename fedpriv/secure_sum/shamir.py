"""Shamir's secret sharing (1979) of 32-byte secrets over a prime field: any ``threshold`` shares give the secret, fewer
nothing.

The field is the integers modulo 2^256 + 297, the least prime above 2^256: every secret is one element of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

PRIME = 2**256 + 297
SECRET_BYTES, SHARE_BYTES = 32, 33
_DRAW = 48  # bytes of a coefficient before it is reduced: 2^-127 from uniform
_LANE = 640  # bits of one polynomial's value in a number that holds the values of several


def split(secrets: Sequence[tuple[bytes, bytes]], threshold: int, points: Sequence[int]) -> dict[int, bytes]:
    """Shares of several secrets at the same points.

    Args:
        secrets: each (32 bytes) with a secret key (32 bytes) that is used for nothing else. A polynomial's other
            coefficients come from its key: asked twice, a client gives the same shares.
        threshold: shares that open a secret.
        points: where to evaluate; a client may ask again for some of them.

    Returns:
        Point -> one share (33 bytes) of each secret, in their order.

    Raises:
        ValueError: a secret of another length, or points that are not different and from 1 to the prime.
    """
    if any(len(secret) != SECRET_BYTES for secret, _ in secrets) or threshold < 1:
        raise ValueError(f"secrets have {SECRET_BYTES} bytes, and a share at least opens them: threshold {threshold}")
    if len(set(points)) != len(points) or not all(0 < point < PRIME for point in points):
        raise ValueError("points of shares must be different and not zero")
    lanes = [0] * threshold  # coefficients of all polynomials, side by side, the constants last
    places, mask = range(0, _LANE * len(secrets), _LANE), (1 << _LANE) - 1
    for place, (secret, key) in zip(places, secrets, strict=True):
        drawn = Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor().update(bytes(_DRAW * (threshold - 1)))
        for i, text in enumerate([*(drawn[_DRAW * i :][:_DRAW] for i in range(threshold - 1)), secret]):
            lanes[i] |= int.from_bytes(text, "big") % PRIME << place
    # Horner's rule from a reduced value: below 2^257 (j + 1) p^j after j steps, so as many as fit into a lane.
    steps = (_LANE - 257 - 16) // max(points).bit_length()
    found = {}
    for point in points:
        value = 0
        for start in range(0, threshold, steps):
            for coefficients in lanes[start : start + steps]:
                value = value * point + coefficients
            values = [(value >> place & mask) % PRIME for place in places]
            value = sum(one << place for one, place in zip(values, places, strict=True))
        found[point] = b"".join(one.to_bytes(SHARE_BYTES, "big") for one in values)
    return found


def combine(shares: Mapping[int, bytes], threshold: int) -> bytes | None:
    """The secret from the first ``threshold`` shares, by point; None where they are shares of no 32-byte secret.

    Raises ValueError for fewer shares, and for one that cannot be a share.
    """
    if len(shares) < threshold:
        raise ValueError(f"{len(shares)} shares, {threshold} are needed")
    points = tuple(shares)[:threshold]
    values = [int.from_bytes(shares[point], "big") for point in points]
    if any(len(shares[point]) != SHARE_BYTES for point in points) or any(value >= PRIME for value in values):
        raise ValueError("a share of another form")
    secret = sum(value * weight for value, weight in zip(values, weights_at_zero(points), strict=True)) % PRIME
    return secret.to_bytes(SHARE_BYTES, "big")[1:] if secret < 2**256 else None


@lru_cache(maxsize=16)
def weights_at_zero(points: tuple[int, ...]) -> list[int]:
    """Lagrange's weights of the polynomial's values at the points for its value at 0, modulo the prime. Kept, since
    in a complete graph the same holders open all secrets.

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

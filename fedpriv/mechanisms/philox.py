"""Gaussians of a counter, the same bits on every device: Philox4x32-10 and the inverse of the normal distribution.

J. Salmon, M. Moraes, R. Dror, D. Shaw: Parallel Random Numbers: As Easy as 1, 2, 3. SC 2011 (the generator).
M. Wichura: Algorithm AS 241. Applied Statistics 1988 (the inverse, of relative error 1e-16).

Why the bits are equal: every step is one operation of torch on whole numbers, or one that IEEE 754 rounds correctly (+,
-, *, / and square roots of float64), each a kernel of its own, so that no compiler joins a product and a sum into one
rounding. The logarithm is made of these too. `tests/mechanisms/test_philox.py` holds every operation against the list.

For simulations: a key of 64 bits and a counter are no cipher.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

#: Multipliers and steps of the key (Salmon et al., section 3.3).
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS, LOW = 10, 2**32 - 1
#: AS 241: numerator and denominator around 1/2 in 0.425^2 - q^2, and in the tails in sqrt(-log p) - 1.6, the highest
#: power first. (Its third pair is for p below exp(-25); words of 32 bits end at exp(-23).)
# fmt: off
MIDDLE = (
    (2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457,
     13731.693765509461125, 1971.5909503065514427, 133.14166789178437745, 3.387132872796366608),
    (5226.495278852854561, 28729.085735721942674, 39307.89580009271061, 21213.794301586595867,
     5394.1960214247511077, 687.1870074920579083, 42.313330701600911252, 1.0),
)
TAIL = (
    (7.7454501427834140764e-4, 0.0227238449892691845833, 0.24178072517745061177, 1.27045825245236838258,
     3.64784832476320460504, 5.7694972214606914055, 4.6303378461565452959, 1.42343711074968357734),
    (1.05075007164441684324e-9, 5.475938084995344946e-4, 0.0151986665636164571966, 0.14810397642748007459,
     0.68976733498510000455, 1.6763848301838038494, 2.05319162663775882187, 1.0),
)
# fmt: on
#: log((1 + s)/(1 - s)) = 2 s (1 + s^2/3 + s^4/5 + ...), to 1e-17 for s up to 0.172; the highest power first.
LOGARITHM = tuple(1 / power for power in range(23, 0, -2))


def words(key: tuple[int, int], stream: tuple[int, int], start: int, count: int, device: torch.device) -> Tensor:
    """The 4 ``count`` words of 32 bits (int64 [4 count]) of the counters ``start``, start + 1, ..., by counter.

    Args:
        key: two words of 32 bits. stream: the two high words of the counter, whose low 64 bits count from ``start``.
    """
    low = torch.arange(start, start + count, device=device)
    counter = [low & LOW, (low >> 32) & LOW, *(torch.full_like(low, word) for word in stream)]
    first, second = key
    for _ in range(ROUNDS):
        products = [
            counter[0] * MULTIPLIERS[0],
            counter[2] * MULTIPLIERS[1],
        ]  # mod 2^64: of 64 bits, as two's complement
        high = [(product >> 32) & LOW for product in products]
        counter = [
            high[1] ^ counter[1] ^ first,
            products[1] & LOW,
            high[0] ^ counter[3] ^ second,
            products[0] & LOW,
        ]
        first, second = (first + WEYL[0]) & LOW, (second + WEYL[1]) & LOW
    return torch.stack(counter, 1).view(-1)


def gaussians(drawn: Tensor) -> Tensor:
    """Of words of 32 bits (int64 [n]) the standard Gaussian (float64 [n]) at (word + 1/2)/2^32; |.| is below 6.4."""
    p = (drawn.double() + 0.5) * 2.0**-32
    q = p - 0.5
    middle = 0.180625 - q * q
    found = q * _polynomial(MIDDLE[0], middle) / _polynomial(MIDDLE[1], middle)
    outside = torch.nonzero(torch.abs(q) > 0.425)[:, 0]  # 15 % of them
    below, p = q[outside] < 0, p[outside]
    rest = torch.sqrt(-_logarithm(torch.where(below, p, 1 - p))) - 1.6
    far = _polynomial(TAIL[0], rest) / _polynomial(TAIL[1], rest)
    return found.index_copy_(0, outside, torch.where(below, -far, far))


def _polynomial(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    found = x * coefficients[0]
    for coefficient in coefficients[1:-1]:
        found.add_(coefficient).mul_(x)
    return found.add_(coefficients[-1])


def _logarithm(x: Tensor) -> Tensor:
    """log x of normal float64 x > 0."""
    bits = x.view(torch.int64)
    exponent = (bits >> 52) - 1023
    mantissa = ((bits & (2**52 - 1)) | (1023 << 52)).view(torch.float64)  # in [1, 2)
    large = mantissa > math.sqrt(2)
    mantissa, exponent = torch.where(large, mantissa * 0.5, mantissa), torch.where(large, exponent + 1, exponent)
    s = (mantissa - 1) / (mantissa + 1)
    return exponent.double() * math.log(2) + 2 * s * _polynomial(LOGARITHM, s * s)

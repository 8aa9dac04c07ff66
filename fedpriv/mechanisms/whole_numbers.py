"""From a vector to whole numbers that a secure sum can add: rotation in blocks, and rounding that keeps the norm.

P. Kairouz, Z. Liu, T. Steinke: The distributed discrete Gaussian mechanism for federated learning with secure
aggregation. ICML 2021.

Symbols: gamma -> step, beta -> BETA, d -> dimension. Shapes: [..., d].
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from fedpriv.mechanisms.level_quantisation import hadamard, padded
from fedpriv.mechanisms.noise import NoiseSource

#: Sizes of the blocks that are rotated: one large rotation would pad a vector to twice its length.
SMALLEST_BLOCK, LARGEST_BLOCK = 2**12, 2**16
#: beta: a rounding is accepted with probability 1 - beta at least.
BETA = math.exp(-0.5)
#: Roundings tried before everything is rounded towards zero, which no norm survives longer.
MOST_TRIES = 1000


@lru_cache(maxsize=64)
def blocks(dimension: int) -> tuple[int, ...]:
    """Powers of two, the largest first, whose sum is at least ``dimension`` and at most 4,095 more; one block where it
    is at most 4,096.
    """
    if dimension <= SMALLEST_BLOCK:
        return (padded(max(1, dimension)),)
    left, found = -(-dimension // SMALLEST_BLOCK), []
    while left:
        size = min(LARGEST_BLOCK // SMALLEST_BLOCK, 1 << (left.bit_length() - 1))
        found.append(size * SMALLEST_BLOCK)
        left -= size
    return tuple(found)


def rotated_size(dimension: int) -> int:
    return sum(blocks(dimension))


def rotate_blocks(values: Tensor, signs: Tensor) -> Tensor:
    """H D x in each block of values [..., d] padded with zeros, float64 [..., d']; signs [d']: +1 and -1."""
    sizes = blocks(values.shape[-1])
    spread = torch.nn.functional.pad(values.double(), (0, sum(sizes) - values.shape[-1])) * signs
    return torch.cat([hadamard(part) for part in spread.split(sizes, dim=-1)], dim=-1)


def rotate_blocks_back(values: Tensor, signs: Tensor, dimension: int) -> Tensor:
    """Inverse of `rotate_blocks`: [..., dimension]."""
    parts = values.double().split(blocks(dimension), dim=-1)
    return (torch.cat([hadamard(part) for part in parts], dim=-1) * signs)[..., :dimension]


def rounded_square(norm: float, dimension: int, beta: float = BETA) -> int:
    """The largest square of the norm of a vector of ``norm`` after `conditional_round`, in units of the grid.

    A coordinate moves by less than 1, so the norm by less than sqrt(d). Its expected square grows by the variances, at
    most d/4, and exceeds that by sqrt(2 ln(1/beta)) (norm + sqrt(d)/2) with probability beta at most: the square is
    |x|^2 + sum (2 x_i e_i + e_i^2) with independent errors e_i in an interval of length 1, on whose two ends
    2 x_i e_i + e_i^2 takes values 2|x_i + e_i| <= 2 (|x_i| + 1/2) apart about its mean. [Kairouz et al. 2021, Prop. 26]
    """
    root = math.sqrt(dimension)
    surely = (norm + root) ** 2
    likely = norm**2 + dimension / 4 + math.sqrt(2 * math.log(1 / beta)) * (norm + root / 2)
    return math.floor(min(surely, likely))


def conditional_round(values: Tensor, most_square: int, noise: NoiseSource) -> Tensor:
    """Whole numbers (int64 [..., d]) next to ``values``, up with the probability that makes them unbiased, drawn again
    until the square of the norm is at most ``most_square``. [Kairouz et al. 2021, Algorithm 1]

    The bound holds whatever the values are, as long as they are finite: it is checked on the whole numbers.
    """
    low = values.double().floor()
    share = values.double() - low
    if values.ndim == 1:
        for _ in range(MOST_TRIES):
            found = (low + (noise.uniform(low.shape) < share)).long()
            if float(found.double().square().sum()) <= most_square:
                return found
        return _towards_zero(values, most_square)
    flat_low, flat_share = low.reshape(-1, low.shape[-1]), share.reshape(-1, low.shape[-1])
    rows = torch.arange(len(flat_low))
    result = torch.empty(flat_low.shape, dtype=torch.int64)
    for _ in range(MOST_TRIES):
        drawn = (flat_low[rows] + (noise.uniform((len(rows), low.shape[-1])) < flat_share[rows])).long()
        kept = drawn.double().square().sum(-1) <= most_square
        result[rows[kept]] = drawn[kept]
        rows = rows[~kept]
        if not len(rows):
            return result.view(low.shape)
    for row in rows.tolist():
        result[row] = _towards_zero(values.reshape(-1, low.shape[-1])[row], most_square)
    return result.view(low.shape)


def _towards_zero(values: Tensor, most_square: int) -> Tensor:
    """Shortened to the bound, then rounded towards zero."""
    longest = math.sqrt(most_square) * (1 - 1e-9)
    norm = float(values.double().norm())
    return (values.double() * min(1.0, longest / norm if norm else 1.0)).trunc().long()

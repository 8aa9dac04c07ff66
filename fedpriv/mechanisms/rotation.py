"""The randomised rotation of a vector before it becomes whole numbers: one for all coordinates (cpSGD), or in blocks
(ddgauss, skellam), for which nothing needs to be padded to twice its length.

Shapes: [..., d]; d' is the length with the zeros that a rotation adds.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from fedpriv.mechanisms.noise import LONG

#: Sizes of the blocks that are rotated: one large rotation would pad a vector to twice its length.
SMALLEST_BLOCK, LARGEST_BLOCK = 2**12, 2**16


def padded(dimension: int) -> int:
    """The smallest power of two that is at least ``dimension``."""
    return 1 << (dimension - 1).bit_length()


def hadamard(values: Tensor) -> Tensor:
    """H x / sqrt(d) of vectors [..., d], d a power of two: orthogonal and its own inverse, in the dtype of x.

    A stage adds and subtracts neighbours and puts sums before differences; after log2(d) of them every coordinate is
    back in its place.
    """
    dimension = values.shape[-1]
    if dimension != padded(dimension):
        raise ValueError(f"{dimension} coordinates: must be a power of two")
    if values.ndim > 1 and dimension >= LONG:  # all stages of a vector are done in a core's cache
        rows = [hadamard(row) for row in values.reshape(-1, dimension)]
        return torch.stack(rows).view(values.shape) if rows else values.clone()
    found, half = values.numpy().copy(), dimension // 2
    stage = np.empty_like(found)
    for _ in range(dimension.bit_length() - 1):
        np.add(found[..., 0::2], found[..., 1::2], out=stage[..., :half])
        np.subtract(found[..., 0::2], found[..., 1::2], out=stage[..., half:])
        found, stage = stage, found
    found /= math.sqrt(dimension)
    return torch.from_numpy(found)


def rotate(values: Tensor, signs: Tensor) -> Tensor:
    """The randomised rotation H D x / sqrt(d') of values [..., d] padded with zeros; signs [d']: +1 and -1."""
    spread = torch.nn.functional.pad(values, (0, signs.shape[-1] - values.shape[-1]))
    return hadamard(spread * signs)  # [cpSGD, section 5]


def rotate_back(values: Tensor, signs: Tensor, dimension: int) -> Tensor:
    """Inverse of `rotate`: [..., dimension]."""
    return (hadamard(values) * signs)[..., :dimension]


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

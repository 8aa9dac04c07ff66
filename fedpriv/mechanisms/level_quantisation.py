"""k-level stochastic quantisation of rotated vectors, and integers packed at their bit width (cpSGD).

N. Agarwal, A. T. Suresh, F. X. Yu, S. Kumar, H. B. McMahan: cpSGD: Communication-efficient and
differentially-private distributed SGD. NeurIPS 2018.

Symbols: X -> bound (of a coordinate), k -> levels, s -> grid step, d -> dimension. Shapes: [..., d].
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

#: Numbers packed at a time.
CHUNK = 2**20


def padded(dimension: int) -> int:
    """The smallest power of two that is at least ``dimension``."""
    return 1 << (dimension - 1).bit_length()


def hadamard(values: Tensor) -> Tensor:
    """H x / sqrt(d) of vectors [..., d], d a power of two: orthogonal and its own inverse, in the dtype of x."""
    dimension = values.shape[-1]
    if dimension != padded(dimension):
        raise ValueError(f"{dimension} coordinates: must be a power of two")
    shape, width = values.shape, 1
    values = values.clone()
    while width < dimension:
        halves = values.view(*shape[:-1], dimension // (2 * width), 2, width)
        left, right = halves[..., 0, :], halves[..., 1, :]
        total = left + right
        torch.sub(left, right, out=right)
        left.copy_(total)
        width *= 2
    return values.div_(math.sqrt(dimension))


def rotate(values: Tensor, signs: Tensor) -> Tensor:
    """The randomised rotation H D x / sqrt(d') of values [..., d] padded with zeros; signs [d']: +1 and -1."""
    spread = torch.nn.functional.pad(values, (0, signs.shape[-1] - values.shape[-1]))
    return hadamard(spread * signs)  # [cpSGD, section 5]


def rotate_back(values: Tensor, signs: Tensor, dimension: int) -> Tensor:
    """Inverse of `rotate`: [..., dimension]."""
    return (hadamard(values) * signs)[..., :dimension]


def coordinate_bound(clip_norm: float, dimension: int, failure: float) -> float:
    """X that no coordinate of a rotated vector of norm <= clip_norm exceeds, except with probability ``failure``: each
    is a sum with random signs (Hoeffding). Larger ones are clamped, so the privacy guarantee always holds.
    """
    return clip_norm * min(1.0, math.sqrt(2 * math.log(2 * dimension / failure) / dimension))


def grid_step(bound: float, levels: int) -> float:
    """s = 2X/(k - 1). Raises ValueError below two levels."""
    if levels < 2:
        raise ValueError(f"levels={levels}: must be at least 2")
    return 2 * bound / (levels - 1)  # [cpSGD, section 4]


def to_levels(values: Tensor, bound: float, levels: int, uniform: Tensor) -> Tensor:
    """Whole numbers 0..k-1 (int64 [..., d]): values clamped to [-X, X] and rounded up with the probability that makes
    ``-X + s * level`` unbiased; uniform (0, 1) [..., d].
    """
    place = (values.double().clamp(-bound, bound) + bound) / grid_step(bound, levels)
    low = place.floor()
    return (low + (uniform < place - low)).long().clamp_(0, levels - 1)  # [cpSGD, section 4]


def from_noisy_levels(numbers: Tensor, bound: float, levels: int, trials: int) -> Tensor:
    """-X + s (level + Z - m/2), float64 [..., d]."""
    return (numbers.double() - trials / 2) * grid_step(bound, levels) - bound


def width_of(largest: int) -> int:
    """Bits that hold every whole number from 0 to ``largest``."""
    return max(1, largest.bit_length())


def pack_integers(numbers: NDArray[np.int64], width: int) -> NDArray[np.uint8]:
    """Whole numbers 0..2^width - 1 [n] at ``width`` bits each, highest bit first, in ceil(n width / 8) bytes."""
    parts = []
    for start in range(0, len(numbers), CHUNK):  # CHUNK is a multiple of 8: every part but the last ends on a byte
        piece = numbers[start : start + CHUNK].astype(">u8").view(np.uint8).reshape(-1, 8)
        parts.append(np.packbits(np.unpackbits(piece, axis=1)[:, 64 - width :]))
    return np.concatenate(parts) if parts else np.zeros(0, np.uint8)


def unpack_integers(packed: NDArray[np.uint8], width: int, count: int) -> NDArray[np.int64]:
    """Inverse of `pack_integers`, int64 [count]. Raises ValueError for another dtype or number of bytes."""
    expected = -(-count * width // 8)
    if packed.dtype != np.uint8 or packed.shape != (expected,):
        raise ValueError(f"expected uint8 [{expected}], got {packed.dtype} {list(packed.shape)}")
    numbers = np.empty(count, np.int64)
    for start in range(0, count, CHUNK):
        size = min(CHUNK, count - start)
        bits = np.unpackbits(packed[start * width // 8 : -(-(start + size) * width // 8)], count=size * width)
        wide = np.zeros((size, 64), np.uint8)
        wide[:, 64 - width :] = bits.reshape(size, width)
        numbers[start : start + size] = np.packbits(wide, axis=1).view(">u8").ravel()
    return numbers

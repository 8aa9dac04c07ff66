"""From a vector to whole numbers: rotation, rounding to levels (cpSGD), rounding that keeps the norm (ddgauss).

N. Agarwal, A. T. Suresh, F. X. Yu, S. Kumar, H. B. McMahan: cpSGD: Communication-efficient and
differentially-private distributed SGD. NeurIPS 2018.
Symbols: X -> bound (of a coordinate), k -> levels, s -> grid step, d -> dimension. Shapes: [..., d].

P. Kairouz, Z. Liu, T. Steinke: The distributed discrete Gaussian mechanism for federated learning with secure
aggregation. ICML 2021.
Symbols: gamma -> step, beta -> BETA, d -> dimension.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.mechanisms.noise import NoiseSource

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


# --- rounding that keeps the norm ------------------------------------------------------------------------

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


# --- residues: whole numbers modulo 2^bits, packed ------------------------------------------------------------
# A residue is an unsigned number below 2^bits, uint32 up to 32 bits and uint64 above. Negative numbers are the upper
# half, as in two's complement. Packed, number i takes bits i*bits to (i+1)*bits of a little-endian stream.


#: Residues of up to 32 bits, or of more.
Residues = NDArray[np.uint32] | NDArray[np.uint64]

#: Numbers packed at a time; a multiple of 8, so that every part but the last ends on a byte.
AT_ONCE = 2**18


def as_residues(numbers: NDArray[np.uint64], bits: int) -> Residues:
    """Numbers below 2^bits in the type of that many bits."""
    return numbers.astype(np.uint32) if bits <= 32 else numbers


def to_residues(numbers: NDArray[np.int64], bits: int) -> Residues:
    """The numbers [n] modulo 2^bits. [Kairouz et al. 2021, Algorithm 1: modular clipping]"""
    return as_residues(numbers.view(np.uint64) & np.uint64(2**bits - 1), bits)


def centred(residues: Residues, bits: int) -> NDArray[np.int64]:
    """The numbers of [-2^(bits-1), 2^(bits-1)) with these residues; bits above 2^bits are dropped first."""
    half = np.uint64(2 ** (bits - 1))
    kept = (residues.astype(np.uint64) + half) & np.uint64(2**bits - 1)
    numbers: NDArray[np.int64] = kept.view(np.int64) - np.int64(half)
    return numbers


def add_residues(total: NDArray[np.uint64], residues: Residues, bits: int) -> None:
    """total [n] <- total + residues modulo 2^bits, in place."""
    np.add(total, residues, out=total, casting="same_kind")
    np.bitwise_and(total, np.uint64(2**bits - 1), out=total)


def packed_size(count: int, bits: int) -> int:
    """Bytes of so many residues."""
    return -(-count * bits // 8)


def pack_residues(residues: Residues, bits: int) -> NDArray[np.uint8]:
    """uint8 [packed_size]."""
    if bits in (8, 16, 32, 64):
        return residues.astype(f"<u{bits // 8}").view(np.uint8)
    parts = [_pack(residues[start : start + AT_ONCE], bits) for start in range(0, len(residues), AT_ONCE)]
    return np.concatenate(parts) if parts else np.zeros(0, np.uint8)


def unpack_residues(packed: NDArray[np.uint8], bits: int, count: int) -> Residues:
    """Inverse of `pack_residues`. Raises ValueError for another dtype or number of bytes, or filled bits at the end."""
    expected = packed_size(count, bits)
    if packed.dtype != np.uint8 or packed.shape != (expected,):
        raise ValueError(f"expected uint8 [{expected}], got {packed.dtype} {list(packed.shape)}")
    spare = 8 * expected - count * bits
    if spare and packed[-1] >> (8 - spare):
        raise ValueError(f"the last {spare} bits are not zero")
    if bits in (8, 16, 32, 64):
        return as_residues(packed.view(f"<u{bits // 8}").astype(np.uint64), bits)
    found = np.empty(count, np.uint32 if bits <= 32 else np.uint64)
    for start in range(0, count, AT_ONCE):
        size = min(AT_ONCE, count - start)
        part = packed[start * bits // 8 : packed_size(start + size, bits)]
        found[start : start + size] = _unpack(part, bits, size)
    return cast(Residues, found)


def _pack(residues: Residues, bits: int) -> NDArray[np.uint8]:
    """Eight numbers at a time are ``bits`` bytes; each byte is cut from the one or more numbers that it lies in."""
    groups = -(-len(residues) // 8)
    columns = np.zeros((8, groups), np.uint64)
    filled = np.zeros(8 * groups, np.uint64)
    filled[: len(residues)] = residues
    columns[:] = filled.reshape(groups, 8).T
    found = np.empty((groups, bits), np.uint8)
    for byte in range(bits):
        first, last = 8 * byte // bits, (8 * byte + 7) // bits
        taken = columns[first] >> np.uint64(8 * byte - first * bits)
        for number in range(first + 1, last + 1):
            taken = taken | (columns[number] << np.uint64(number * bits - 8 * byte))
        found[:, byte] = taken & np.uint64(255)
    return found.reshape(-1)[: packed_size(len(residues), bits)]


def _unpack(packed: NDArray[np.uint8], bits: int, count: int) -> NDArray[np.uint64]:
    groups = -(-count // 8)
    filled = np.zeros(groups * bits, np.uint8)
    filled[: len(packed)] = packed
    bytes_of = np.ascontiguousarray(filled.reshape(groups, bits).T).astype(np.uint64)
    found = np.empty((groups, 8), np.uint64)
    for number in range(8):
        first, last = number * bits // 8, ((number + 1) * bits - 1) // 8
        taken = bytes_of[first] >> np.uint64(number * bits - 8 * first)
        for byte in range(first + 1, last + 1):
            taken = taken | (bytes_of[byte] << np.uint64(8 * byte - number * bits))
        found[:, number] = taken & np.uint64(2**bits - 1)
    return found.reshape(-1)[:count]

"""From a vector to whole numbers: rotation, rounding to levels and its grid (cpSGD), rounding that keeps the norm and
the grid of its sums (ddgauss, skellam).

N. Agarwal, A. T. Suresh, F. X. Yu, S. Kumar, H. B. McMahan: cpSGD: Communication-efficient and
differentially-private distributed SGD. NeurIPS 2018.
Symbols: X -> bound (of a coordinate), k -> levels, s -> grid step, d -> dimension. Shapes: [..., d].

P. Kairouz, Z. Liu, T. Steinke: The distributed discrete Gaussian mechanism for federated learning with secure
aggregation. ICML 2021.
Symbols: gamma -> step, beta -> BETA, d -> dimension.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.common.errors import OptionError
from fedpriv.mechanisms.integer_noise import MOST_STEPS, SPREAD, discrete_gaussian, skellam
from fedpriv.mechanisms.noise import LONG, NoiseSource

#: Numbers packed at a time.
CHUNK = 2**18
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
    """Whole numbers 0..2^width - 1 [..., n] at ``width`` bits each, highest bit first, as [..., ceil(n width / 8)]."""
    parts, (*rows, count) = [np.zeros((*numbers.shape[:-1], 0), np.uint8)], numbers.shape
    held = next(size for size in (1, 2, 4, 8) if width <= 8 * size)  # bytes
    for start in range(0, count, CHUNK):  # CHUNK is a multiple of 8: every part but the last ends on a byte
        piece = np.ascontiguousarray(numbers[..., start : start + CHUNK].astype(f">u{held}"))
        digits = np.unpackbits(piece.view(np.uint8).reshape(*rows, -1, held), axis=-1)[..., 8 * held - width :]
        parts.append(np.packbits(digits.reshape(*rows, -1), axis=-1))
    return np.concatenate(parts, axis=-1)


#: Bound on the probability that any coordinate of a rotated vector is clamped.
FAILURE = 0.01


@dataclass(frozen=True)
class LevelGrid:
    """What client and server of cpSGD must agree on to quantise a vector and add binomial noise; what it costs:
    `fedpriv.privacy.sum_grid`. Symbols: m -> trials, d' -> padded.

    dimension: d of the vector before padding; clip_norm: its largest L2 norm.
    """

    dimension: int
    clip_norm: float
    levels: int
    trials: int = 0

    @property
    def padded(self) -> int:
        return padded(self.dimension)

    @property
    def bound(self) -> float:
        return coordinate_bound(self.clip_norm, self.padded, FAILURE)

    @property
    def step(self) -> float:
        return grid_step(self.bound, self.levels)

    @property
    def largest(self) -> int:
        """The largest number on the wire: k - 1 + m."""
        return self.levels - 1 + self.trials

    @property
    def std(self) -> float:
        """Standard deviation of the noise on a coordinate, in real units: s sqrt(m)/2."""
        return self.step * self.trials**0.5 / 2

    def noisy_levels(self, vector: Tensor, signs: Tensor, noise: NoiseSource) -> tuple[Tensor, Tensor]:
        """(int64 [..., d'] in 0..k-1+m, share [...] of clamped coordinates) of clipped vectors [..., d]."""
        rotated = rotate(vector.double(), signs.double())
        level = to_levels(rotated, self.bound, self.levels, noise.uniform(rotated.shape))
        beyond = (rotated.abs() > self.bound).double().mean(-1)
        return level + noise.binomial(self.trials, rotated.shape), beyond  # [cpSGD, section 4]

    def pack(self, numbers: Tensor) -> NDArray[np.uint8]:
        return pack_integers(numbers.numpy(), width_of(self.largest))

    def centred(self, numbers: Tensor) -> Tensor:
        """Numbers of 0..k-1+m about the middle: the sum of many is then as small as it can be."""
        return numbers - (self.largest + 1) // 2


# --- rounding that keeps the norm ------------------------------------------------------------------------

#: beta: a rounding is accepted with probability 1 - beta at least.
BETA = math.exp(-0.5)
#: Roundings tried before everything is rounded towards zero, which no norm survives longer.
MOST_TRIES = 1000


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
            found = low + (noise.uniform(low.shape) < share)
            if float(found.square().sum()) <= most_square:
                return found.long()
        return _towards_zero(values, most_square)
    flat_low, flat_share = low.reshape(-1, low.shape[-1]), share.reshape(-1, low.shape[-1])
    drawn = flat_low + (noise.uniform(flat_low.shape) < flat_share)
    result = drawn.long()
    rows = (drawn.square().sum(-1) > most_square).nonzero()[:, 0]
    for _ in range(MOST_TRIES - 1):
        if not len(rows):
            return result.view(low.shape)
        drawn = flat_low[rows] + (noise.of(rows).uniform((len(rows), low.shape[-1])) < flat_share[rows])
        result[rows] = drawn.long()
        rows = rows[drawn.square().sum(-1) > most_square]
    for row in rows.tolist():
        result[row] = _towards_zero(values.reshape(-1, low.shape[-1])[row], most_square)
    return result.view(low.shape)


def _towards_zero(values: Tensor, most_square: int) -> Tensor:
    """Shortened to the bound, then rounded towards zero."""
    longest = math.sqrt(most_square) * (1 - 1e-9)
    norm = float(values.double().norm())
    return (values.double() * min(1.0, longest / norm if norm else 1.0)).trunc().long()


# --- the grid of a sum ----------------------------------------------------------------------------------------

Law = Literal["gaussian", "skellam"]


@dataclass(frozen=True)
class WholeGrid:
    """What client and server of ddgauss and skellam must agree on so that whole numbers add up to a mean.

    Lengths are in units of the clip norm C, so that C may move from round to round.
    Symbols: gamma -> step, sigma -> multiplier (standard deviation of one client's noise / C), b -> bits, n -> clients,
    d' -> padded, g = C/gamma, G^2 -> most_square.

    dimension: d; clients: n, of a round; statistics: the noise (standard deviation / range) of each number that
    travels beside the vector.
    """

    law: Law
    dimension: int
    clients: int
    bits: int
    multiplier: float
    statistics: tuple[float, ...] = ()

    @property
    def padded(self) -> int:
        return rotated_size(self.dimension)

    @property
    def numbers(self) -> int:
        """Whole numbers of one release."""
        return self.padded + len(self.statistics)

    @cached_property
    def step(self) -> float:
        """gamma/C: 2^(b-1) gamma is `SPREAD` standard deviations of a coordinate of the sum, whose variance is at most
        n^2 C^2/d' of the vectors (over random signs), n sigma^2 of the noises and n gamma^2/4 of rounding.
        [Kairouz et al. 2021, section 5]

        Raises `OptionError` for too few bits to add so many clients at all.
        """
        n = self.clients
        left = 4.0 ** (self.bits - 1) - SPREAD**2 * n / 4
        if left <= 0:
            raise OptionError("strategy.server.bits", self.bits, f"sums of {n} clients need more")
        wanted = SPREAD * math.sqrt((n * n / self.padded + n * self.multiplier**2) / left)
        return max(wanted, self.multiplier / MOST_STEPS)

    @property
    def sigma(self) -> float:
        """Standard deviation of one client's noise in grid steps."""
        return self.multiplier / self.step

    @cached_property
    def most_square(self) -> int:
        """G^2: no client's whole numbers are longer, whatever its data are."""
        return rounded_square(1 / self.step, self.padded)

    def statistic_steps(self, noise: float) -> int:
        """K, even: grid steps of the range of a number in [0, 1], such that a sum of n of them is held.

        Raises `OptionError` for too few bits.
        """
        spread = self.clients / 2 + SPREAD * math.sqrt(self.clients) * noise
        steps = int(min(2.0 ** (self.bits - 1) / spread, MOST_STEPS / max(noise, 1.0))) // 2 * 2
        if steps < 2:
            raise OptionError("strategy.server.bits", self.bits, "what is told beside a vector needs more")
        return steps

    # --- client --------------------------------------------------------------------------------------------

    def noise(self, sigma: float, shape: Sequence[int], noise: NoiseSource, clients: int = 1) -> Tensor:
        """The noise of so many clients together (int64 [shape]), each of standard deviation sigma in steps.

        More than one, for the auditor: in one piece, a Skellam number exactly, a discrete Gaussian up to
        `fedpriv.privacy.integer_laws.closeness`.
        """
        parts = max(1, math.ceil(clients * sigma * sigma / MOST_STEPS**2 - 1e-9))
        total = torch.zeros(tuple(shape), dtype=torch.int64)
        for _ in range(parts):
            if self.law == "gaussian":
                total += discrete_gaussian(math.sqrt(clients / parts) * sigma, shape, noise)
            else:
                total += skellam(clients / parts * sigma * sigma, shape, noise)
        return total

    def noisy(self, steps: Tensor, noise: NoiseSource) -> Tensor:
        """Whole numbers (int64 [..., d']) of a rotated vector in grid steps [..., d']: rounded, with noise."""
        rounded = conditional_round(steps, self.most_square, noise)
        return rounded + self.noise(self.sigma, rounded.shape, noise)

    def noisy_share(self, share: Tensor, noise_level: float, noise: NoiseSource) -> Tensor:
        """A number [...] of [0, 1] in steps of its range, about the middle, with noise (int64)."""
        steps = self.statistic_steps(noise_level)
        rounded = ((share.double().clamp(0, 1) - 0.5) * steps).round().long()
        return rounded + self.noise(noise_level * steps, tuple(rounded.shape), noise)

    def whole_numbers(self, vector: Tensor, shares: Sequence[Tensor], signs: Tensor, noise: NoiseSource) -> Tensor:
        """A release (int64 [..., numbers]) of vectors [..., d] in units of C and numbers beside them (float [...])."""
        found = [self.noisy(rotate_blocks(vector, signs) / self.step, noise)]
        for share, level in zip(shares, self.statistics, strict=True):
            found.append(self.noisy_share(share, level, noise).unsqueeze(-1))
        return torch.cat(found, dim=-1) if len(found) > 1 else found[0]

    # --- server --------------------------------------------------------------------------------------------

    def decode(
        self, total: NDArray[np.int64], survivors: int, signs: Tensor
    ) -> tuple[NDArray[np.float64], list[float]]:
        """(mean vector [d] in units of C, mean of each number beside it) from the sum of so many releases [numbers]."""
        rotated = torch.from_numpy(total[: self.padded]).double() * (self.step / survivors)
        mean: NDArray[np.float64] = rotate_blocks_back(rotated, signs, self.dimension).numpy()
        beside = [
            float(number) / self.statistic_steps(level) / survivors + 0.5
            for number, level in zip(total[self.padded :], self.statistics, strict=True)
        ]
        return mean, beside

"""Whole-number noise: exact samplers of the discrete Gaussian and the Skellam law, and the grid of a sum that has it.

C. Canonne, G. Kamath, T. Steinke: The discrete Gaussian for differential privacy. NeurIPS 2020:
P(x) ~ exp(-x^2/(2 s^2)).
N. Agarwal, P. Kairouz, Z. Liu: The Skellam mechanism for differentially private federated learning. NeurIPS 2021:
P(x) = exp(-m) I_x(m), the difference of two Poisson numbers of mean m/2; variance m.

A draw is the place of a uniform U in a table of the cumulative law F: x with F(x - 1) <= U < F(x). A word of 64 bits
decides it, unless a border lies within two units of the word (once in 2^44 draws at s = 10^4); then further words
are appended to U, and the borders computed to as many bits, until it is decided. So a draw has exactly the law, and
there is no distance from it to account for: at epsilon 50, errors of 2^-65 in the borders would cost more than any
delta.

Borders: both laws are even and known by the ratios r_k = P(k + 1)/P(k) < 1, here whole numbers in units of 2^-b,
rounded. Each error is below: of a ratio 2k + 1 units for the Gaussian (r_(k+1) = r_k q, with q rounded down) and K for
Skellam (1/r_(k-1) = 2k/m + r_k backwards from K, which shrinks an error by r^2); so of a weight K^2 and of their sum
2 K^3, the weights that have vanished included. With b = 64 + 3 log2 K + 8 a border is off by less than one.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.common.errors import OptionError
from fedpriv.mechanisms.laws import skellam_exponent
from fedpriv.mechanisms.noise import NoiseSource, Shape, as_size
from fedpriv.mechanisms.whole_numbers import (
    conditional_round,
    rotate_blocks,
    rotate_blocks_back,
    rotated_size,
    rounded_square,
)

#: Bits of a word; further words are appended where it does not decide.
WORD = 64
#: A border this close to a word, in units of the last bit, leaves it undecided: one for rounding, one for the error.
CLOSE = 2
#: Larger laws would need tables of more than a hundred megabytes.
LARGEST_STD = 2.0**18
#: Words drawn at a time.
CHUNK = 2**16

Ratios = Callable[[int], list[int]]


def discrete_gaussian(sigma: float, shape: Shape, noise: NoiseSource) -> torch.Tensor:
    """Discrete Gaussians of parameter sigma (int64 [shape]); zeros for sigma = 0. Raises ValueError beyond 2^18."""
    return _drawn(gaussian_table, sigma, sigma, shape, noise)


def skellam(variance: float, shape: Shape, noise: NoiseSource) -> torch.Tensor:
    """Skellam numbers of mean 0 (int64 [shape]); zeros for variance 0. Raises ValueError beyond 2^36."""
    return _drawn(skellam_table, variance, math.sqrt(variance) if variance >= 0 else variance, shape, noise)


def _drawn(table: Callable[[float], Table], value: float, std: float, shape: Shape, noise: NoiseSource) -> torch.Tensor:
    size = as_size(shape)
    if not 0 <= std <= LARGEST_STD:
        raise ValueError(f"whole-number noise needs a standard deviation from 0 to 2^18, got {std}")
    if std == 0:
        return torch.zeros(size, dtype=torch.int64)
    return torch.from_numpy(table(value).draw(math.prod(size), noise)).view(size)


@lru_cache(maxsize=8)
def gaussian_table(sigma: float) -> Table:
    return Table(lambda bits: gaussian_ratios(sigma, bits))


@lru_cache(maxsize=8)
def skellam_table(variance: float) -> Table:
    return Table(lambda bits: skellam_ratios(variance, bits))


class Table:
    """The borders of an even law. ratios: b -> r_0, r_1, ... in units of 2^-b, until the weights have vanished."""

    def __init__(self, ratios: Ratios, word: int = WORD) -> None:
        """word: bits of which a first word is made; fewer than 64 only so that a test sees undecided ones."""
        self._ratios, self._word = ratios, word
        borders = _borders(ratios, word)
        self.reach = len(borders) // 2
        # The outermost are all but 2^word; a word beside them is undecided in any case.
        self._borders: NDArray[np.uint64] = np.array([min(border, 2**word - 1) for border in borders], np.uint64)

    def draw(self, count: int, noise: NoiseSource) -> NDArray[np.int64]:
        """int64 [count]."""
        found = np.empty(count, np.int64)
        for start in range(0, count, CHUNK):
            part = found[start : start + CHUNK]
            words = noise.words(len(part)) >> np.uint64(WORD - self._word)
            places = np.searchsorted(self._borders, words, side="right")
            below = self._borders[np.maximum(places, 1) - 1]
            above = self._borders[np.minimum(places, len(self._borders) - 1)]
            close = (words - below <= CLOSE) & (places > 0) | (above - words <= CLOSE) & (places < len(self._borders))
            close |= (words <= CLOSE) | (words >= np.uint64(2**self._word - 1 - CLOSE))
            part[:] = places - self.reach
            for index in np.flatnonzero(close):
                part[index] = self._decided(int(words[index]), noise)
        return found

    def _decided(self, word: int, noise: NoiseSource) -> int:
        """The number of a uniform that begins with this word, however many bits that takes."""
        bits = self._word
        while True:
            word, bits = (word << WORD) | int(noise.words(1)[0]), bits + WORD
            borders = _borders(self._ratios, bits)
            place = bisect_right(borders, word)
            beside = borders[max(0, place - 1) : place + 1]
            ends = CLOSE < word < 2**bits - 1 - CLOSE
            if ends and all(abs(border - word) > CLOSE for border in beside):
                return place - len(borders) // 2


def _borders(ratios: Ratios, bits: int) -> list[int]:
    """F(-K), ..., F(K - 1) in units of 2^-bits, each less than one off: 2K numbers, so that place - K is the draw."""
    precision, known = bits + 40, 0
    while True:
        weights = [1 << precision]
        for ratio in ratios(precision):
            weights.append((weights[-1] * ratio) >> precision)
            if not weights[-1]:
                break
        known = len(weights)
        needed = bits + 3 * known.bit_length() + 8
        if precision >= needed:
            break
        precision = needed
    total = 2 * sum(weights) - weights[0]
    # F(-k - 1) = P(X > k), from the outermost inwards: sums of small numbers first
    tails = list(accumulate(reversed(weights[1:])))
    lower = [(tail << bits) // total for tail in tails]  # F(-K), ..., F(-1)
    return lower + [2**bits - border for border in reversed(lower)]


def gaussian_ratios(sigma: float, bits: int) -> list[int]:
    """r_k = exp(-(2k + 1)/(2 sigma^2)), rounded down."""
    square = Fraction(sigma) ** 2
    with localcontext() as context:
        context.prec = bits // 3 + 20
        inverse = Decimal(square.denominator) / Decimal(square.numerator)
        scale = Decimal(2) ** bits
        ratio, factor = (int((-inverse * share).exp() * scale) for share in (Decimal("0.5"), Decimal(1)))
    found = []
    for _ in range(_reach(bits, lambda k: k * k / 2, sigma)):
        found.append(ratio)
        ratio = (ratio * factor) >> bits
    return found


def skellam_ratios(variance: float, bits: int) -> list[int]:
    """r_k = I_(k+1)(m)/I_k(m), rounded down, by Gauss' continued fraction from far outside."""
    mean = Fraction(variance)
    deviation = math.sqrt(variance)
    far = _reach(2 * bits, lambda k: skellam_exponent(k * deviation, variance), deviation)
    one, ratio = 1 << (2 * bits), 0
    found = [0] * far
    for k in range(far, 0, -1):
        # in units of 2^-bits: 1 / (2k/m + r_k), the denominator rounded up
        below = -((-2 * k * mean.denominator << bits) // mean.numerator) + ratio + 1
        ratio = one // below
        found[k - 1] = ratio
    return found


def _reach(bits: int, exponent: Callable[[float], float], deviation: float) -> int:
    """k beyond which weights are below 2^-bits: exponent is of k in standard deviations."""
    wanted, most = bits * math.log(2) + 10, 1.0
    while exponent(most) < wanted:
        most *= 1.1
    return math.ceil(most * deviation) + 3


# --- the grid of a sum ----------------------------------------------------------------------------------------

Law = Literal["gaussian", "skellam"]

#: Half of the modulus in standard deviations of a sum's coordinate, for n vectors of norm C that all point the same
#: way: beyond it a number comes back on the other side, which costs accuracy and no privacy.
SPREAD = 5.0
#: Largest noise of one client in grid steps: a finer grid gains nothing, and its table of the law would be large.
MOST_STEPS = 2.0**16


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
        `fedpriv.privacy.discrete_gaussian.closeness`.
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
        """A release (int64 [numbers]) of a vector [d] in units of C and the numbers beside it (float [])."""
        found = [self.noisy(rotate_blocks(vector, signs) / self.step, noise)]
        for share, level in zip(shares, self.statistics, strict=True):
            found.append(self.noisy_share(share, level, noise).unsqueeze(-1))
        return torch.cat(found, dim=-1)

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

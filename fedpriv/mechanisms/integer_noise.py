"""Whole numbers that add up: noise, from exact samplers of the discrete Gaussian and the Skellam law, sums over rows on
a grid, and residues.

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
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.common.errors import OptionError
from fedpriv.common.sum_limits import MOST_BITS
from fedpriv.mechanisms.laws import skellam_exponent
from fedpriv.mechanisms.noise import NoiseSource, Shape, add_normal_finely, as_size

#: Bits of a word; further words are appended where it does not decide.
WORD = 64
#: A border this close to a word, in units of the last bit, leaves it undecided: one for rounding, one for the error.
CLOSE = 2
#: In the place of a number that the first bits of a word do not tell.
UNDECIDED = -(2**31)
#: Larger laws would need tables of more than a hundred megabytes.
LARGEST_STD = 2.0**18
#: Words drawn at a time.
CHUNK = 2**16
#: First bits of a word by which most are decided.
FIRST_BITS = 17

Ratios = Callable[[int], list[int]]


def discrete_gaussian(sigma: float, shape: Shape, noise: NoiseSource) -> Tensor:
    """Discrete Gaussians of parameter sigma (int64 [shape]); zeros for sigma = 0. Raises ValueError beyond 2^18."""
    return _drawn(gaussian_table, sigma, sigma, shape, noise)


def skellam(variance: float, shape: Shape, noise: NoiseSource) -> Tensor:
    """Skellam numbers of mean 0 (int64 [shape]); zeros for variance 0. Raises ValueError beyond 2^36."""
    return _drawn(skellam_table, variance, math.sqrt(variance) if variance >= 0 else variance, shape, noise)


def _drawn(table: Callable[[float], Table], value: float, std: float, shape: Shape, noise: NoiseSource) -> Tensor:
    size = as_size(shape)
    if not 0 <= std <= LARGEST_STD:
        raise ValueError(f"whole-number noise needs a standard deviation from 0 to 2^18, got {std}")
    if std == 0:
        return torch.zeros(size, dtype=torch.int64)
    return torch.from_numpy(table(value).draw(math.prod(size if noise.each is None else size[1:]), noise)).view(size)


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
        self._later = np.uint64(word - min(FIRST_BITS, word))
        self._by_first_bits = self._decided_by_first_bits()

    def draw(self, count: int, noise: NoiseSource) -> NDArray[np.int64]:
        """int64 [count]; of the noise of several clients [clients, count], each from its own source."""
        sources = [noise] if noise.each is None else noise.each
        found = np.empty((len(sources), count), np.int64)
        for start in range(0, count, CHUNK):
            part = found[:, start : start + CHUNK]
            words = np.stack([source.words(part.shape[1]) for source in sources]) >> np.uint64(WORD - self._word)
            places, close = self._places(words.reshape(-1))
            part[:] = places.reshape(words.shape)
            for row, index in zip(*np.divmod(close, part.shape[1]), strict=True):
                part[row, index] = self._decided(int(words[row, index]), sources[row])
        return found[0] if noise.each is None else found

    def _decided_by_first_bits(self) -> NDArray[np.int32]:
        """Of all words that begin alike: their number, or `UNDECIDED` where a border lies among or close to them."""
        last = np.uint64(2**self._word - 1)
        first = np.arange(2 ** min(FIRST_BITS, self._word), dtype=np.uint64) << self._later
        end = first + np.uint64(2 ** int(self._later) - 1)
        below = np.searchsorted(self._borders, np.maximum(first, CLOSE) - np.uint64(CLOSE), side="left")
        upto = np.searchsorted(self._borders, end + np.minimum(last - end, CLOSE), side="right")
        found: NDArray[np.int32] = np.where(below == upto, below - self.reach, UNDECIDED).astype(np.int32)
        found[[0, -1]] = UNDECIDED
        return found

    def _places(self, words: NDArray[np.uint64]) -> tuple[NDArray[np.int32], NDArray[np.intp]]:
        """(the numbers [n] of words [n], which of them lie so close to a border that they do not decide)."""
        found = self._by_first_bits[words >> self._later]
        open_ = np.flatnonzero(found == UNDECIDED)
        words = words[open_]
        places = np.searchsorted(self._borders, words, side="right")
        below = self._borders[np.maximum(places, 1) - 1]
        above = self._borders[np.minimum(places, len(self._borders) - 1)]
        close = (words - below <= CLOSE) & (places > 0) | (above - words <= CLOSE) & (places < len(self._borders))
        close |= (words <= CLOSE) | (words >= np.uint64(2**self._word - 1 - CLOSE))
        found[open_] = places - self.reach
        return found, open_[close]

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


# --- sums over rows -----------------------------------------------------------------------------------------------

#: Half of the modulus in standard deviations of a sum's coordinate, for vectors that all point the same way: beyond it
#: a number comes back on the other side, which costs accuracy and no privacy.
SPREAD = 5.0
#: Largest noise of one client in grid steps: a finer grid gains nothing, and its table of the law would be large.
MOST_STEPS = 2.0**16

#: ddgauss, skellam: whole-number noise by each site; local: a Gaussian by each site; central: one by a trusted server.
Form = Literal["ddgauss", "skellam", "local", "central"]
WHOLE: tuple[Form, ...] = ("ddgauss", "skellam")

#: Wanted: rounding makes what a row changes longer by no more than this share of C.
LONGER = 2.0**-10
#: n sqrt(d) at most, of the proof.
MOST_TERMS = 2.0**39


@dataclass(frozen=True)
class RowGrid:
    """A site's sum over its rows as whole numbers, of which round(S / gamma) leaves with noise. What a row changes and
    costs: `fedpriv.privacy.sum_grid`, which has the symbols.

    dimension: d; rows: of all sites at most, public; sites: of a round.
    """

    form: Form
    dimension: int
    rows: int
    sites: int
    bits: int
    multiplier: float

    @cached_property
    def steps(self) -> float:
        """R = C/gamma: as many as `LONGER` asks for, as the table of a whole-number law holds, and as 2^(b-1) holds of
        all rows pointing the same way with `SPREAD` standard deviations of the noise. Raises `OptionError` for too few
        bits.
        """
        if self.rows * math.sqrt(self.dimension) > MOST_TERMS:
            words = f"the proof of its rounding holds for rows * sqrt(parameters) up to 2^39; {self.rows} rows are more"
            raise OptionError("strategy", "dpsum", words)
        wanted = math.sqrt(self.dimension) / LONGER
        held = 2.0 ** (self.bits - 1) / (self.rows + SPREAD * math.sqrt(self.sites) * self.multiplier + 1)
        table = MOST_STEPS / self.multiplier if self.multiplier and self.form in WHOLE else math.inf
        found = min(wanted, held, table)
        if found < 1:
            raise OptionError("strategy.server.bits", self.bits, f"a sum over {self.rows} rows needs more")
        return found

    @property
    def sigma(self) -> float:
        """Standard deviation of one site's noise in grid steps."""
        return self.multiplier * self.steps

    def whole(self, total: Tensor) -> Tensor:
        """int64 [..., d] of sums [..., d] (float64, in units of C), without noise."""
        return (total.double() * self.steps).round().nan_to_num(0.0, 0.0, 0.0).long()

    def whole_numbers(self, total: Tensor, noise: NoiseSource) -> Tensor:
        """int64 [..., d] of sums [..., d] (float64, in units of C), with a site's whole-number noise."""
        whole = self.whole(total)
        return whole + self.noise(whole.shape, noise)

    def noise(self, shape: torch.Size, noise: NoiseSource) -> Tensor:
        """One site's whole-number noise (int64 [shape])."""
        if self.form == "skellam":
            return skellam(self.sigma**2, shape, noise)
        return discrete_gaussian(self.sigma, shape, noise)

    def noisy(self, whole: Tensor, noise: NoiseSource) -> Tensor:
        """Whole numbers (int64 [..., d]) with Gaussian noise, a site's own or the server's (float64 [..., d]), back in
        the range of the modulus.
        """
        half = 2.0 ** (self.bits - 1)
        found = add_normal_finely(whole.double(), self.sigma, noise)
        return torch.remainder(found + half, 2 * half) - half


# --- residues: whole numbers modulo 2^bits, packed ------------------------------------------------------------
# A residue is an unsigned number below 2^bits, uint32 up to 32 bits and uint64 above. Negative numbers are the upper
# half, as in two's complement. Packed, number i takes bits i*bits to (i+1)*bits of a little-endian stream.


#: Residues of up to 32 bits, or of more.
Residues = NDArray[np.uint32] | NDArray[np.uint64]


def as_residues(numbers: NDArray[np.uint64], bits: int) -> Residues:
    """Numbers below 2^bits in the type of that many bits."""
    return numbers.astype(np.uint32) if bits <= 32 else numbers


def to_residues(numbers: NDArray[np.int64], bits: int) -> Residues:
    """The numbers [..., n] modulo 2^bits. [Kairouz et al. 2021, Algorithm 1: modular clipping]"""
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


# Eight numbers are as many bytes as one has bits, so number j of every eight begins at the same bit of a byte: they are
# one strided view of words of 64 bits. A word holds a number of at most 57 bits wherever that begins;
# options and `pack` allow `MOST_BITS`.

#: Which bit of a stream comes first: the lowest of the first number in the lowest of the first byte, or the highest.
Order = Literal["<", ">"]

#: Numbers taken at a time; a multiple of 8, so that every part but the last ends on a byte.
AT_ONCE = 2**18
_WORD = 8  # bytes


def packed_size(count: int, bits: int) -> int:
    """Bytes of so many numbers."""
    return -(-count * bits // 8)


def pack(numbers: NDArray[Any], bits: int) -> NDArray[np.uint8]:
    """uint8 [..., `packed_size`], lowest bit first, of whole numbers below 2^bits [..., n]; bits: 1 to `MOST_BITS`.

    Raises `OptionError` for more bits than that, ValueError for a number that does not fit: both would change others.
    """
    _check_width(bits)
    if (count := numbers.shape[-1]) > AT_ONCE:
        parts = [pack(numbers[..., start : start + AT_ONCE], bits) for start in range(0, count, AT_ONCE)]
        return np.concatenate(parts, axis=-1)
    if not count:
        return np.zeros(numbers.shape, np.uint8)
    rows, groups = numbers.shape[:-1], -(-count // 8)
    stride = max(bits, _WORD)  # words that are written must not overlap
    found, filled = np.zeros((*rows, groups * stride + _WORD), np.uint8), np.zeros((*rows, groups * 8), np.uint64)
    filled[..., :count] = numbers
    if int(filled.max()) >> bits:
        raise ValueError(f"whole numbers from {numbers.min()} to {numbers.max()}; allowed: 0 to 2^{bits} - 1")
    for number in range(8):
        first, shift = divmod(number * bits, 8)
        words = _words(found, first, groups, stride, "<")
        words |= filled[..., number::8] << np.uint64(shift)
    packed = found[..., : groups * stride].reshape(*rows, groups, stride)[..., :bits]
    return np.ascontiguousarray(packed.reshape(*rows, groups * bits)[..., : packed_size(count, bits)])


def unpack(packed: NDArray[np.uint8], bits: int, count: int, order: Order) -> NDArray[np.uint64]:
    """uint64 [count] from the bytes of `pack`, or of `whole_numbers.pack_integers` (highest bit first). Raises
    `OptionError` as `pack`.
    """
    _check_width(bits)
    if count > AT_ONCE:
        pieces = [(start * bits // 8, min(AT_ONCE, count - start)) for start in range(0, count, AT_ONCE)]
        whole = [packed[place : place + packed_size(size, bits)] for place, size in pieces]
        return np.concatenate([unpack(part, bits, size, order) for part, (_, size) in zip(whole, pieces, strict=True)])
    if not count:
        return np.zeros(0, np.uint64)
    groups = -(-count // 8)
    filled, found = np.zeros(groups * bits + _WORD, np.uint8), np.empty((groups, 8), np.uint64)
    filled[: len(packed)] = packed
    for number in range(8):
        first, shift = divmod(number * bits, 8)
        shift = shift if order == "<" else 64 - bits - shift
        found[:, number] = _words(filled, first, groups, bits, order) >> np.uint64(shift)
    found &= np.uint64(2**bits - 1)
    return found.reshape(-1)[:count]


def _check_width(bits: int) -> None:
    if not 1 <= bits <= MOST_BITS:
        raise OptionError("strategy.server.bits", bits, f"packed whole numbers have 1 to {MOST_BITS}")


def _words(held: NDArray[np.uint8], first: int, groups: int, stride: int, order: Order) -> NDArray[np.uint64]:
    """Words [..., groups] of bytes [..., n]: the first at byte ``first``, then one every ``stride`` bytes."""
    shape, strides = (*held.shape[:-1], groups), (*held.strides[:-1], stride)
    return np.ndarray(shape, f"{order}u8", held, first, strides)


def pack_residues(residues: Residues, bits: int) -> NDArray[np.uint8]:
    """uint8 [..., packed_size] of residues [..., n]."""
    if bits in (8, 16, 32, 64):
        return residues.astype(f"<u{bits // 8}").view(np.uint8)
    return pack(residues, bits)


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
    return as_residues(unpack(packed, bits, count, "<"), bits)

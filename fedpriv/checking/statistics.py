"""Many plays as one matrix: a row for each play, a column for each number that leaves."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from fedpriv.checking.findings import Finding, finding
from fedpriv.checking.reading import Numbers, Played, is_word
from fedpriv.checking.subject import Budget, Claim, Pair, Question, Subject, stopwatch
from fedpriv.privacy.gaussian_dp import gaussian_epsilon

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Columns:
    """names: of each column's record [k]. ragged: records whose length changes between plays; they have no column."""

    names: tuple[str, ...]
    lengths: tuple[int, ...]
    ragged: tuple[str, ...]

    @classmethod
    def of(cls, plays: Sequence[Played]) -> Columns:
        names = dict.fromkeys(name for one in plays for name in one.numbers)
        fixed, ragged = {}, []
        for name in names:
            sizes = {one.numbers[name].size if name in one.numbers else -1 for one in plays}
            if len(sizes) == 1:
                fixed[name] = sizes.pop()
            else:
                ragged.append(name)
        return cls(tuple(fixed), tuple(fixed.values()), tuple(ragged))

    @property
    def records(self) -> NDArray[np.str_]:
        """The record of every column [k]."""
        return np.repeat(np.array(self.names, dtype=str), self.lengths)

    def matrix(self, plays: Sequence[Played]) -> Numbers:
        """[n, k]."""
        rows = [np.concatenate([np.zeros(0), *(np.ravel(one.numbers[name]) for name in self.names)]) for one in plays]
        return np.stack(rows)


@dataclass(frozen=True)
class Two:
    """What left with either of two neighbouring inputs, under the same seeds.

    left, right [n, k]. records [k]: the record of each column. repeatable: row i of both had the same randomness.
    """

    pair: str
    left: Numbers
    right: Numbers
    records: NDArray[np.str_]
    repeatable: bool

    @property
    def words(self) -> Bools:
        return np.array([is_word(record) for record in self.records], bool)

    @property
    def fixed_left(self) -> Bools:
        """Columns with one value under every seed."""
        return np.asarray(constant(self.left))

    @property
    def fixed_right(self) -> Bools:
        return np.asarray(constant(self.right))

    @property
    def varying(self) -> Bools:
        """Columns that have a size, and vary with both inputs."""
        return ~self.fixed_left & ~self.fixed_right & ~self.words

    def only(self, columns: Bools) -> Two:
        return Two(self.pair, self.left[:, columns], self.right[:, columns], self.records[columns], self.repeatable)


def constant(values: Numbers) -> Bools:
    """Columns of [n, k] with one value, up to what sums in another order change."""
    low, high = values.min(0), values.max(0)
    return np.asarray(high - low <= 1e-12 * np.maximum(np.abs(low), np.abs(high)))


def atoms(values: Numbers) -> Bools:
    """Columns of [n, k] in which any value comes three times or more: no density."""
    ordered = np.sort(values, axis=0)
    if len(ordered) < 3:
        return np.ones(values.shape[1], bool)
    return np.asarray((ordered[2:] == ordered[:-2]).any(0))


def spread(values: Numbers) -> Numbers:
    """A robust standard deviation of each column [k]: 1.4826 times the median distance from the median."""
    return np.asarray(1.4826 * np.median(np.abs(values - np.median(values, axis=0)), axis=0))


# --- numbers ----------------------------------------------------------------------------------------------------------
# Statistics of replays: which numbers, or combinations of numbers, move with the data more than their noise allows.
#
# All functions take `Two`: what left with two neighbouring inputs under the same n seeds. Their limits are such that a
# mechanism with noise of its own in every number passes each with a probability of error far below 1e-5.

#: Relative error of one float32 number.
FLOAT32 = 2.0**-23
#: A direction has no noise below this share of its numbers' own noise; independent noise of n/3 numbers in n plays
#: leaves at least a tenth.
NO_NOISE = 1e-3
#: How far beyond rounding the data must move it.
BEYOND_ROUNDING = 50.0
#: Noise of one record under one input against the other: beyond the first it is doubtful, beyond the second a fault.
OTHER_SCALE, VERY_OTHER_SCALE = 3.0, 30.0


def precision(*values: Numbers) -> float:
    """Relative rounding of these numbers: of float32 where all of them are float32 numbers."""
    single = all(bool((part == part.astype(np.float32)).all()) for part in values)
    return FLOAT32 if single else 2.0**-48


def bare(two: Two) -> Bools:
    """Columns that have one value under every seed with either input, and not the same one."""
    return np.asarray(two.fixed_left & two.fixed_right & (two.left[0] != two.right[0]))


def bare_names(sides: Sequence[Sequence[Played]]) -> list[str]:
    """Records that have one value with either of two inputs under every seed, and not the same: they have no noise."""
    columns = Columns.of([one for side in sides for one in side])
    two = Two("", columns.matrix(sides[0]), columns.matrix(sides[1]), columns.records, True)
    return [str(name) for name in dict.fromkeys(two.records[bare(two) & ~two.words])]


def few_values(two: Two, columns: Bools) -> bool:
    """Whether the records of these columns look like symbols (bits, small whole numbers): repeated by chance, too."""
    chosen = np.isin(two.records, np.unique(two.records[columns])) & ~two.words
    values = np.concatenate([two.left[:, chosen].ravel(), two.right[:, chosen].ravel()])
    if chosen.sum() == len(np.unique(two.records[chosen])):  # no record of several numbers: bits alone are symbols
        return bool(np.isin(values, (-1.0, 0.0, 1.0)).all())
    return bool(values.size) and len(np.unique(values)) <= max(2, min(64, int(0.5 * chosen.sum())))


def vanishing(two: Two) -> Bools:
    """Columns that vary without repeating under one input, and have one value under the other."""
    first = two.fixed_left & ~two.fixed_right & ~_repeating(two.right)
    second = two.fixed_right & ~two.fixed_left & ~_repeating(two.left)
    return np.asarray((first | second) & ~two.words)


def _repeating(values: Numbers) -> Bools:
    ordered = np.sort(values, axis=0)
    return np.asarray((ordered[1:] == ordered[:-1]).any(0))


@dataclass(frozen=True)
class Direction:
    """A combination of numbers without noise that the data move. weights [k]; moved: by the data, in units of the
    numbers' own noise; noise: in the same unit.
    """

    columns: NDArray[np.int64]
    weights: Numbers
    moved: float
    noise: float


def bare_direction(two: Two, seed: int = 0) -> Direction | None:
    """The combination of columns that the data move most while the noise does not, of at most n/3 columns.

    Directions of the correlation matrix of the noise whose share is below `NO_NOISE`. Sums of what was released
    already, and copies, have no noise either, but the data do not move them.
    """
    usable = np.flatnonzero(two.varying & ~atoms(two.left) & ~atoms(two.right))
    most = len(two.left) // 3
    if len(usable) < 2 or most < 2:
        return None
    if len(usable) > most:
        usable = np.sort(np.random.default_rng(seed).permutation(usable)[:most])
    left, right = two.left[:, usable], two.right[:, usable]
    noise = np.concatenate([left - left.mean(0), right - right.mean(0)])
    scale = noise.std(0)
    if not (scale > 0).all():
        return None
    shares, directions = np.linalg.eigh(noise.T @ noise / len(noise) / np.outer(scale, scale))
    rounding = precision(left, right) * np.maximum(np.abs(left), np.abs(right)).max(0) / scale
    distance = (right.mean(0) - left.mean(0)) / scale
    best: Direction | None = None
    for share, weights in zip(shares, directions.T, strict=True):
        own = math.sqrt(max(0.0, float(share)))
        floor = float(np.linalg.norm(weights * rounding))
        if max(own, floor) > NO_NOISE:
            continue
        moved = abs(float(weights @ distance))
        if moved > BEYOND_ROUNDING * max(own, floor, 1e-12) and (best is None or moved > best.moved):
            best = Direction(usable, weights, moved, own)
    return best


def twins(two: Two) -> tuple[int, int] | None:
    """Two columns with the same noise up to a factor, whose difference the data move; for records of many numbers."""
    usable = np.flatnonzero(two.varying & ~atoms(two.left) & ~atoms(two.right))[:2048]
    if len(usable) < 2 or len(two.left) < 12:
        return None
    left, right = two.left[:, usable], two.right[:, usable]
    noise = left - left.mean(0)
    scale = noise.std(0)
    unit = noise / np.maximum(np.linalg.norm(noise, axis=0), 1e-300)
    alike = unit.T @ unit
    alike[np.tril_indices(len(usable))] = 0
    distance = (right.mean(0) - left.mean(0)) / np.maximum(scale, 1e-300)
    rounding = precision(left, right) * np.maximum(np.abs(left), np.abs(right)).max(0) / np.maximum(scale, 1e-300)
    apart = np.abs(distance[:, None] - np.sign(alike) * distance[None, :])
    floor = rounding[:, None] + rounding[None, :]
    shared = (np.abs(alike) > 1 - 1e-6) & (apart > BEYOND_ROUNDING * np.maximum(floor, 2e-3))
    if not shared.any():
        return None
    one, other = np.unravel_index(int(np.argmax(np.where(shared, apart, 0))), shared.shape)
    return int(usable[one]), int(usable[other])


def scale_ratio(two: Two) -> tuple[str, float]:
    """(record, ratio) of the record whose noise differs most between the two inputs; ("", 1) where none can be judged.

    Robust scales, over the columns of a record that have a density under both inputs.
    """
    worst, where = 1.0, ""
    judged = two.varying & ~atoms(two.left) & ~atoms(two.right)
    for record in np.unique(two.records[judged]):
        columns = judged & (two.records == record)
        sides = two.left[:, columns], two.right[:, columns]
        scales = [[float(np.sqrt((spread(part) ** 2).mean())) for part in parts] for parts in (sides, _signed(*sides))]
        if min(scales[0]) <= 0 or _rounding_only(two, columns):
            continue
        scale = min(scales, key=max)
        ratio = max(scale) / max(min(scale), 1e-300)
        if ratio > worst:
            worst, where = ratio, str(record)
    return where, worst


def _signed(*sides: Numbers) -> Sequence[Numbers]:
    """Whole numbers modulo a power of two as signed ones: about zero they go around. Others as they are."""
    if any((part < 0).any() or (part != np.floor(part)).any() for part in sides):
        return sides
    half = 2.0 ** math.floor(math.log2(max(1.0, *(float(part.max()) for part in sides))))
    return [(part + half) % (2 * half) - half for part in sides]


def _rounding_only(two: Two, columns: Bools) -> bool:
    """What varies is the rounding of sums alone."""
    size = max(float(np.abs(part[:, columns]).max()) for part in (two.left, two.right))
    least = min(float(spread(part[:, columns]).max()) for part in (two.left, two.right))
    return least < 16 * FLOAT32 * size


def least_ratio(plays: int) -> float:
    """The ratio of two robust scales of n numbers each that chance passes with a probability below 1e-5."""
    return max(OTHER_SCALE, math.exp(9 / math.sqrt(plays)))


def repeated_rows(values: Numbers) -> int:
    """Pairs of rows [n, k] that are equal although each column hardly repeats a value: noise from few seeds."""
    if values.shape[1] < 1 or len(values) < 2:
        return 0
    rows, times = np.unique(values, axis=0, return_counts=True)
    pairs, others = int((times * (times - 1) // 2).sum()), len(rows)
    if pairs == 0 or others < 2:
        return 0
    chance = math.log(len(values) ** 2 / 2)  # pairs of rows, each alike in every column
    for column in rows.T:
        _, same = np.unique(column, return_counts=True)
        alike = float((same * (same - 1)).sum()) / (others * (others - 1))
        chance += math.log(max(alike, 1 / others**2))
    return pairs if chance < math.log(1e-6) else 0


#: Grids on which noise is looked for: from 1 to 2^-40; fewest plays; remainders are equal within this part of a step.
GRIDS, GRID_PLAYS, SAME_REMAINDER = 41, 16, 1e-3
#: Half of all calls at least have noise on a grid of this part of its deviation: that of 32-bit floats is finer, whose
#: low bits seeded generators do not hide either.
COARSE, MOST_CALLS = 2.0**-18, 0.5


def remainders(two: Two) -> tuple[Bools, float]:
    """(columns, grid) of the numbers whose noise is on a grid of 2^-m while the data are not: what is left of them by
    the grid is one value under every seed with either input, and not the same one. It leaves without noise.

    Only where the noise of most calls is on a coarse grid (`COARSE`).
    Numbers that are on a grid themselves (whole numbers, or floats of few bits) have the remainder 0 with both inputs.
    """
    none = np.zeros(len(two.records), bool)
    if len(two.left) < GRID_PLAYS:
        return none, 0.0
    varying = two.varying & ~(two.fixed_left | two.fixed_right)
    for place in range(GRIDS):
        grid = 2.0**-place
        rounding = 2.0**-52 * np.maximum(np.abs(two.left).max(0), np.abs(two.right).max(0)) / grid
        usable = varying & (rounding < SAME_REMAINDER / 10)
        if not usable.any():
            break
        first, second = (np.exp(2j * np.pi * (side[:, usable] / grid)) for side in (two.left, two.right))
        fixed = np.all([np.abs(one - one[0]).max(0) < 2 * np.pi * SAME_REMAINDER for one in (first, second)], axis=0)
        # noise of so little that it is within one step would always leave the same
        wide = np.minimum(np.ptp(two.left[:, usable], axis=0), np.ptp(two.right[:, usable], axis=0)) > 4 * grid
        moved = fixed & wide & (np.abs(first[0] - second[0]) > 20 * np.pi * SAME_REMAINDER)
        found = [column for column in np.flatnonzero(usable)[moved] if _coarse(two, column)]
        if found:
            none[found] = True
            return none, grid
    return none, 0.0


def _coarse(two: Two, column: int) -> bool:
    left, right = two.left[:, column], two.right[:, column]
    deviation = float(spread(two.left[:, [column]])[0])
    for place in range(GRIDS):
        grid = 2.0**-place
        if grid < COARSE * deviation:
            return False
        common = []
        for side in (left, right):
            turns = np.exp(2j * np.pi * (side / grid))
            alike = (np.abs(turns[:, None] - turns) < 2 * np.pi * SAME_REMAINDER).mean(0)
            common.append((float(alike.max()), turns[int(alike.argmax())]))
        apart = abs(common[0][1] - common[1][1]) > 20 * np.pi * SAME_REMAINDER
        if min(common[0][0], common[1][0]) >= MOST_CALLS and apart and np.ptp(left) > 4 * grid:
            return True
    return False


#: Fewest plays from which low bits are looked at.
BIT_PLAYS = 40


def low_bits(two: Two) -> Bools:
    """Columns of numbers that vary, of which one of the eight lowest bits is 1 under every seed with the one input, and
    0 with the other: of 32-bit floats where all are such.
    """
    none = np.zeros(len(two.records), bool)
    if len(two.left) < BIT_PLAYS:
        return none
    sides = [two.left, two.right]
    single = np.all([(side == side.astype(np.float32)).all(0) for side in sides], axis=0)
    for columns, kind, whole in ((single, np.float32, np.int32), (~single, np.float64, np.int64)):
        bits = [np.ascontiguousarray(side[:, columns], kind).view(whole).astype(np.uint8) for side in sides]
        ones, some = ([rule.reduce(part, axis=0) for part in bits] for rule in (np.bitwise_and, np.bitwise_or))
        none[columns] = ((ones[0] & ~some[1]) | (ones[1] & ~some[0])) != 0
    return none & two.varying


def moved_noise(two: Two) -> bool:
    """Whether both inputs have the same noise, added: what differs between them is the same under every seed."""
    if not two.repeatable or not two.varying.any():
        return False
    chosen = two.only(two.varying)
    difference = chosen.right - chosen.left
    size = np.maximum(np.abs(chosen.left), np.abs(chosen.right)).max(0)
    off = np.abs(difference - difference.mean(0)).max(0)
    return bool((off <= 16 * FLOAT32 * size + 1e-4 * chosen.left.std(0)).all())


def distance_in_noise(two: Two, noise: Numbers) -> float:
    """sqrt(d' V^-1 d): the mean difference against the standard deviations [k] of independent numbers."""
    difference = (two.right - two.left).mean(0)
    return float(np.sqrt(((difference / np.maximum(noise, 1e-300)) ** 2).sum()))


@dataclass(frozen=True)
class Law:
    """mean |z| of a number with deviation 1, the error of its estimate times sqrt(n) [Geary 1936 for the Gaussian],
    the fourth moment with the error of its estimate times sqrt(n).
    """

    absolute: float
    absolute_error: float
    fourth: float
    fourth_error: float


GAUSS = Law(math.sqrt(2 / math.pi), 0.2123, 3.0, math.sqrt(24))
#: Errors of 4,000 samples of 1,000 numbers, rounded up.
LAPLACE = Law(1 / math.sqrt(2), 0.354, 6.0, 39.0)
#: Numbers from which a law is told from others, and errors of an estimate that are allowed for.
ENOUGH, ALLOWED = 480, 4.0


def follows(noise: Numbers, law: Law) -> bool:
    """Whether centred numbers [n, k], each scaled by its own deviation, look like independent ones of a law. False
    where they are too few to tell (`ENOUGH`).
    """
    n, k = noise.shape
    size = n * k
    if n < 32 or size < ENOUGH:
        return False
    scaled = (noise / np.maximum(noise.std(0), 1e-300)).ravel()
    few = 1 / n  # the deviation of few numbers is estimated
    absolute, fourth = float(np.abs(scaled).mean()), float((scaled**4).mean())
    return (
        abs(absolute - law.absolute) < ALLOWED * law.absolute_error / math.sqrt(size) + 0.4 * few
        and abs(fourth - law.fourth) < ALLOWED * law.fourth_error / math.sqrt(size) + 2 * law.fourth * few
    )


# --- distance ---------------------------------------------------------------------------------------------------------
# How far the data move what leaves, in deviations of noise that is added to it, and what that costs.
#
# Where two neighbouring inputs differ under every seed by the same numbers, the noise is added, and the same for both.
# If it looks Gaussian or Laplace, independent from number to number, its cost is known: with distance mu in deviations,
# that of a Gaussian mechanism [Balle and Wang 2018]; with the moves over the scales, that of Laplace noise
# (`laplace_epsilon`; at delta 0 their sum [Dwork et al. 2006]). Correlated noise is found by the deviation of the sum
# of all numbers weighted by their moves: what one weighted sum shows, everything shows. Where Laplace noise, or its
# sizes, are correlated, the number that moves most is priced alone.

#: Plays of one input from which deviations are taken, where time allows, and at least; the share of the time for more
#: of them, and for the least.
ENOUGH_PLAYS, LEAST_PLAYS, MORE_SHARE, MOST_SHARE = 192, 32, 0.5, 0.8
#: Deviations of an estimate's error that are allowed for.
ERRORS = 4.5


@dataclass(frozen=True)
class Distance:
    """size: in deviations of the noise; ratios: of Laplace noise, the moves over its scales. least: what all of these
    are at least a factor of, were the noise as large as its error allows. law: None: no noise of a known law is added.
    """

    size: float = 0.0
    law: Literal["Gaussian", "Laplace"] | None = None
    ratios: tuple[float, ...] = ()
    least: float = 0.0

    def epsilon(self, delta: float, calls: int = 1, least: bool = False) -> float:
        """Of so many calls with noise of their own; 0 where no law is known."""
        factor = self.least if least else 1.0
        if self.law == "Gaussian":
            return gaussian_epsilon(self.size * factor * math.sqrt(calls), delta)
        return laplace_epsilon(tuple(factor * one for one in self.ratios), delta, calls)


#: Points of the grid of losses; half its width in roots of the sum of squared ratios; ratios are equal up to this.
LOSSES, HALF, ALIKE = 2**16, 8.0, 0.99


@lru_cache(maxsize=256)
def laplace_epsilon(ratios: tuple[float, ...], delta: float, calls: int = 1) -> float:
    """The epsilon that independent Laplace noises cost at least, of ``calls`` times these |move| / scale.

    Let L be the loss ln dP/dQ of one number of ratio r, under P. It is r with probability 1/2, -r with exp(-r)/2, and
    in between P[L <= l] = F(l) = exp((l-r)/2)/2. Losses add up, and delta(epsilon) = E[(1 - exp(epsilon - sum L))+],
    increasing in each, at least P[S] - exp(epsilon) Q[S] for any event S. Every step below lowers it:

    - r becomes a smaller one: delta of a number is 1 - exp((epsilon-r)/2) for |epsilon| < r, increasing in r; so the
      smaller is a post-processing of the larger [Blackwell 1953]. By at most 1 - `ALIKE`, so that few differ, and down
      to a whole number n of steps h of the grid.
    - Where L is within h/2 of ih, |i| < n, that alone is told: a post-processing, of loss ih to the bit, as
      Q/P = (exp(-a/2) - exp(-b/2)) / (exp(b/2) - exp(a/2)) = exp(-(a+b)/2) of a < L < b. What is within h/2 of +-r is
      rounded down (so near r, within 3h/2).
    - The sum is on a circle of `LOSSES` points. If not all of it fits there, what goes around is further than `HALF`
      roots of sum r^2 from its mean: 2 exp(-`HALF`^2/2) at most [Hoeffding 1963]. This and what 64-bit floats err by,
      in all points together, are `slack`: taken from P[S], and added to Q[S] with the least loss of S.
    """
    if delta == 0 or not any(ratios):
        return calls * sum(ratios)
    largest = max(ratios)
    levels = [math.ceil(math.log(one / largest) / math.log(ALIKE) - 1e-9) for one in ratios if one > 0]
    counts = {largest * ALIKE**level: calls * many for level, many in Counter(levels).items()}
    most = sum(many * one for one, many in counts.items())
    half = HALF * math.sqrt(sum(many * one**2 for one, many in counts.items()))
    step = 2.1 * min(half, most) / LOSSES
    mean, wave = 0.0, np.ones(LOSSES // 2 + 1, complex)
    for ratio, many in counts.items():
        n = int(ratio / step)
        below = np.exp((np.arange(1 - n, n) - 0.5 - n) * step / 2) / 2
        law = np.diff(np.concatenate([[0.0], below, [0.5, 1.0]])) if n else np.ones(1)
        mean += many * float(law @ np.arange(-n, n + 1))
        wave *= np.fft.rfft(np.roll(np.pad(law, (0, LOSSES - 2 * n - 1)), -n)) ** many
    first = (round(mean) if half < most else 0) - LOSSES // 2
    masses = np.roll(np.fft.irfft(wave, LOSSES), -first)
    losses = step * (first + np.arange(LOSSES))
    above = (losses > 0) & (masses > 0)
    masses, losses = masses[above][::-1], losses[above][::-1]
    slack = 2 * math.exp(-(HALF**2) / 2) + 2.0**-48 * math.sqrt(LOSSES) * (len(counts) + sum(counts.values()))
    seen = np.cumsum(masses) - delta - slack
    under_q = np.logaddexp(np.logaddexp.accumulate(np.log(masses) - losses), math.log(slack) - losses)
    return float(np.max(np.log(seen[seen > 0]) - under_q[seen > 0], initial=0.0))


def distance_of(two: Two, more: Callable[[int], Numbers], budget: Budget) -> Distance:
    """more: so many further plays of the left input [n, k], in the columns of ``two``."""
    if not two.varying.any():
        return Distance()
    chosen = two.only(two.varying)
    noise = np.concatenate([side - side.mean(0) for side in (chosen.left, chosen.right)])
    if not moved_noise(two):
        deviations = noise.std(0) * math.sqrt(len(chosen.left) / (len(chosen.left) - 1))
        return Distance(distance_in_noise(chosen, pooled(deviations, len(chosen.left))))
    left = np.concatenate([chosen.left, _further(chosen, two, more, budget)])
    noise = left - left.mean(0)
    deviations = left.std(0, ddof=1)
    scales = pooled(deviations, len(left))
    size = distance_in_noise(chosen, scales)
    law = law_of(noise) if size else None  # equal for both inputs: nothing is told of
    if law is None:
        return Distance(size)
    moved = (chosen.right - chosen.left).mean(0)
    alike = np.ptp(scales) <= 1e-9 * scales.max()
    error = ERRORS / math.sqrt(2 * (len(left) - 1) * (len(scales) if alike else 1))
    if law == "Laplace":  # its deviation is less sure, and sqrt(2) times its scale
        error *= math.sqrt(2.5)
    weighted = noise @ (moved / scales**2)
    correlated = float(weighted.std(ddof=1)) / max(size, 1e-300) if size else 1.0
    least = 1 / (1 + error) if error < 1 else 0.0
    shared = max(1.0, correlated)
    unsure = ERRORS / math.sqrt(2 * (len(left) - 1))
    if law == "Laplace":
        ratios = math.sqrt(2) * np.abs(moved) / scales
        alone = shared > 1 + unsure or _together(noise)
        if alone:  # one number's deviation, as often as it is repeated
            ratios, error = ratios.max(keepdims=True), math.sqrt(2.5) * unsure
            least = 1 / (1 + error) if error < 1 else 0.0
        else:
            ratios = ratios / shared
        return Distance(size / shared, law, tuple(ratios.tolist()), least)
    joint = _joint(noise, moved, chosen.records)
    if joint is not None and joint / (1 + unsure) > size / shared * least:
        return Distance(joint, law, least=1 / (1 + unsure))
    return Distance(size / shared, law, least=least)


def _joint(noise: Numbers, moved: Numbers, records: NDArray[np.str_]) -> float | None:
    """The distance of all together where records of one length, such as several calls, have noise in common from record
    to record. None: there are no such records.
    """
    names, sizes = np.unique(records, return_counts=True)
    if len(names) < 2 or np.ptp(sizes) > 0 or len(noise) * sizes[0] < 20 * len(names):
        return None
    order = np.argsort(records, kind="stable")
    own = noise.std(0)  # a common deviation of all would distort sums of few
    scaled = (noise / own)[:, order].reshape(len(noise), len(names), -1)
    return together(scaled, (moved / own)[order].reshape(len(names), -1))


def together(scaled: Numbers, moved: Numbers) -> float | None:
    """The distance of all of t calls of k numbers each, whose noise is correlated from call to call, alike for each
    number: of noise [n, t, k] and moves [t, k] in deviations; where it is not alike, that of the same sum of all
    numbers, which is less. None: a combination of calls has no noise.
    """
    count, calls, size = scaled.shape
    shared = np.einsum("ntk,nuk->tu", scaled, scaled) / (count * size)
    try:
        weights = np.linalg.inv(shared) @ moved
    except np.linalg.LinAlgError:
        return None
    square = max(0.0, float((weights * moved).sum()))
    # the inverse of an estimate is too long
    alike = math.sqrt(square * max(0.0, 1 - (calls + 1) / (count * size)))
    deviation = float(np.einsum("ntk,tk->n", scaled, weights).std(ddof=1))
    return min(alike, square / deviation) if deviation > 0 else None


def law_of(noise: Numbers) -> Literal["Gaussian", "Laplace"] | None:
    """The law that centred numbers [n, k] follow; None where it is neither, or may be both."""
    gaussian, laplace = follows(noise, GAUSS), follows(noise, LAPLACE)
    return "Gaussian" if gaussian and not laplace else "Laplace" if laplace and not gaussian else None


def _further(chosen: Two, two: Two, more: Callable[[int], Numbers], budget: Budget) -> Numbers:
    """Further plays [n, k], until the law of the noise can be told, as far as the time goes; none if it does not go so
    far.
    """
    count, numbers = chosen.left.shape
    needed = max(LEAST_PLAYS, math.ceil(ENOUGH / numbers)) - count
    wanted = max(ENOUGH_PLAYS - count, needed)
    none = np.zeros((0, numbers))
    if wanted <= 0:
        return none
    with stopwatch() as taken:
        first = more(2)
    affordable = budget.left / max(taken[0] / 2, 1e-6)
    many = min(wanted, max(int(MORE_SHARE * affordable), min(needed, int(MOST_SHARE * affordable))))
    if many < max(2, needed) or first.shape[1] != len(two.varying):
        return none
    found = more(many)
    return found[:, two.varying] if found.shape[1] == len(two.varying) else none


def pooled(deviations: Numbers, plays: int) -> Numbers:
    """One deviation for all columns where they are equal within their errors."""
    error = ERRORS / math.sqrt(2 * max(1, plays - 1))
    middle = float(np.sqrt((deviations**2).mean()))
    if (np.abs(deviations - middle) <= error * middle).all():
        return np.full_like(deviations, middle)
    return deviations


def doubled(claim: Claim) -> Claim:
    """What a claim about one unit and none says of one unit against another: two steps [Dwork and Roth 2014, 2.2]."""
    delta = min(math.nextafter(1, 0), claim.delta * (1 + math.exp(min(claim.epsilon, 700.0))))
    return replace(claim, epsilon=2 * claim.epsilon, delta=delta, adjacency="replace-one")


# --- scale ------------------------------------------------------------------------------------------------------------
# Noise whose scale depends on the data by less than a glance shows: its length alone tells two inputs apart.
#
# Where a record of k numbers has independent Gaussian noise of standard deviation 1 with one input and r > 1 with the
# other, its squared length is chi-square with k degrees of freedom, times 1 or r^2. The test "shorter than a line"
# gives, at every line, epsilon >= ln((P[chi2_k <= line r^2] - delta) / P[chi2_k <= line]): a lower bound for any
# mechanism [Kairouz et al. 2015, the trade-off of one test]. A ratio of 1.1 costs next to nothing in one number, and
# more than 10 in 2,000. A random scale, or numbers that share noise, lengthen the tails: the lengths of the plays
# themselves say how many independent numbers there are (2 mean^2 / variance [Satterthwaite 1946]).

#: Lines that are tried.
LINES = 400
#: Of the left and of the right input: (how many) -> further plays [n, k], in the columns of all.
More = Sequence[Callable[[int], Numbers]]


@dataclass(frozen=True)
class Scale:
    """record: whose noise it is. ratio: as measured; epsilon: at least, with an allowance for its error."""

    record: str
    ratio: float
    epsilon: float


def against_scale(claim: Claim | None, pair: Pair, two: Two, more: More) -> list[Finding]:
    """A fault where the length of the noise alone tells the inputs apart better than the claim allows; of two steps of
    a unit and none, twice.
    """
    if claim is None or not math.isfinite(claim.epsilon):
        return []
    held = claim if claim.covers(pair) else doubled(claim)
    if not held.covers(pair) or (held is not claim and claim.adjacency is None):
        return []
    seen = scale_of(two, more, held.delta)
    if seen is None or seen.epsilon <= held.epsilon * (1 + 1e-3):
        return []
    twice = "" if held is claim else " twice, as two steps"
    return [finding("noise-depends-on-data:length", pair=pair, seen=seen, held=held, claim=claim, twice=twice)]


def scale_of(two: Two, more: More, delta: float) -> Scale | None:
    """The record whose length tells most; None where no scale differs beyond chance, or its noise is not Gaussian."""
    judged = two.varying & ~atoms(two.left) & ~atoms(two.right)
    records = [str(record) for record in np.unique(two.records[judged])]
    columns = {record: judged & (two.records == record) for record in records}
    suspect = [one for one in records if _differs(two.left[:, columns[one]], two.right[:, columns[one]])]
    if not suspect:
        return None
    left, right = two.left, two.right
    fewest = min(int(columns[one].sum()) for one in suspect)
    needed = max(LEAST_PLAYS, math.ceil(ENOUGH / fewest)) - len(left)
    if needed > 0:
        first, second = (one(needed) for one in more)
        if first.shape[1] != left.shape[1] or second.shape[1] != left.shape[1]:
            return None
        left, right = np.concatenate([left, first]), np.concatenate([right, second])
    found = [_judged(one, columns[one], left, right, delta) for one in suspect]
    return max((one for one in found if one is not None), key=lambda one: one.epsilon, default=None)


def _judged(record: str, columns: Bools, left: Numbers, right: Numbers, delta: float) -> Scale | None:
    sides = [side[:, columns] for side in (left, right)]
    noise = [side - side.mean(0) for side in sides]
    if not all(law_of(one) == "Gaussian" for one in noise) or not _differs(*sides):
        return None
    squares = [float((one**2).sum() / ((len(one) - 1) * one.shape[1])) for one in noise]
    ratio = math.sqrt(max(squares) / min(squares))
    numbers = min(independent_numbers(one) for one in noise)
    error = ERRORS * math.sqrt(1 / (2 * numbers * (len(left) - 1)) + 1 / (2 * numbers * (len(right) - 1)))
    return Scale(record, ratio, length_epsilon(numbers, ratio * math.exp(-error), delta))


def _differs(left: Numbers, right: Numbers) -> bool:
    """Whether the scales of [n, k] differ by more than chance and rounding, were all numbers independent."""
    squares = [float((side - side.mean(0)).var(0).mean()) for side in (left, right)]
    if len(left) < 2 or len(right) < 2 or min(squares) <= 0:
        return False
    size = max(float(np.abs(side).max()) for side in (left, right))
    error = ERRORS * math.sqrt(1 / (left.shape[1] * (min(len(left), len(right)) - 1)))
    return abs(math.log(squares[0] / squares[1])) > 2 * error and math.sqrt(min(squares)) > 16 * FLOAT32 * size


def independent_numbers(noise: Numbers) -> float:
    """Independent numbers among the k of centred noise [n, k], at least, by the lengths of the n plays."""
    squares = (noise**2).sum(1)
    spread = float(squares.var(ddof=1)) * (1 + ERRORS * math.sqrt(2 / (len(noise) - 1)))
    return max(1.0, min(float(noise.shape[1]), 2 * float(squares.mean()) ** 2 / max(spread, 1e-300)))


def length_epsilon(numbers: float, ratio: float, delta: float) -> float:
    """The epsilon that the length of so many numbers shows at least, where one input's scale is ``ratio`` times the
    other's. 0 for a ratio of at most 1.
    """
    if ratio <= 1:
        return 0.0
    from scipy.stats import chi2

    lines = numbers * np.linspace(0.0, 3.0, LINES + 1)[1:]
    seen = chi2.cdf(lines, numbers) - delta
    usable = seen > 0
    shown = np.log(seen[usable]) - chi2.logcdf(lines[usable] / ratio**2, numbers)
    return float(np.max(shown[np.isfinite(shown)], initial=0.0))


# --- ends -------------------------------------------------------------------------------------------------------------
# Noise that ends: numbers that it never reaches, and that the data put within reach.
#
# Noise z is added, the same for both inputs, and the data move a number by d. If z is beyond t with probability at most
# q, and beyond t - d with probability at least p, the event "the number is beyond t" shows that (epsilon, delta) needs
# epsilon >= log((p - delta) / q), whatever the law of z is. t is the most that one half of the draws reached, p and q
# are bounds of the other half [Clopper and Pearson 1934]. Numbers of one call count as draws of one law where their
# noise has one deviation and their sizes are not correlated; else the one number that moves most is looked at.

#: Calls from which the ends of noise are seen; fewest; numbers in all, at most.
CALLS, FEWEST_CALLS, MOST_NUMBERS = 6_000, 400, 1_500_000
#: Error of both probabilities together.
ERROR = 1e-6
#: Noise ends where at least this many times more of it is within `EDGE` of its largest number than beyond that.
ABRUPT, EDGE = 8.0, 0.05


@dataclass(frozen=True)
class Reach:
    """epsilon: a lower bound that no law is assumed for. share: of the noise that one input puts out of the other's
    reach, at least. end: the largest noise, in its deviations. abrupt: the noise does not fade towards its end.
    """

    epsilon: float
    share: float
    end: float
    abrupt: bool


def ended(
    subject: Subject, question: Question, played: Sequence[tuple[Pair, Two, Bools]], budget: Budget
) -> list[Finding]:
    """At most one finding, of the pair in which one number moves most. played: pairs, what left, and which columns of
    all that leaves are in it.
    """
    usable = [
        (moved_most(two), pair, two, finite)
        for pair, two, finite in played
        if question.claim is None or question.covers(pair)
    ]
    if not usable:
        return []
    size, pair, two, finite = max(usable, key=lambda one: one[0])
    if not size:
        return []
    try:
        with stopwatch() as taken:
            shape = subject.trials(pair.left, 4, question.seed).shape
        if shape[1] != len(finite) or not finite.all():
            return []
        affordable = budget.left / max(taken[0] / 4, 1e-7)
        calls = budget.allowed("calls that show where noise ends", affordable, min(CALLS, MOST_NUMBERS // shape[1]))
        if calls < FEWEST_CALLS:
            return []
        values = subject.trials(pair.left, calls, question.seed + 9)
    except Exception:  # of the target's own, now and then; or numbers that change their form
        return []
    order = np.argsort(np.argsort(two.records, kind="stable"))  # trials are in the order of the names
    values = values[np.isfinite(values).all(1)][:, order]
    found = reach_of(two, values, question.at_delta)
    claim = question.claim
    if found is None or (claim is not None and not found.epsilon > claim.epsilon and not found.abrupt):
        return []
    refuted = claim is not None and found.epsilon > claim.epsilon * (1 + 1e-3)
    more = f", where {claim.epsilon:g} is claimed." if claim is not None and refuted else "; if it ends, infinite."
    if not refuted and not (found.abrupt and found.share > 10 * question.at_delta):
        return []
    seen = (
        f"With {pair.name}, {100 * found.share:.2g} % of what leaves with one input is beyond all that left with the "
        f"other in {len(values):,} calls. Whatever the law of the noise is, epsilon is at least {found.epsilon:.3g}"
        f"{more}"
    )
    if not found.abrupt:
        return [finding("moves-more-than-claimed:reach", seen=seen)]
    return [finding("noise-ends", "fault" if refuted else "doubt", seen=seen, end=found.end)]


def moved_most(two: Two) -> float:
    """The largest move of one number, in deviations of noise that is added; 0 where none is."""
    if len(two.left) < 3 or not moved_noise(two):
        return 0.0
    usable = two.varying & ~atoms(two.left) & ~atoms(two.right)
    moves = np.abs((two.right - two.left).mean(0)[usable]) / two.left.std(0, ddof=1)[usable]
    return float(moves.max(initial=0.0))


def reach_of(two: Two, values: Numbers, delta: float) -> Reach | None:
    """values: of many calls with the left input [n, k], in the columns of ``two``. None: too few."""
    if len(values) < FEWEST_CALLS or values.shape[1] != len(two.varying):
        return None
    usable = np.flatnonzero(two.varying & ~atoms(two.left) & ~atoms(two.right))
    moves = (two.right - two.left).mean(0)[usable]
    most = int(np.argmax(np.abs(moves) / two.left.std(0, ddof=1)[usable]))
    noise = values[:, usable] - values[:, usable].mean(0)
    if np.ptp(pooled(noise.std(0, ddof=1), len(noise))) > 0 or _together(noise):
        noise = noise[:, [most]]
    return _bound(noise * np.sign(moves[most]), abs(float(moves[most])), float(noise.std()), delta)


def _together(noise: Numbers) -> bool:
    """Whether the sizes of two numbers of a call are correlated."""
    if noise.shape[1] < 2:
        return False
    sizes = np.abs(noise)
    sizes = (sizes - sizes.mean(0)) / sizes.std(0)
    # the square of a row's sum is its length, more or less, where its numbers are not correlated
    sums = sizes.sum(1) ** 2 / sizes.shape[1]
    return bool(abs(sums.mean() - 1) > 6 * max(float(sums.std()), 1.0) / math.sqrt(len(sums)))


def _bound(noise: Numbers, move: float, deviation: float, delta: float) -> Reach | None:
    """Of the better of both directions: the right input is beyond the left one's largest, or the left one below the
    right one's least.
    """
    found = []
    for one in (noise, -noise):
        first, second = one[::2].ravel(), one[1::2].ravel()
        end = float(first.max())
        beyond = upper(int((second > end).sum()), second.size)
        share = lower(int((second > end - move).sum()), second.size)
        edge = lower(int((second > end * (1 - EDGE)).sum()), second.size)
        epsilon = math.log((share - delta) / beyond) if share - delta > beyond else 0.0
        found.append(Reach(epsilon, share, end / deviation, edge > ABRUPT * beyond))
    return max(found, key=lambda one: (one.epsilon, one.share))


def upper(count: int, draws: int) -> float:
    """What a probability is at most, by Clopper and Pearson, at a quarter of `ERROR`: two bounds of two directions."""
    return 1.0 if count == draws else float(beta.ppf(1 - ERROR / 4, count + 1, draws - count))


def lower(count: int, draws: int) -> float:
    return 0.0 if count == 0 else float(beta.ppf(ERROR / 4, count, draws - count + 1))

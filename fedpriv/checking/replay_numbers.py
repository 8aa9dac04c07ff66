"""Statistics of replays: which numbers, or combinations of numbers, move with the data more than their noise allows.

All functions take `Two`: what left with two neighbouring inputs under the same n seeds. Their limits are such that a
mechanism with noise of its own in every number passes each with a probability of error far below 1e-5.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedpriv.checking.columns import Bools, Columns, Two, atoms, spread
from fedpriv.checking.subject import Numbers, Played

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
        first, second = (float(np.sqrt((spread(part[:, columns]) ** 2).mean())) for part in (two.left, two.right))
        if min(first, second) <= 0 or _rounding_only(two, columns):
            continue
        ratio = max(first / second, second / first)
        if ratio > worst:
            worst, where = ratio, str(record)
    return where, worst


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

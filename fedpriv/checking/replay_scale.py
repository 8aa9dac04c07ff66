"""Noise whose scale depends on the data by less than a glance shows: its length alone tells two inputs apart.

Where a record of k numbers has independent Gaussian noise of standard deviation 1 with one input and r > 1 with the
other, its squared length is chi-square with k degrees of freedom, times 1 or r^2. The test "shorter than a line" gives,
at every line, epsilon >= ln((P[chi2_k <= line r^2] - delta) / P[chi2_k <= line]): a lower bound for any mechanism
[Kairouz et al. 2015, the trade-off of one test]. A ratio of 1.1 costs next to nothing in one number, and more than 10
in 2,000. A random scale, or numbers that share noise, lengthen the tails: the lengths of the plays themselves say how
many independent numbers there are (2 mean^2 / variance [Satterthwaite 1946]).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedpriv.checking.columns import Bools, Two, atoms
from fedpriv.checking.findings import Finding
from fedpriv.checking.replay_distance import ERRORS, LEAST_PLAYS, doubled, law_of
from fedpriv.checking.replay_numbers import ENOUGH, FLOAT32
from fedpriv.checking.subject import Claim, Numbers, Pair

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
    return [
        Finding(
            "replayed", "noise-depends-on-data", "fault",
            f"With {pair.name}, the noise of {seen.record} is {seen.ratio:.3g} times as large with one input as with "
            f"the other: its length alone shows an epsilon of at least {seen.epsilon:.3g} at delta {held.delta:.3g}, "
            f"where {claim.epsilon:g} is claimed{'' if held is claim else ' twice, as two steps'}.",
            "Draw noise of a scale that is fixed before the data are seen, how many there are of them included.",
        )
    ]  # fmt: skip


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

"""Figures over the seeds of runs: mean and spread, differences that are paired by seed, and their p-values.

`fedpriv.studies.statistics` has what a study decides by them, and what is assumed.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

#: The chance of any wrong verdict among those of a family, on both sides together.
FAMILY_ERROR = 0.05
#: Differences are equal where they differ by no larger share: 0.8 - 0.7 and 0.9 - 0.8 do, by 1e-15.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Spread:
    """Mean over ``n`` seeds with spread. ``std`` (n - 1 in the denominator) and ``half_width`` of the 95% interval
    of the mean (Student's t) are None for a single seed and where a value is infinite."""

    n: int
    mean: float | None
    std: float | None = None
    half_width: float | None = None


def spread(values: Iterable[float | None]) -> Spread:
    """Mean, standard deviation and half width of the 95% t-interval; missing values are ignored."""
    known = [value for value in values if value is not None]
    n = len(known)
    if n == 0:
        return Spread(0, None)
    if n == 1 or not all(map(math.isfinite, known)):
        return Spread(n, mean(known))
    from scipy.special import stdtrit  # half a second to import, for which the end of a single run need not wait

    std = stdev(known)
    return Spread(n, mean(known), std, float(stdtrit(n - 1, 0.975)) * std / math.sqrt(n))


def paired(one: Mapping[int, float], other: Mapping[int, float]) -> list[float]:
    """one - other, seed by seed: equal seeds have the same data, clients, cohorts and initial model."""
    return [one[seed] - other[seed] for seed in sorted(one.keys() & other.keys())]


def t_test(differences: ArrayLike) -> tuple[Any, Any]:
    """One-sided p-values against "the mean is at most 0" and "at least 0", of two differences or more (the last axis).
    Equal ones, but for rounding, have no spread to divide by: then that of the sign test, since a few that agree prove
    nothing of more.
    """
    from scipy.stats import ttest_1samp  # half a second to import

    values = np.asarray(differences, dtype=float)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # no spread, or an infinite value: below
        tested = ttest_1samp(values, 0.0, axis=-1)
        equal = (abs(values - values[..., :1]) <= ROUNDING * abs(values[..., :1])).all(-1)
    sign, half = np.sign(values.mean(-1)), tested.pvalue / 2
    same = np.where(sign == 0, 1.0, 0.5 ** values.shape[-1])
    ahead, behind = np.where(equal, same, half), np.where(equal, 1.0, 1 - half)
    finite = np.isfinite(values).all(-1)
    holds, fails = (np.where(finite, np.where(sign > 0, *pair), 1.0)[()] for pair in ((ahead, behind), (behind, ahead)))
    return holds, fails


def two_sided(differences: Sequence[float]) -> float | None:
    """The p-value of "the mean is 0" (`t_test`); None for fewer than two differences."""
    return two_sided_each([differences])[0]


def two_sided_each(many: Sequence[Sequence[float]]) -> list[float | None]:
    """`two_sided` of many pairs, as fast as one where they have as many seeds."""
    found: list[float | None] = [None] * len(many)
    for count in {len(one) for one in many} - {0, 1}:
        places = [place for place, one in enumerate(many) if len(one) == count]
        p_values = np.minimum(1.0, 2 * np.minimum(*t_test([many[place] for place in places])))
        for place, p in zip(places, p_values.tolist(), strict=True):
            found[place] = p
    return found


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Adjusted p-values (Holm 1979): the i-th smallest times how many are left, never less than one before it. A
    missing one counts as 1, and stays missing.
    """
    known = [1.0 if value is None else value for value in values]
    adjusted, least = list(values), 0.0
    for rank, place in enumerate(sorted(range(len(known)), key=known.__getitem__)):
        least = max(least, min(1.0, (len(known) - rank) * known[place]))
        adjusted[place] = None if values[place] is None else least
    return adjusted

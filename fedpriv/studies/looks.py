"""How sure a study is: p-values that allow looking several times, and Holm's correction over what is decided together.

Seeds are added in blocks that are fixed before (``looks``: 3, 6, 12 and 24 in all, say), to the cells on which an open
claim rests, until it is decided or the table's budget is used. Two proofs hold the error of all that down.

**Looking.** p_k is the p-value of a one-sided t-test on the first n_k differences, K the number of planned looks. After
some looks the sequential p-value is p = min(1, K * smallest p_k so far). Under the null hypothesis P(p <= a) <= a,
whatever rule says when to stop, also one that follows these data or those of other claims: wherever it stops,
p >= K * min(p_1, ..., p_K), and P(K * min(p_1, ..., p_K) <= a) <= sum over k of P(p_k <= a / K) <= K * a / K = a. For
one claim at 5 % and five looks this is a 99 % interval at each look (98.75 % for four).

**Printed sizes.** Of a claim "the mean is above 0, by g" (g > 0) the side of failing has the p-values against "at least
g" where the mean of all differences so far is not above 0, and those against "at least 0" elsewhere. The second are
never the smaller ones, so under "the mean is at least g" P(p <= a) <= a as before. What is refuted is the claim with
its size, and that while the sample as a whole does not even have its sign: should the sign come back with more seeds,
the claim is open again.

**Many claims.** A claim that holds refutes "it is false", one that does not hold refutes "it is true". Over the m
claims of a family (a paper's statistical claims, the pairs of one ordering) each of the two sides is decided by Holm's
procedure at 2.5 %. The chance of any wrong refutation on a side is at most 2.5 %: with m0 true hypotheses the first
wrong one comes when at least m0 are left, so its p is at most 0.025 / m0, which one of m0 is with a chance of at most
m0 * 0.025 / m0 (Holm 1979; any dependence). Both sides together: at most 5 % of studies with these claims have any
wrong verdict. m is fixed by the file, and a sequential p-value only falls with more looks (but for printed
sizes), so what is decided stays decided while the plan stays the same and no rival begins to guess. A plan that is made
after a look at the same seeds has been published is one more look, for which nothing here corrects: such a study says
so.

Assumed: paired differences over seeds are independent and normal. `tests/studies/test_looks.py` simulates the whole.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TypeVar

from scipy.special import ndtr, stdtr

#: The chance of any wrong verdict among those of a family, on both sides together.
FAMILY_ERROR = 0.05
#: More looks than this would cost more than they give.
MOST_LOOKS = 5

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Sides:
    """holds: the p-value against "the claim is false". fails: that against "the claim is true"."""

    holds: float = 1.0
    fails: float = 1.0


def sequential(differences: Sequence[float], looks: Sequence[int] = (), size: float = 0.0) -> Sides:
    """Of the claim that the mean of ``differences`` (by seed) is above 0, by ``size`` where that is above 0 (printed
    sizes, as above). looks: numbers of seeds at which is looked, all that are planned; those that are not reached yet
    count. None: one look at all that is there.
    """
    planned = tuple(looks) or (len(differences),)
    holds, fails = _looked(differences, planned)
    if size > 0 and differences and fmean(differences) <= 0:
        fails = _looked([difference - size for difference in differences], planned)[1]
    return Sides(holds, fails)


def _looked(differences: Sequence[float], planned: Sequence[int]) -> tuple[float, float]:
    reached = [t_test(differences[:seeds]) for seeds in planned if 2 <= seeds <= len(differences)]
    least = [min((one[side] for one in reached), default=1.0) for side in (0, 1)]
    return min(1.0, len(planned) * least[0]), min(1.0, len(planned) * least[1])


def t_test(differences: Sequence[float]) -> tuple[float, float]:
    """One-sided p-values against "the mean is at most 0" and "at least 0", of two differences or more. Equal ones have
    no spread to divide by: then that of the sign test, since a few that agree to the last digit prove nothing of more.
    """
    if not all(map(math.isfinite, differences)):
        return 1.0, 1.0
    mean, std, n = fmean(differences), stdev(differences), len(differences)
    if std == 0.0:
        same = 0.5**n
        return (1.0, 1.0) if mean == 0.0 else (same, 1.0) if mean > 0 else (1.0, same)
    t = mean * math.sqrt(n) / std
    return float(stdtr(n - 1, -t)), float(stdtr(n - 1, t))


def above(value: float, low: float, high: float, bound: float) -> Sides:
    """Of the claim that what ``value`` estimates, with the 95 % interval [low, high], is at most ``bound``; by the
    normal law of that width.
    """
    width = (high - low) / (2 * 1.959964)
    if not (width > 0 and math.isfinite(width)):
        return Sides()
    z = (bound - value) / width
    return Sides(holds=float(ndtr(-z)), fails=float(ndtr(z)))


def together(parts: Sequence[Sides]) -> Sides:
    """Of the claim that all of several hold: it is refuted where one of them is (Bonferroni), and holds where each does
    (an intersection-union test, which needs no correction).
    """
    return Sides(max(one.holds for one in parts), min(1.0, len(parts) * min(one.fails for one in parts)))


def holm(found: Mapping[Key, Sides]) -> dict[Key, Sides]:
    """Adjusted for the whole family and both sides: decided where a value is at most `FAMILY_ERROR`."""
    sides = [_adjusted({key: getattr(one, side) for key, one in found.items()}) for side in ("holds", "fails")]
    return {key: Sides(min(1.0, 2 * sides[0][key]), min(1.0, 2 * sides[1][key])) for key in found}


def _adjusted(values: Mapping[Key, float]) -> dict[Key, float]:
    """Holm's adjusted p-values: the i-th smallest times how many are left, never less than one before it."""
    adjusted, least = {}, 0.0
    for place, key in enumerate(sorted(values, key=lambda key: values[key])):
        least = max(least, min(1.0, (len(values) - place) * values[key]))
        adjusted[key] = least
    return adjusted

"""How sure a study is: estimates over seeds, p-values that allow looking several times, and Holm's correction over what
is decided together. Papers and boards use the same.

Seeds are added in blocks that are fixed before (``looks``: 3, 6, 12 and 24 in all, say), to the cells on which an open
claim rests, until it is decided or the table's budget is used. Two proofs hold the error of all that down.

**Looking.** p_k is the p-value of a one-sided t-test on the first n_k differences, K the number of planned looks. After
some looks the sequential p-value is p = min(1, K * smallest p_k so far). Under the null hypothesis P(p <= a) <= a,
whatever rule says when to stop, also one that follows these data or those of other claims: wherever it stops,
p >= K * min(p_1, ..., p_K), and P(K * min(p_1, ..., p_K) <= a) <= sum over k of P(p_k <= a / K) <= K * a / K = a. For
one claim at 5 % and five looks this is a 99 % interval at each look (98.75 % for four).

**No effect.** A claim "the mean is above 0" is also refuted where the mean is surely within M of 0, M being what
counts as an effect (docs/results/protocol.md). At each look the p-value of failing is the smaller one of that against
"at least 0" and of the two one-sided tests against "at least M" and "at most -M" (Schuirmann 1987: the larger of the
two). Neither is smaller than the p-value against "at least M", so under "the mean is at least M" P(p <= a) <= a as
before. What is refuted is the claim with an effect of M. While the sign itself is sure, it counts alone: a gain that is
small and sure is a gain.

**Learn or guess.** Where runs of a cell learn or guess by their seed, differences are far from normal, and the sign
test takes the t-test's place (the median in place of the mean; differences of exactly 0 are left out).

**Many claims.** A claim that holds refutes "it is false", one that does not hold refutes "it is true". Over the m
claims of a family (a paper's statistical claims, the pairs of one ordering) each of the two sides is decided by Holm's
procedure at 2.5 %. The chance of any wrong refutation on a side is at most 2.5 %: with m0 true hypotheses the first
wrong one comes when at least m0 are left, so its p is at most 0.025 / m0, which one of m0 is with a chance of at most
m0 * 0.025 / m0 (Holm 1979; any dependence). Both sides together: at most 5 % of studies with these claims have any
wrong verdict. m is fixed by the file, and a sequential p-value only falls with more looks (but for "no effect", where
a sure sign takes over), so what is decided stays decided while the plan stays the same and no rival begins to guess. A
plan that is made after a look at the same seeds has been published is one more look, for which nothing here corrects:
such a study says so.

Assumed: paired differences over seeds are independent and normal. `tests/studies/test_evidence.py` simulates the whole.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from fedpriv.report.compare import spread
from fedpriv.studies.results import Estimate

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


def estimate(values: Iterable[float]) -> Estimate:
    """Mean, standard deviation and half width of the 95 % t-interval over seeds."""
    found = spread(values)
    return Estimate(n=found.n, mean=found.mean, std=found.std, half_width=found.half_width)


def paired(one: Mapping[int, float], other: Mapping[int, float]) -> list[float]:
    """one - other, seed by seed: equal seeds have the same data, clients, cohorts and initial model."""
    return [one[seed] - other[seed] for seed in sorted(one.keys() & other.keys())]


def sequential(differences: ArrayLike, looks: Sequence[int] = (), margin: float = 0.0, by_sign: bool = False) -> Sides:
    """Of the claim that the mean of ``differences`` (by seed, the last axis) is above 0. looks: numbers of seeds at
    which is looked, all that are planned; those that are not reached yet count. None: one look at all that is there.
    margin: M of "no effect", 0 for none. by_sign: the sign test in place of the t-test.
    """
    found = np.asarray(differences, dtype=float)
    planned = tuple(looks) or (found.shape[-1],)
    test = sign_test if by_sign else t_test
    reached = [found[..., :seeds] for seeds in planned if 2 <= seeds <= found.shape[-1]]
    holds, fails = (_sequential([test(seen)[side] for seen in reached], len(planned)) for side in (0, 1))
    if margin > 0:
        within = [np.maximum(test(seen - margin)[1], test(seen + margin)[0]) for seen in reached]
        no_effect = np.minimum(fails, _sequential(within, len(planned)))
        fails = np.where(holds <= FAMILY_ERROR, fails, no_effect)[()]
    return Sides(holds, fails)


def _sequential(values: Sequence[Any], looks: int) -> Any:
    return np.minimum(1.0, looks * np.min(values, axis=0, initial=1.0))


def sign_test(differences: ArrayLike) -> tuple[Any, Any]:
    """One-sided p-values against "the median is at most 0" and "at least 0", exact (the last axis)."""
    from scipy.stats import binom

    found = np.asarray(differences, dtype=float)
    above, below = (found > 0).sum(-1), (found < 0).sum(-1)
    return tuple(binom.sf(side - 1, above + below, 0.5) for side in (above, below))  # type: ignore[return-value]


def t_test(differences: ArrayLike) -> tuple[Any, Any]:
    """One-sided p-values against "the mean is at most 0" and "at least 0", of two differences or more (the last axis).
    Equal ones have no spread to divide by: then that of the sign test, since a few that agree to the last digit prove
    nothing of more.
    """
    from scipy.stats import ttest_1samp  # half a second to import

    found = np.asarray(differences, dtype=float)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # no spread, or an infinite value: below
        tested = ttest_1samp(found, 0.0, axis=-1)
    sign, half = np.sign(found.mean(-1)), tested.pvalue / 2
    equal = (found == found[..., :1]).all(-1)
    same = np.where(sign == 0, 1.0, 0.5 ** found.shape[-1])
    ahead, behind = np.where(equal, same, half), np.where(equal, 1.0, 1 - half)
    finite = np.isfinite(found).all(-1)
    holds, fails = (np.where(finite, np.where(sign > 0, *pair), 1.0)[()] for pair in ((ahead, behind), (behind, ahead)))
    return holds, fails


def two_sided(differences: Sequence[float]) -> float | None:
    """The p-value of "the mean is 0" (`t_test`); None for fewer than two differences."""
    return min(1.0, 2 * float(min(t_test(differences)))) if len(differences) > 1 else None


def above(value: float, low: float, high: float, bound: float) -> Sides:
    """Of the claim that what ``value`` estimates, with the 95 % interval [low, high], is at most ``bound``; by the
    normal law of that width.
    """
    from scipy.stats import norm

    width = (high - low) / (2 * 1.959964)
    if not (width > 0 and math.isfinite(width)):
        return Sides()
    z = (bound - value) / width
    return Sides(holds=float(norm.sf(z)), fails=float(norm.cdf(z)))


def together(parts: Sequence[Sides]) -> Sides:
    """Of the claim that all of several hold: it is refuted where one of them is (Bonferroni), and holds where each does
    (an intersection-union test, which needs no correction).
    """
    return Sides(max(one.holds for one in parts), min(1.0, len(parts) * min(one.fails for one in parts)))


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


def both_sides(found: Mapping[Key, Sides]) -> dict[Key, Sides]:
    """Adjusted for the whole family and both sides: decided where a value is at most `FAMILY_ERROR`."""
    holds, fails = (holm([getattr(one, side) for one in found.values()]) for side in ("holds", "fails"))
    pairs = zip(found, holds, fails, strict=True)
    return {key: Sides(min(1.0, 2 * (one or 0.0)), min(1.0, 2 * (other or 0.0))) for key, one, other in pairs}

"""How sure a study is: estimates over seeds, p-values that allow looking several times, Holm's correction over what is
decided together, and the pairwise tests and ranks of a board.

**Looking.** Seeds are made in blocks that are fixed before (``looks``: 3, 6, 12 and 24 in all, say). p_k is the p-value
of a one-sided t-test on the first n_k differences, K the number of planned looks. After some looks the sequential
p-value is p = min(1, K * smallest p_k so far). Under the null hypothesis P(p <= a) <= a, whatever rule says when to
stop, also one that follows these data or those of other claims: wherever it stops, p >= K * min(p_1, ..., p_K), and
P(K * min(p_1, ..., p_K) <= a) <= sum over k of P(p_k <= a / K) <= K * a / K = a.

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

**Boards.** The duels of a board, every paper's idea against every plain method at every target where both are ranked,
are one family. It follows from the board's file and from who is ranked, not from what is found. Runs at a smaller
target keep a larger one too, so nobody loses by a search at the larger one that chose badly: "beats" is over the
loser's runs at this and at every smaller target, with the largest of their p-values (an intersection-union test, which
is valid as it is), and so is "loses to".

Assumed: paired differences over seeds are independent and normal. `tests/studies/test_statistics.py` simulates it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from fedpriv.report.over_seeds import FAMILY_ERROR, holm, paired, spread, t_test, two_sided
from fedpriv.report.words import plus_minus
from fedpriv.studies.results import Duel, Estimate

#: Below so many times the accuracy of guessing a method has not learned.
GUESSING = 1.5

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


def sequential(differences: ArrayLike, looks: Sequence[int] = (), margin: float = 0.0, by_sign: bool = False) -> Sides:
    """Of the claim that the mean of ``differences`` (by seed, the last axis) is above 0. looks: numbers of seeds at
    which is looked, all that are planned; those that are not reached yet count. None: one look at all that is there.
    margin: M of "no effect", 0 for none. by_sign: the sign test in place of the t-test.
    """
    values = np.asarray(differences, dtype=float)
    planned = tuple(looks) or (values.shape[-1],)
    test = sign_test if by_sign else t_test
    reached = [values[..., :seeds] for seeds in planned if 2 <= seeds <= values.shape[-1]]

    def corrected(p_values: Sequence[Any]) -> Any:
        return np.minimum(1.0, len(planned) * np.min(p_values, axis=0, initial=1.0))

    holds, fails = (corrected([test(seen)[side] for seen in reached]) for side in (0, 1))
    if margin > 0:
        within = [np.maximum(test(seen - margin)[1], test(seen + margin)[0]) for seen in reached]
        fails = np.where(holds <= FAMILY_ERROR, fails, np.minimum(fails, corrected(within)))[()]
    return Sides(holds, fails)


def sign_test(differences: ArrayLike) -> tuple[Any, Any]:
    """One-sided p-values against "the median is at most 0" and "at least 0", exact (the last axis)."""
    from scipy.stats import binom

    values = np.asarray(differences, dtype=float)
    above, below = (values > 0).sum(-1), (values < 0).sum(-1)
    return tuple(binom.sf(side - 1, above + below, 0.5) for side in (above, below))  # type: ignore[return-value]


def below(value: float, low: float, high: float, bound: float) -> Sides:
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


def both_sides(found: Mapping[Key, Sides]) -> dict[Key, Sides]:
    """Adjusted for the whole family and both sides: decided where a value is at most `FAMILY_ERROR`."""
    holds, fails = (holm([getattr(one, side) for one in found.values()]) for side in ("holds", "fails"))
    pairs = zip(found, holds, fails, strict=True)
    return {key: Sides(min(1.0, 2 * (one or 0.0)), min(1.0, 2 * (other or 0.0))) for key, one, other in pairs}


def blocks_that_differ(differences: Mapping[int, float], blocks: Mapping[int, Hashable]) -> str:
    """Each block's mean difference, where an analysis of variance tells blocks of two seeds or more (other machines or
    dates) apart at 5 %; else nothing. differences, blocks: by seed (docs/results/protocol.md, section 3).
    """
    parts: defaultdict[Hashable, dict[int, float]] = defaultdict(dict)
    for seed, difference in sorted(differences.items()):
        parts[blocks.get(seed)][seed] = difference
    some = [part for part in parts.values() if len(set(part.values())) > 1]
    if len(some) < 2:
        return ""
    from scipy.stats import f_oneway

    p = float(f_oneway(*(list(part.values()) for part in some)).pvalue)
    if not p <= 0.05:
        return ""
    means = ((estimate(part.values()), min(part), max(part)) for part in some)
    listed = (f"{plus_minus(m.mean or 0.0, m.half_width)} on seeds {first} to {last}" for m, first, last in means)
    return f"; blocks of seeds differ (p = {p:.2g}): {', '.join(listed)}"


# --- boards ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contender:
    """A method at one target. accuracies: seed -> percent. against: an idea's opponents in place of the plain ones."""

    method: str
    idea: str
    accuracies: Mapping[int, float]
    against: tuple[str, ...] = ()

    @cached_property
    def mean(self) -> float:
        return estimate(self.accuracies.values()).mean or 0.0


#: Target -> its contenders, by the name of their method.
Contenders = Mapping[float, Mapping[str, Contender]]


def ranked(contenders: Iterable[Contender]) -> list[tuple[int, bool, Contender]]:
    """(rank, whether it is tied with the best, contender) by mean accuracy, the best first; equal means share a rank.
    Tied: the 95 % interval of the paired difference to the best holds 0 (of a single seed, everybody is tied).
    """
    order = sorted(contenders, key=lambda one: (-one.mean, one.method))
    found: list[tuple[int, bool, Contender]] = []
    for place, one in enumerate(order, 1):
        rank = found[-1][0] if found and found[-1][2].mean == one.mean else place
        found.append((rank, outcome(difference(order[0], one)) == "not decided", one))
    return found


def difference(one: Contender, other: Contender) -> Estimate:
    return estimate(paired(one.accuracies, other.accuracies))


def outcome(found: Estimate) -> Any:
    """What a difference's 95 % interval says of the first of the two."""
    if found.mean is None or found.half_width is None or abs(found.mean) <= found.half_width:
        return "not decided"
    return "beats" if found.mean > 0 else "loses to"


def duels(contenders: Contenders, chance: float) -> list[Duel]:
    """Every paper's idea against every plain method, target by target, the best plain method first. A plain method that
    guesses while another plain one learns is no opponent. Ideas with opponents of their own (on public features: the
    baseline on the same features) meet those alone. Decided together, by Holm's rule.
    """
    found = []
    for target, here in contenders.items():
        plain = [one for _, _, one in ranked(here.values()) if one.idea == "plain"]
        plain = [one for one in plain if one.mean >= GUESSING * chance] or plain[:1]
        ideas = [one for one in here.values() if one.idea == "paper"]
        pairs = [(one, other) for other in plain for one in ideas if not one.against]
        pairs += [(one, here[name]) for one in ideas for name in one.against if name in here]
        found += [_duel(target, one, other, contenders) for one, other in pairs]
    return [
        duel.model_copy(
            update={"adjusted": p} | ({} if p is not None and p <= FAMILY_ERROR else {"outcome": "not decided"})
        )
        for duel, p in zip(found, holm([duel.p for duel in found]), strict=True)
    ]


def _duel(target: float, one: Contender, other: Contender, contenders: Contenders) -> Duel:
    """Whoever is behind at this target has its runs at the smaller ones too: the best of them are shown, and p is the
    largest of all; 1 for runs that are ahead, so that nobody wins by them.
    """
    ahead = (difference(one, other).mean or 0.0) > 0
    behind = other if ahead else one
    runs = {target: behind} | {
        at: here[behind.method] for at, here in contenders.items() if at < target and behind.method in here
    }
    best = max(runs, key=lambda at: runs[at].mean)
    values = []
    for again in runs.values():
        gaps = paired(one.accuracies, again.accuracies) if ahead else paired(again.accuracies, other.accuracies)
        p = two_sided(gaps)
        values.append(p if p is None or (sum(gaps) > 0) == ahead else 1.0)
    gap = difference(one, runs[best]) if ahead else difference(runs[best], other)
    return Duel(
        target=target,
        method=one.method,
        against=other.method,
        difference=gap,
        outcome=outcome(gap),
        p=None if None in values else max(value for value in values if value is not None),
        method_at=best if not ahead and best != target else None,
        against_at=best if ahead and best != target else None,
    )


def better_at(one: Contender, target: float, contenders: Contenders) -> float | None:
    """The smaller target at which a method is more accurate, by the 95 % interval of the paired difference."""
    smaller = {at: here[one.method] for at, here in contenders.items() if at < target and one.method in here}
    gaps = {at: difference(again, one) for at, again in smaller.items()}
    surely = {at: gap.mean or 0.0 for at, gap in gaps.items() if outcome(gap) == "beats"}
    return max(surely, key=lambda at: surely[at], default=None)

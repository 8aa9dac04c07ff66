"""Who is first, who is tied with the first, and which difference is one: pure functions of accuracies over seeds.

The duels of a board, every paper's idea against every plain method at every target where both are ranked, are one
family: their p-values (paired t-tests over seeds) are adjusted by Holm's rule, so that with 95 % none of a board's
"beats" and "loses to" is due to chance. The family follows from the board's file and from who is ranked, not from what
is found.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fedpriv.report.compare import spread
from fedpriv.report.words import figure
from fedpriv.studies.results import Estimate

Outcome = Literal["beats", "loses to", "not decided"]

#: Below so many times the accuracy of guessing a method has not learned.
GUESSING = 1.5
#: The family-wise error rate.
LEVEL = 0.05


@dataclass(frozen=True)
class Contender:
    """A method at one target. accuracies: seed -> percent."""

    method: str
    label: str
    idea: str
    accuracies: Mapping[int, float]

    @property
    def accuracy(self) -> Estimate:
        return estimate(self.accuracies.values())

    @property
    def mean(self) -> float:
        return self.accuracy.mean or 0.0


def estimate(values: object) -> Estimate:
    """Mean with its 95 % t-interval over seeds."""
    found = spread(values)  # type: ignore[arg-type]
    return Estimate(n=found.n, mean=found.mean, std=found.std, half_width=found.half_width)


def ranked(contenders: Sequence[Contender]) -> list[tuple[int, bool, Contender]]:
    """(rank, whether it is tied with the best, contender) by mean accuracy, the best first; equal means share a rank.
    Tied: the 95 % interval of the paired difference to the best holds 0 (of a single seed, everybody is tied).
    """
    order = sorted(contenders, key=lambda contender: (-contender.mean, contender.method))
    if not order:
        return []
    best = order[0].accuracies
    found: list[tuple[int, bool, Contender]] = []
    for place, contender in enumerate(order, 1):
        rank = found[-1][0] if found and found[-1][2].mean == contender.mean else place
        found.append((rank, outcome(difference(best, contender.accuracies)) == "not decided", contender))
    return found


def difference(one: Mapping[int, float], other: Mapping[int, float]) -> Estimate:
    """one minus other, seed by seed: equal seeds have the same clients, cohorts and initial model."""
    return estimate([one[seed] - other[seed] for seed in sorted(one.keys() & other.keys())])


def outcome(found: Estimate) -> Outcome:
    """What a difference's 95 % interval says of the first of the two."""
    if found.mean is None or found.half_width is None or abs(found.mean) <= found.half_width:
        return "not decided"
    return "beats" if found.mean > 0 else "loses to"


@dataclass(frozen=True)
class Comparison:
    """p: two-sided, of the paired difference; adjusted: for all duels of the board. Without them the outcome is what
    the 95 % interval says.
    """

    target: float
    one: Contender
    other: Contender
    difference: Estimate
    outcome: Outcome
    p: float | None = None
    adjusted: float | None = None


def duels(contenders: Mapping[float, Sequence[Contender]], chance: float) -> list[Comparison]:
    """Every paper's idea against every plain method, target by target, the best plain method (by mean accuracy) first.
    A plain method that guesses while another plain one learns is no opponent. Decided together, by Holm's rule.
    """
    found = []
    for target, all_ in contenders.items():
        plain = sorted((c for c in all_ if c.idea == "plain"), key=lambda c: (-c.mean, c.method))
        plain = [c for c in plain if c.mean >= GUESSING * chance] or plain[:1]
        for other in plain:
            for one in (contender for contender in all_ if contender.idea == "paper"):
                gap = difference(one.accuracies, other.accuracies)
                found.append(Comparison(target, one, other, gap, outcome(gap), p_value(gap)))
    together = holm([one.p for one in found])
    return [
        replace(one, adjusted=p, outcome=one.outcome if p is not None and p <= LEVEL else "not decided")
        for one, p in zip(found, together, strict=True)
    ]


def p_value(found: Estimate) -> float | None:
    """Two-sided, of a mean of paired differences (t-test); None for a single seed."""
    if found.mean is None or found.std is None or found.n < 2:
        return None
    if found.std == 0:
        return 0.0 if found.mean else 1.0
    from scipy.special import stdtr  # half a second to import

    return float(2 * stdtr(found.n - 1, -abs(found.mean) / (found.std / math.sqrt(found.n))))


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Adjusted p-values (Holm 1979): in ascending order, the i-th of m is multiplied by m - i + 1, and none is smaller
    than one before it. A missing value counts as 1.
    """
    order = sorted(range(len(values)), key=lambda place: 1.0 if values[place] is None else values[place])  # type: ignore[arg-type, return-value]
    found: list[float | None] = [None] * len(values)
    largest = 0.0
    for rank, place in enumerate(order):
        if (value := values[place]) is not None:
            largest = max(largest, min(1.0, (len(values) - rank) * value))
            found[place] = largest
    return found


def sentence(found: Comparison) -> str:
    """In words, with the figures that it rests on."""
    one, other, gap = found.one, found.other, found.difference
    sides = f"{one.mean:.1f} against {other.mean:.1f} %"
    spread_words = "" if gap.half_width is None else f" ± {gap.half_width:.1f}"
    points = f"{abs(gap.mean or 0.0):.1f}{spread_words} points"
    at = f"At epsilon {figure(found.target)}"
    if found.outcome == "not decided":
        sign = "-" if (gap.mean or 0.0) < 0 else "+"
        alone = found.adjusted is not None and outcome(gap) != "not decided"
        beside = f"; p = {found.adjusted:.2g} among all duels of the board" if alone else ""
        return f"{at}, {one.label} against {other.label} is not decided: {sign}{points} ({sides}{beside})."
    return f"{at}, {one.label} {found.outcome} {other.label} by {points} ({sides})."


def nothing_learns(contenders: Sequence[Contender], chance: float) -> bool:
    """Whether even the best is nearer to guessing than to twice that."""
    return bool(contenders) and max(contender.mean for contender in contenders) < GUESSING * chance


def verdicts(target: float, contenders: Sequence[Contender], fought: Sequence[Comparison], chance: float) -> list[str]:
    """What a target says of the papers' ideas: each against the best plain method, and whatever else they beat."""
    at = f"At epsilon {figure(target)}"
    if not contenders:
        return [f"{at} no method can be calibrated, or all guess."]
    if nothing_learns(contenders, chance):
        best = max(contenders, key=lambda contender: contender.mean)
        return [f"{at} nothing learns: the best, {best.label}, has {best.mean:.1f} %, and guessing {chance:.1f} %."]
    ideas = [contender for contender in contenders if contender.idea == "paper"]
    if not ideas:
        return [f"{at} no paper's idea is ranked."]
    found = [duel for duel in fought if duel.target == target]
    if not found:
        return [f"{at} no plain method is ranked, so nothing is compared."]
    opponent = found[0].other
    return [sentence(one) for one in found if one.other is opponent or one.outcome == "beats"]

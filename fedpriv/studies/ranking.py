"""Who is first, who is tied with the first, and which difference is one: pure functions of accuracies over seeds.

The duels of a board, every paper's idea against every plain method at every target where both are ranked, are one
family: their p-values (paired t-tests over seeds) are adjusted by Holm's rule, so that with 95 % none of a board's
"beats" and "loses to" is due to chance. The family follows from the board's file and from who is ranked, not from what
is found.

Runs at a smaller target keep a larger one too, so nobody loses by a search at the larger one that chose badly: "beats"
is over the loser's runs at this and at every smaller target, with the largest of their p-values (an intersection-union
test, which is valid as it is), and so is "loses to".
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
    """A method at one target. accuracies: seed -> percent; with_runs_at: the smaller target whose runs these are."""

    method: str
    label: str
    idea: str
    accuracies: Mapping[int, float]
    with_runs_at: float | None = None

    @property
    def name(self) -> str:
        """Its label, with where its runs are from."""
        runs = self.with_runs_at
        return self.label if runs is None else f"{self.label} (with its runs at epsilon {figure(runs)})"

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
    """p: two-sided, of the paired difference, the largest over all runs that the one who is behind may have; adjusted:
    for all duels of the board. Without them the outcome is what the 95 % interval says.
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
                found.append(_duel(target, one, other, contenders))
    together = holm([one.p for one in found])
    return [
        replace(one, adjusted=p, outcome=one.outcome if p is not None and p <= LEVEL else "not decided")
        for one, p in zip(found, together, strict=True)
    ]


def _duel(
    target: float, one: Contender, other: Contender, contenders: Mapping[float, Sequence[Contender]]
) -> Comparison:
    """Whoever is behind at this target has its runs at the smaller ones too: the best of them are shown, and p is the
    largest of all.
    """
    ahead = (difference(one.accuracies, other.accuracies).mean or 0.0) > 0
    behind = other if ahead else one
    smaller = [(at, c) for at, all_ in contenders.items() if at < target for c in all_ if c.method == behind.method]
    runs = [behind, *(replace(again, with_runs_at=at) for at, again in smaller)]
    values = [_p_of(_gap(one, other, again), ahead) for again in runs]
    known = [p for p in values if p is not None]
    best = max(runs, key=lambda again: again.mean)
    gap = _gap(one, other, best)
    pair = (one, best) if ahead else (best, other)
    return Comparison(target, *pair, gap, outcome(gap), max(known) if len(known) == len(values) else None)


def _gap(one: Contender, other: Contender, again: Contender) -> Estimate:
    """one minus other, where the one of them whose method it is has the runs ``again``."""
    mine = again if again.method == one.method else one
    its = again if again.method == other.method else other
    return difference(mine.accuracies, its.accuracies)


def better_at(one: Contender, target: float, contenders: Mapping[float, Sequence[Contender]]) -> float | None:
    """The smaller target at which a method is more accurate, by the 95 % interval of the paired difference."""
    smaller = {at: c for at, all_ in contenders.items() if at < target for c in all_ if c.method == one.method}
    gaps = {at: difference(c.accuracies, one.accuracies) for at, c in smaller.items()}
    surely = {at: gap.mean or 0.0 for at, gap in gaps.items() if outcome(gap) == "beats"}
    return max(surely, key=lambda at: surely[at], default=None)


def _p_of(found: Estimate, ahead: bool) -> float | None:
    """Two-sided; 1 where the difference has the other sign, so that nobody wins by the runs at another target."""
    p = p_value(found)
    return p if p is None or ((found.mean or 0.0) > 0) == ahead else 1.0


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
        beside = f"; p = {found.adjusted:.2g} among all pairwise tests of the board" if alone else ""
        return f"{at}, {one.name} against {other.name} is not decided: {sign}{points} ({sides}{beside})."
    return f"{at}, {one.name} {found.outcome} {other.name} by {points} ({sides})."


def nothing_learns(contenders: Sequence[Contender], chance: float) -> bool:
    """Whether even the best is nearer to guessing than to twice that."""
    return bool(contenders) and max(contender.mean for contender in contenders) < GUESSING * chance


def verdicts(target: float, contenders: Sequence[Contender], fought: Sequence[Comparison], chance: float) -> list[str]:
    """What a target says of the papers' ideas: each against the best plain method, and how the other duels ended."""
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
    opponent = found[0].other.method
    rest = [one for one in found if one.other.method != opponent]
    against_it = [sentence(one) for one in found if one.other.method == opponent]
    return [*against_it, *([_counted(at, rest)] if rest else [])]


def _counted(at: str, rest: Sequence[Comparison]) -> str:
    """Wins by name and with their size, since they are few, and how many there are of the others."""
    won = [one for one in rest if one.outcome == "beats"]
    lost = sum(one.outcome == "loses to" for one in rest)
    gains = (f"{one.difference.mean or 0.0:.1f} ± {one.difference.half_width or 0.0:.1f}" for one in won)
    named = [f"{one.one.label} against {one.other.name} by {gain}" for one, gain in zip(won, gains, strict=True)]
    which = f" ({'; '.join(named)})" if won else ""
    return (
        f"{at}, against the other plain methods: {len(won)} of {len(rest)} won{which}, {lost} lost, "
        f"{len(rest) - len(won) - lost} not decided."
    )


def against_alone(target: float, contenders: Sequence[Contender], alone: Mapping[int, float]) -> str:
    """Whether the most accurate of a target is worth more to clients than what each has by itself, at no epsilon."""
    at = f"At epsilon {figure(target)}"
    if not contenders:
        return f"{at} nothing is ranked, and every client has {estimate(alone.values()).mean or 0.0:.1f} % by itself."
    best = max(contenders, key=lambda contender: contender.mean)
    gap = difference(best.accuracies, alone)
    if gap.mean is None:
        return f"{at}, no seed of the best, {best.label}, is one of what every client has by itself."
    size = f"{abs(gap.mean):.1f}{'' if gap.half_width is None else f' ± {gap.half_width:.1f}'} points"
    end = {
        "beats": f"is better by {size} than what every client has by itself.",
        "loses to": f"is worse by {size} than what every client has by itself: taking part does not pay.",
        "not decided": f"is not told apart from what every client has by itself ({size}).",
    }[outcome(gap)]
    return f"{at}, the best, {best.label}, {end}"
